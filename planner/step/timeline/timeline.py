"""The timeline of a schedule: when each operation runs for given durations, what ranks hold, what was waited for."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from planner.base.arrays import Array, Bools, Ints, record
from planner.base.errors import ScheduleError
from planner.schedules.base import Pipeline
from planner.schedules.dependencies import dependencies
from planner.schedules.operations import Order
from planner.step.timeline.chunk_links import ChunkLinks
from planner.step.timeline.engine import needed, run_lanes

MOST_OPERATIONS = 20_000_000  # about 5 GB while the timeline is made


@record
class Timeline:
    """Start and end in seconds of every operation of an order, shape (n,).

    link_end_s: when the links of each rank have ended, shape (p,); None without.
    """

    order: Order
    waits: Ints
    lag_s: Array
    start_s: Array
    end_s: Array
    link_end_s: Array | None = None

    @property
    def makespan_s(self) -> float:
        """From the first operation's start to the last one's end."""
        return float(self.end_s.max() - self.start_s.min())

    @property
    def span_s(self) -> float:
        """The longest of any rank's first start to last end: the step where ranks need not wait for one another."""
        begin, finish = self.start_s[self.order.start[:-1]], self.end_s[self.order.start[1:] - 1]
        return float((finish - begin).max())

    @property
    def busy_s(self) -> Array:
        """Seconds that each rank works, shape (p,)."""
        lasts = np.where(np.roll(self.order.fused, 1), 0.0, self.end_s - self.start_s)
        return np.add.reduceat(lasts, self.order.start[:-1])

    def bubble_fraction(self, span: bool = False) -> float:
        """Idle share of all ranks' time over the makespan, or over the span."""
        whole = self.span_s if span else self.makespan_s
        return float(1.0 - self.busy_s.mean() / whole)

    def held(self, size: Any = 1.0, kept: float = 0.0) -> Array:
        """Activations that each rank holds after each of its operations starts, shape (n,).

        size: of a forward's activations, a number or one for each operation, (n,). kept: the share that an input
        gradient leaves for the weight gradient. F adds; B, I and W free when they end, so their own is still held.
        """
        share = np.array([1.0, -1.0, -(1.0 - kept), -kept, 0.0, 0.0, 0.0, 0.0])
        change = share[self.order.kind] * size
        after = np.cumsum(change)
        before_rank = np.concatenate([[0.0], after])[self.order.start[:-1]]
        after -= np.repeat(before_rank, np.diff(self.order.start))
        return np.where(change < 0, after - change, after)

    def peak(self, size: Any = 1.0, kept: float = 0.0) -> Array:
        """The most that each rank holds, shape (p,)."""
        return np.maximum.reduceat(self.held(size, kept), self.order.start[:-1])


def check_size(pipe: Pipeline, steps: int = 1) -> None:
    """Raises ScheduleError if a pipeline's operations are more than `MOST_OPERATIONS`."""
    operations = 2 * pipe.p * pipe.m * pipe.v * pipe.k * steps
    if operations > MOST_OPERATIONS:
        raise ScheduleError(
            f"{pipe.p} ranks, {pipe.m} micro-batches, {pipe.v} virtual stages and {pipe.k} slices make {operations:,} "
            f"operations; allowed: up to {MOST_OPERATIONS:,}"
        )


def durations(
    order: Order, forward_s: Any, input_grad_s: Any, weight_grad_s: Any, head_s: Sequence[float] = (0.0,) * 4
) -> Array:
    """Seconds of every operation, shape (n,), from seconds by stage (or one figure): B takes I + W.

    head_s: of S, T, U and V, a rank's part of a shared head.
    """
    stages = int(order.stage.max()) + 1
    parts = (forward_s, input_grad_s, weight_grad_s, *head_s)
    f, i, w, *head = (np.broadcast_to(np.asarray(x, dtype=float), stages) for x in parts)
    table = np.stack([f, i + w, i, w, *head])
    return np.asarray(table[order.kind, order.stage])


def run(
    order: Order, duration_s: Array, transfer_s: float = 0.0, release_s: Any = None, *, compiled: bool | None = None
) -> Timeline:
    """The timeline of an order.

    transfer_s: passes between stages on different ranks, beside the compute. release_s: before which a rank starts
    nothing, shape (p,).

    Raises ScheduleError if an operation is missing or doubled, or ranks wait for one another in a circle.
    """
    return run_all(
        [TimedOrder(order=order, duration_s=duration_s, release_s=release_s)], transfer_s, compiled=compiled
    )[0]


@record
class TimedOrder:
    """An order with its operations' durations, and before what each rank starts nothing: what `run` takes.

    links: gathers and reductions of chunks beside it; a rank's operations then have no release. head_lag_s: by kind,
    how long after the last of all ranks' passes of a shared head an operation starts.
    """

    order: Order
    duration_s: Array
    release_s: Any = None
    links: ChunkLinks | None = None
    head_lag_s: tuple[float, ...] = ()


def run_all(runs: list[TimedOrder], transfer_s: float = 0.0, *, compiled: bool | None = None) -> list[Timeline]:
    """The timelines of several orders, side by side; raises what `run` does. Runs may share an order."""
    if not runs:
        return []
    made = [_lanes(one, _cached_waits(one.order, transfer_s, one.head_lag_s)) for one in runs]
    width = max(x.waits.shape[1] for x in made)
    counts = np.array([len(x.duration) for x in made])
    offset = np.cumsum(counts) - counts
    start, end, stopped = run_lanes(
        np.concatenate([[0], *(x.start[1:] + at for x, at in zip(made, offset, strict=True))]).astype(np.int64),
        np.concatenate(
            [_wider(np.where(x.waits >= 0, x.waits + at, -1), width, -1) for x, at in zip(made, offset, strict=True)]
        ),
        _lags([x.lag for x in made], width),
        np.concatenate([x.duration for x in made]),
        np.concatenate([x.fused for x in made]),
        np.concatenate([x.release for x in made]),
        compiled=compiled,
    )
    out, lane = [], 0
    for one, x, at in zip(runs, made, offset, strict=True):
        order, n = one.order, len(one.order)
        begin, finish = start[at : at + n], end[at : at + n]
        waits, lag, _ = _cached_waits(order, transfer_s, one.head_lag_s)
        if (finish < 0).any():
            stops = stopped[lane : lane + order.ranks] - at
            raise ScheduleError(f"the schedule deadlocks: {_cycle(order, waits, finish, stops)}")
        links = None if one.links is None else end[at + x.start[order.ranks + 1 :] - 1]
        out.append(Timeline(order=order, waits=waits, lag_s=lag, start_s=begin, end_s=finish, link_end_s=links))
        lane += len(x.start) - 1
    return out


@record
class _Lanes:
    """The engine's arguments."""

    start: Ints
    waits: Ints
    lag: Array
    duration: Array
    fused: Bools
    release: Array


_Waits = tuple[Ints, Array, tuple[Ints, Array]]


def _waits(order: Order, transfer_s: float, head_lag_s: tuple[float, ...]) -> _Waits:
    """Waits of an order's operations, seconds after each, and both again as far as the engine needs them."""
    waits, rank = dependencies(order), order.rank
    lag = np.broadcast_to(0.0, waits.shape)
    if transfer_s:
        lag = np.where((waits >= 0) & (rank[waits] != rank[:, None]), transfer_s, 0.0)
    if head_lag_s and waits.shape[1] > 3:
        lag = np.array(lag)
        lag[:, 3:] += np.array(head_lag_s)[order.kind][:, None]
    return waits, lag, needed(order.start, waits, lag, order.fused)


_WAITS: WeakKeyDictionary[Order, dict[Any, _Waits]] = WeakKeyDictionary()


def _cached_waits(order: Order, transfer_s: float, head_lag_s: tuple[float, ...]) -> _Waits:
    """`_waits`, computed once for as long as the order is in use."""
    kept, key = _WAITS.setdefault(order, {}), (transfer_s, head_lag_s)
    if key not in kept:
        kept[key] = _waits(order, transfer_s, head_lag_s)
    return kept[key]


def _lanes(one: TimedOrder, waits: _Waits) -> _Lanes:
    """A lane for each rank."""
    order = one.order
    if one.links is not None:
        return _with_links(one, one.links, *waits[:2])
    release = np.zeros(order.ranks) if one.release_s is None else np.maximum(one.release_s, 0.0)
    few, lag = waits[2]
    return _Lanes(start=order.start, waits=few, lag=lag, duration=one.duration_s, fused=order.fused, release=release)


def _wider(table: Any, width: int, fill: float) -> Any:
    """A table with so many columns."""
    more = width - table.shape[1]
    return np.pad(table, ((0, 0), (0, more)), constant_values=fill) if more else table


def _lags(tables: list[Array], width: int) -> Array:
    """Tables of lags below one another; of nothing but zeros one that takes no memory."""
    if any(table.any() for table in tables):
        return np.concatenate([_wider(table, width, 0.0) for table in tables])
    return np.broadcast_to(0.0, (sum(map(len, tables)), width))


def _with_links(one: TimedOrder, links: ChunkLinks, waits: Ints, lag: Array) -> _Lanes:
    """A lane for each rank, and one for each rank's links behind them."""
    order, n, many = one.order, len(one.order), len(links.rank)
    by_lane = np.lexsort((links.place, links.rank))
    index = np.empty(many, dtype=np.int64)
    index[by_lane] = n + np.arange(many)
    all_waits, all_lags = np.full((n + many, 5), -1, dtype=np.int64), np.zeros((n + many, 5))
    all_waits[:n, :3], all_lags[:n, :3] = waits, lag
    all_waits[links.first, 3], all_lags[links.first, 3] = index[: len(links.first)], links.first_lag_s
    all_waits[links.first, 4], all_lags[links.first, 4] = links.before, links.held_s
    all_waits[index, :4], all_lags[index, :4] = links.waits, links.lag_s
    start = np.concatenate([order.start, n + np.cumsum(np.bincount(links.rank, minlength=order.ranks))])
    fused = np.concatenate([order.fused, np.zeros(many, dtype=bool)])
    few, lags = needed(start, all_waits, all_lags, fused)
    return _Lanes(
        start=start,
        waits=few,
        lag=lags,
        duration=np.concatenate([one.duration_s, links.seconds[by_lane]]),
        fused=fused,
        release=np.zeros(len(start) - 1),
    )


def _cycle(order: Order, waits: Ints, end: Array, stopped: Ints) -> str:
    """The circle of waiting ranks, in words."""
    rank = order.rank
    at = next(r for r in range(order.ranks) if stopped[r] < order.start[r + 1])
    seen: list[int] = []
    steps: list[str] = []
    while at not in seen:
        seen.append(at)
        head = int(stopped[at])
        group = [head]
        while order.fused[group[-1]]:
            group.append(group[-1] + 1)
        before = next(int(b) for g in group for b in waits[g] if b >= 0 and end[b] < 0)
        steps.append(f"rank {at} at {order.operation(head)} waits for {order.operation(before)} of rank {rank[before]}")
        at = int(rank[before])
    return "; ".join(steps[seen.index(at) :])
