"""A step with its links: transfers and collectives as operations of their own, which queue on links and share them.

Every rank has a lane for compute, one for its node's links and one for the network. A transfer to another rank is an
operation of the sender's link; so are the gather of a chunk's parameters before its first forward and the reduction of
its gradients with its last backward. Transfers queue behind transfers and collectives behind collectives, as streams
of a communication library do. Where both have something on a link, each gets half of it (max-min fairness of two
flows). While a link of a rank is busy its compute may run slower, by a stated factor.
"""

import numpy as np
from numpy.typing import NDArray

from planner.base import records
from planner.base.arrays import Array, Bools, Ints, record
from planner.base.errors import InputError, ScheduleError
from planner.schedules.dependencies import dependencies
from planner.schedules.operations import Order
from planner.step.timeline.engine import run_lanes

LANES = ("compute", "node links", "network")
STREAMS = (2, 3, 4, 5)
"""Transfers and collectives inside a node, then those on the network."""
MOST_ROUNDS = 300
F, B, I, W = range(4)


@record
class Collectives:
    """Seconds of each rank's data-parallel collectives, shape (p,), shared evenly by the rank's chunks.

    gather_overlap, reduce_overlap: the part of a chunk's collective that may run beside the chunk's own first forward
    or last backward, layer by layer, 0 to 1. on_network: they cross nodes.
    """

    gather_s: Array
    reduce_s: Array
    gather_overlap: float
    reduce_overlap: float
    on_network: bool


@record
class StreamTimeline:
    """Start and end in seconds of every operation: first those of the order, then the links'.

    lane: 0 to 2, a place in LANES; rank: whose; name: "compute", "send", "gather" or "reduce"; cause: for a link's
    operation the order's operation that it follows, or for a gather precedes. alone_s: what a link's operation would
    take if it shared the link with none.
    """

    order: Order
    start_s: Array
    end_s: Array
    lane: Ints
    rank: Ints
    name: NDArray[np.str_]
    cause: Ints
    alone_s: Array

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end, links included."""
        return float(self.end_s.max() - self.start_s.min())

    def busy_s(self, lane: int) -> Array:
        """Seconds that a lane of each rank is busy, shape (p,)."""
        lasts = np.where(self.lane == lane, self.alone_s if lane else self.end_s - self.start_s, 0.0)
        lasts[: len(self.order)][np.roll(self.order.fused, 1)] = 0.0
        return np.asarray(np.bincount(self.rank, weights=lasts, minlength=self.order.ranks))


@record
class _Links:
    """Operations of links: rank and lane that they run on, where in the rank's order, seconds, what they wait for."""

    rank: Ints
    lane: Ints
    place: Array
    seconds: Array
    before: Ints
    lag_s: Array
    name: NDArray[np.str_]
    cause: Ints


def run_streams(
    order: Order,
    duration_s: Array,
    transfer_s: float,
    transfer_on_network: bool,
    collectives: Collectives,
    slow_down: float = 0.0,
) -> StreamTimeline:
    """The timeline with its links.

    slow_down: compute runs 1 + slow_down times slower while a link of its rank is busy.

    Raises InputError if slow_down is below 0, ScheduleError if the order is incomplete, deadlocks, or does not settle.
    """
    if not 0.0 <= slow_down < np.inf:
        raise InputError(f"slow_down is {slow_down}; allowed: a number from 0")
    waits = dependencies(order)
    n, rank = len(order), order.rank
    sends, receivers = _sends(order, waits, transfer_s, 2 if transfer_on_network else 1)
    gathers, readers = _gathers(order, collectives)
    links = records.concatenate([gathers, sends, _reductions(order, collectives, duration_s)])
    # Link operations lie behind the compute's, stream by stream, each in the order of what it follows.
    stream = 2 * links.lane + (links.name != "send")
    sorted_links = np.lexsort((links.place, links.rank, stream))
    index = np.empty(len(sorted_links), dtype=np.int64)
    index[sorted_links] = n + np.arange(len(sorted_links))
    total = n + len(sorted_links)
    all_waits = np.full((total, 4), -1, dtype=np.int64)
    all_lags = np.zeros((total, 4))
    all_waits[:n, :3] = waits
    many = len(gathers.rank)
    all_waits[receivers[:, 0], receivers[:, 1]] = index[many : many + len(sends.rank)]
    all_waits[readers, 3] = index[:many]
    all_lags[readers, 3] = -collectives.gather_overlap * gathers.seconds
    all_waits[index, 0] = links.before
    all_lags[index, 0] = links.lag_s
    counts = [np.bincount(links.rank[stream == k], minlength=order.ranks) for k in STREAMS]
    lane_start = np.concatenate([order.start, n + np.cumsum(np.concatenate(counts))]).astype(np.int64)
    fused = np.concatenate([order.fused, np.zeros(total - n, dtype=bool)])
    alone = np.concatenate([duration_s, links.seconds[sorted_links]])
    owner = np.concatenate([rank, links.rank[sorted_links]])
    kind = np.concatenate([np.zeros(n, dtype=np.int64), stream[sorted_links]])

    start, end = _settled((lane_start, all_waits, all_lags), alone, fused, owner, kind, slow_down)
    return StreamTimeline(
        order=order, start_s=start, end_s=end, rank=owner,
        lane=np.concatenate([np.zeros(n, dtype=np.int64), links.lane[sorted_links]]),
        name=np.concatenate([np.full(n, "compute"), links.name[sorted_links]]),
        cause=np.concatenate([np.arange(n), links.cause[sorted_links]]), alone_s=alone,
    )  # fmt: skip


def _sends(order: Order, waits: Ints, transfer_s: float, lane: int) -> tuple[_Links, Ints]:
    """A transfer for every dependency between ranks, and which (operation, column) receives it."""
    rank = order.rank
    receivers = np.argwhere((waits >= 0) & (rank[waits] != rank[:, None]))
    sender = waits[receivers[:, 0], receivers[:, 1]]
    many = len(sender)
    links = _Links(
        rank=rank[sender], lane=np.full(many, lane), place=sender.astype(float), seconds=np.full(many, transfer_s),
        before=sender, lag_s=np.zeros(many), name=np.full(many, "send"), cause=sender,
    )  # fmt: skip
    return links, receivers


def _ends_of_chunks(order: Order, kinds: tuple[int, ...], last: bool) -> Ints:
    """The first or last operation of these kinds of every (rank, stage), flat indices."""
    at = np.flatnonzero(np.isin(order.kind, kinds))
    key = order.rank[at] * (int(order.stage.max()) + 1) + order.stage[at]
    at, key = (at[::-1], key[::-1]) if last else (at, key)
    return np.sort(at[np.unique(key, return_index=True)[1]])


def _gathers(order: Order, c: Collectives) -> tuple[_Links, Ints]:
    """A gather for every chunk that a rank holds, and the chunk's first forward, which waits for it."""
    readers = _ends_of_chunks(order, (F,), last=False) if np.any(c.gather_s > 0) else np.zeros(0, dtype=np.int64)
    rank = order.rank[readers]
    chunks = np.bincount(rank, minlength=order.ranks)
    many = len(readers)
    # Prefetched one chunk ahead: issued when the chunk before it starts.
    ahead = np.concatenate([[-1], readers[:-1]])
    first = np.concatenate([[True], rank[1:] != rank[:-1]])[:many]
    links = _Links(
        rank=rank,
        lane=np.full(many, 2 if c.on_network else 1),
        place=np.where(first, -1.0, ahead[:many] - 0.5),
        seconds=(c.gather_s / np.maximum(chunks, 1))[rank],
        before=np.full(many, -1),
        lag_s=np.zeros(many),
        name=np.full(many, "gather"),
        cause=readers,
    )
    return links, readers


def _reductions(order: Order, c: Collectives, duration_s: Array) -> _Links:
    """A reduction for every chunk that a rank holds, with its last weight gradient."""
    none = np.zeros(0, dtype=np.int64)
    after = _ends_of_chunks(order, (B, W), last=True) if np.any(c.reduce_s > 0) else none
    rank = order.rank[after]
    seconds = (c.reduce_s / np.maximum(np.bincount(rank, minlength=order.ranks), 1))[rank]
    many = len(after)
    return _Links(
        rank=rank,
        lane=np.full(many, 2 if c.on_network else 1),
        # Begun while its chunk's last backward runs, it is ahead of what that backward sends.
        place=np.asarray(after + (-0.5 if c.reduce_overlap > 0 else 0.5), dtype=np.float64),
        seconds=seconds,
        before=after,
        lag_s=-c.reduce_overlap * np.minimum(seconds, duration_s[after]),
        name=np.full(many, "reduce"),
        cause=after,
    )


def _settled(
    lanes: tuple[Ints, Ints, Array], alone: Array, fused: Bools, owner: Ints, kind: Ints, slow_down: float
) -> tuple[Array, Array]:
    """Starts and ends of operations whose seconds and what holds them up meanwhile agree. Raises ScheduleError."""
    start, end, _ = run_lanes(*lanes, alone, fused)
    if (end < 0).any():
        raise ScheduleError("the schedule deadlocks with its transfers; draw it with planner schedule to see where")
    lasting = alone
    for _ in range(MOST_ROUNDS):
        slower = alone + _held_up(start, end, owner, kind, slow_down)
        if np.max(np.abs(slower - lasting)) <= 1e-10 * float(end.max()):
            return start, end
        lasting = slower
        start, end, _ = run_lanes(*lanes, lasting, fused)
    raise ScheduleError(f"what shares a link does not settle in {MOST_ROUNDS} rounds; allowed: a shorter schedule")


def _held_up(start: Array, end: Array, owner: Ints, kind: Ints, slow_down: float) -> Array:
    """Seconds that every operation loses to what runs beside it: compute to its rank's links, a stream to the other."""
    out = np.zeros(len(start))
    streams = [np.flatnonzero(kind == k) for k in STREAMS]
    for one, other in (streams[:2], streams[2:]):
        if len(one) and len(other):
            out[one] = _beside(start, end, owner, one, other) / 2.0
            out[other] = _beside(start, end, owner, other, one) / 2.0
    if slow_down > 0.0:
        compute = np.flatnonzero(kind == 0)
        out[compute] = _beside(start, end, owner, compute, np.flatnonzero(kind)) * slow_down / (1.0 + slow_down)
    return out


def _beside(start: Array, end: Array, owner: Ints, mine: Ints, others: Ints) -> Array:
    """Seconds of each of my operations in which some other operation of its rank runs."""
    out = np.zeros(len(mine))
    for r in np.unique(owner[others]):
        at, there = np.flatnonzero(owner[mine] == r), others[owner[others] == r]
        there = there[np.argsort(start[there], kind="stable")]
        # Several streams' busy times as one: starts pushed behind what already ended.
        reach = np.maximum.accumulate(end[there])
        begin = np.maximum(start[there], np.concatenate([[0.0], reach[:-1]]))
        length = np.maximum(end[there] - begin, 0.0)
        edges = np.stack([begin, begin + length], axis=1).ravel()
        busy = np.stack([np.cumsum(length) - length, np.cumsum(length)], axis=1).ravel()
        until, since = (np.interp(x[mine[at]], edges, busy, left=0.0) for x in (end, start))
        out[at] = until - since
    return out
