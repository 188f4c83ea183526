"""`simulate(setup, layout)`: the exact timeline of one layout's step.

Every rank has lanes, each strictly in order: compute (the schedule's operations, then the update) and network (the
parameter gather, the gradient reduction). Stages carry their own layers, embedding and head. What the closed form
charges to a pass (exposed tensor collectives, sends, ZeRO-3 gathers) lasts here in that pass too, so for equal
stages both give the same step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from planner.base.arrays import Array
from planner.base.errors import LayoutError, ScheduleError
from planner.costs.layer.slices import even_slices
from planner.costs.memory.rank import left_alone, moved_layers, rank_memory
from planner.layouts import Layouts
from planner.schedules import Order, Pipeline, Schedule, get_schedule
from planner.schedules.operations import KINDS
from planner.setup import Setup
from planner.step.chunk_gathers import NAMES, chunk_seconds, has_chunks
from planner.step.data_comm import DataComm, data_comm
from planner.step.legality import check_legal
from planner.step.pipelines import layers_at_once
from planner.step.slice_program import times
from planner.step.step_costs import StepCosts, step_costs
from planner.step.timeline.chunk_links import ChunkLinks, chunk_links
from planner.step.timeline.loads import RankLoads, StageLoads, rank_loads, stage_loads
from planner.step.timeline.timeline import TimedOrder, Timeline, check_size, durations, run_all

TOGETHER = 250_000  # operations of layouts that are run side by side


@dataclass(frozen=True, kw_only=True, eq=False)
class StepSimulation:
    """A simulated step: the schedule's timeline and what surrounds it, by rank, seconds of shape (p,).

    steps: how many the timeline shows, more than one where the pipeline is never drained.
    gather_end_s: when a rank's first forward may start; reduce_s, tied_s: its gradients' reduction and
    the tied embedding's; reduce_start_s, reduce_end_s: when they run;
    update_end_s: its update. held_bytes: activations after each operation's start, (n,); static_bytes: the rest, (p,).
    moved_s: a stage's activations to the host, and again back, shape (stages,).
    """

    schedule: Schedule
    pipe: Pipeline
    steps: int
    loads: StageLoads
    timeline: Timeline
    gather_s: Array
    gather_hidden_s: Array
    reduce_s: Array
    tied_s: Array
    reduce_start_s: Array
    reduce_end_s: Array
    update_start_s: Array
    update_end_s: Array
    held_bytes: Array
    static_bytes: Array
    moved_s: Array
    step_time_s: float

    @property
    def peak_bytes(self) -> Array:
        """The most that each rank holds, shape (p,)."""
        return np.maximum.reduceat(self.held_bytes, self.timeline.order.start[:-1]) + self.static_bytes

    @property
    def exposed_comm_s(self) -> Array:
        """Seconds that each rank waits for its own data-parallel collectives, shape (p,)."""
        after = self.reduce_end_s - self.timeline.end_s[self.timeline.order.start[1:] - 1]
        return self.gather_s - self.gather_hidden_s + np.maximum(after, 0.0)

    @property
    def idle_s(self) -> Array:
        """Seconds of the step in which a rank neither computes nor waits for a collective, shape (p,)."""
        update = self.update_end_s - self.update_start_s
        return self.step_time_s - self.timeline.busy_s / self.steps - self.exposed_comm_s - update

    @property
    def bubble(self) -> float:
        """Idle share of all ranks' step."""
        return float(np.mean(np.maximum(self.idle_s, 0.0)) / self.step_time_s)

    @property
    def weight_versions(self) -> float:
        """The most versions of its weights that a rank holds."""
        return float(np.max(self.schedule.weight_versions(self.pipe, np.arange(self.pipe.p))))


def simulate(
    setup: Setup,
    layouts: Layouts,
    *,
    order: Order | None = None,
    slices: Sequence[int] | None = None,
) -> StepSimulation:
    """The timeline of one layout; `order` replaces the schedule's own (a user's schedule).

    slices: tokens of the sequence's slices (`planner.step.slice_program.cut`); None is that all take alike.

    Raises:
        LayoutError: more than one layout, or an illegal one.
        ScheduleError: an order that is incomplete or deadlocks.
    """
    model = setup.model
    if len(layouts) != 1:
        raise LayoutError(f"simulate takes one layout, got {len(layouts)}")
    check_legal(model, setup.cluster, layouts)
    schedule, pipe = _schedule(layouts)
    if order is not None:
        _check_fits(order, schedule, pipe, int(model.num_layers))
    costs = step_costs(setup, layouts)
    if schedule.steady and order is None:
        return _steady(costs, schedule, pipe)
    chosen = order or schedule.order(pipe)
    prepared = _prepare(costs, schedule, pipe, chosen, slices=_slices(setup, layouts, slices))
    return _finish(prepared, run_all([prepared.run])[0])


def simulate_all(setup: Setup, layouts: Layouts) -> tuple[Array, Array]:
    """Seconds of the step and bytes of the fullest rank of every layout, shape (n,), as `simulate` of each has them.

    Many run side by side, which is faster than one after the other, those of the same order together.

    Raises:
        LayoutError: an illegal layout.
    """
    check_legal(setup.model, setup.cluster, layouts)
    costs = step_costs(setup, layouts)
    seconds, peak_bytes = np.zeros(len(layouts)), np.zeros(len(layouts))
    sizes = [_schedule(layouts.take([i])) for i in range(len(layouts))]
    for group in _groups(sizes):
        for i, step in zip(group, _side_by_side(costs, sizes, group), strict=True):
            seconds[i], peak_bytes[i] = step.step_time_s, step.peak_bytes.max()
    return seconds, peak_bytes


_Size = tuple[Schedule, Pipeline]


def _order(schedule: Schedule, pipe: Pipeline) -> Order:
    return schedule.order(pipe) if schedule.quick else _generated(schedule, pipe)


@lru_cache(maxsize=16)
def _generated(schedule: Schedule, pipe: Pipeline) -> Order:
    """The order of a schedule that takes up to a tenth of a second to make: the next search asks for it again."""
    return schedule.order(pipe)


def _groups(sizes: list[_Size]) -> list[list[int]]:
    """Layouts to run side by side: those of one order one after another, of about `TOGETHER` operations in all."""
    long = [3 * pipe.m * pipe.v * pipe.k for _, pipe in sizes]
    order = sorted(range(len(sizes)), key=lambda i: (long[i], sizes[i][1].p, sizes[i][0].name))
    out: list[list[int]] = []
    total = 0
    for i in order:
        operations = long[i] * sizes[i][1].p
        if not out or total + operations > TOGETHER:
            out.append([])
            total = 0
        out[-1].append(i)
        total += operations
    return out


def _side_by_side(costs: StepCosts, sizes: list[_Size], rows: list[int]) -> Iterator[StepSimulation]:
    """The steps of some rows, in their order."""
    orders: dict[tuple[str, Pipeline], Order] = {}
    prepared: dict[int, _Prepared] = {}
    for i in rows:
        schedule, pipe = sizes[i]
        if not schedule.steady:
            same = (schedule.name, pipe)
            orders[same] = orders.get(same) or _order(schedule, pipe)
            prepared[i] = _prepare(costs.take([i]), schedule, pipe, orders[same])
    timelines = dict(zip(prepared, run_all([x.run for x in prepared.values()]), strict=True))
    for i in rows:
        yield _finish(prepared[i], timelines[i]) if i in prepared else _steady(costs.take([i]), *sizes[i])


@dataclass(frozen=True, kw_only=True)
class SliceLoads:
    """What each slice of a sequence takes, and its tokens, over those of the mean one of as many tokens; shape (k,)."""

    seconds: Array
    tokens: Array


def _slices(setup: Setup, layouts: Layouts, cut: Sequence[int] | None) -> SliceLoads | None:
    if cut is None:
        return None
    k, tokens = len(cut), np.asarray(cut, dtype=np.float64)
    mean = float(times(setup, layouts, even_slices(int(setup.model.seq_len), k)).mean())
    return SliceLoads(seconds=times(setup, layouts, cut) / mean, tokens=tokens / tokens.mean())


def _schedule(layouts: Layouts) -> _Size:
    """The schedule of one layout, and the size of its pipeline.

    Raises:
        ScheduleError: more operations than a timeline takes.
    """
    sizes = (layouts.pp, layouts.micro_batches, layouts.virtual_stages, layouts.sequence_slices)
    p, m, v, k = (int(x[0]) for x in sizes)
    pipe = Pipeline(p=p, m=m, v=v, k=k)
    check_size(pipe)
    return get_schedule(layouts.schedule_names[int(layouts.schedule[0])]), pipe


def _check_fits(order: Order, schedule: Schedule, pipe: Pipeline, num_layers: int) -> None:
    """Nothing, if a user's schedule has the layout's ranks, micro-batches and slices, and stages that share the layers.

    So must it have the head's passes where, and only where, the layout's schedule lets ranks share the head.

    Raises:
        ScheduleError: it has not.
    """
    stages, m, k = (int(x.max()) + 1 for x in (order.stage, order.micro_batch, order.slice))
    for name, has, asked in (
        ("ranks", order.ranks, pipe.p),
        ("micro-batches", m, pipe.m),
        ("sequence slices", k, pipe.k),
    ):
        if has != asked:
            raise ScheduleError(f"the schedule has {has} {name}; the layout has {asked}")
    if bool(np.any(order.kind >= KINDS.index("S"))) != (schedule.barriers > 0):
        raise ScheduleError(
            f"the layout's schedule is {schedule.name}; cells S, T, U and V are of vocab-1 and vocab-2, which need them"
        )
    if stages != pipe.p and num_layers % stages:
        raise ScheduleError(f"the schedule has {stages} stages, which don't divide the model's {num_layers} layers")


def _steady(costs: StepCosts, schedule: Schedule, pipe: Pipeline) -> StepSimulation:
    """A schedule that is never drained: the period that one more step adds, on the timeline of several.

    A slow rank with slack to the others sets the pace only once that is used up: more steps, until the period is no
    less than the work of any rank.
    """
    steps = 2 + -(-pipe.p // pipe.m)
    while True:
        both = [_prepare(costs, schedule, pipe, schedule.steps_order(pipe, n), steps=n) for n in (steps, steps + 1)]
        timelines = run_all([x.run for x in both])
        shorter, longer = (_finish(x, timeline) for x, timeline in zip(both, timelines, strict=True))
        ends = [x.timeline.end_s[x.timeline.order.start[1:] - 1] for x in (shorter, longer)]
        period = float((ends[1] - ends[0]).max())
        if period >= float(longer.timeline.busy_s.max()) / longer.steps * (1.0 - 1e-9):
            break
        steps *= 2
    collectives = float((longer.exposed_comm_s + longer.update_end_s - longer.update_start_s).max())
    return replace(longer, step_time_s=period + collectives)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Prepared:
    """A layout and an order of so many of its steps, with all that its timeline needs."""

    costs: StepCosts
    schedule: Schedule
    pipe: Pipeline
    steps: int
    loads: StageLoads
    ranks: RankLoads
    share: Array
    data: DataComm
    run: TimedOrder
    slices: SliceLoads | None


def _prepare(
    costs: StepCosts,
    schedule: Schedule,
    pipe: Pipeline,
    order: Order,
    *,
    steps: int = 1,
    slices: SliceLoads | None = None,
) -> _Prepared:
    """What an order of so many steps lasts, operation by operation. share: of the busiest rank's parameters."""
    k = pipe.k
    loads = stage_loads(costs, int(order.stage.max()) + 1)
    head = costs.head
    ranks = rank_loads(order, loads, schedule.copies, head is not None)
    held = ranks.chunks
    params = costs.case.ranks.rank(held.layers, ranks.first, ranks.last, held.modules, held.dense).total
    share = params / costs.busiest_params
    data = data_comm(costs, ranks.forward_s, ranks.backward_s)
    parts = (0.0,) * 4 if head is None else [float(x[0]) for x in head.parts_s]
    lasting = durations(order, loads.forward_s / k, loads.input_grad_s / k, loads.weight_grad_s / k, parts)
    if slices is not None:
        lasting = lasting * slices.seconds[order.slice]
    shown = np.maximum(share * data.gather_s - data.gather_hidden_s, 0.0)
    return _Prepared(
        costs=costs, schedule=schedule, pipe=pipe, steps=steps, loads=loads, ranks=ranks, share=share, data=data,
        slices=slices,
        run=TimedOrder(
            order=order, duration_s=lasting, release_s=shown, links=_links(costs, order, loads, lasting),
            head_lag_s=() if head is None else head.lags_s(0),
        ),
    )  # fmt: skip


def _links(costs: StepCosts, order: Order, loads: StageLoads, duration_s: Array) -> ChunkLinks | None:
    """What moves the sharded states of chunks, None where layers or the whole rank have their own collectives."""
    if not has_chunks(costs)[0]:
        return None
    one, layers = chunk_seconds(costs), loads.layers.astype(np.float64)
    gather, again, reduce, *taken = (layers * getattr(one, name)[0] for name in NAMES)
    ends = np.zeros(len(layers))
    ends[[0, -1]] = one.ends_s[0]
    prefetch = costs.case.framework.overlap_param_gather > 0.0
    return chunk_links(
        order, duration_s, (gather + ends, again), reduce + ends, (taken[0], taken[1], taken[2]), prefetch
    )


def _finish(x: _Prepared, timeline: Timeline) -> StepSimulation:
    """The step around a timeline: gathers before it, reductions and the update after it, what the ranks hold."""
    costs, ranks, order, schedule, shown = x.costs, x.ranks, x.run.order, x.schedule, x.run.release_s
    done = timeline.end_s[order.start[1:] - 1]
    if timeline.link_end_s is None:
        reduce = x.share * x.data.reduce_s
        reduce_start = done - np.minimum(x.data.reduce_hidden_s, reduce)
    else:
        reduce = np.maximum(timeline.link_end_s - done, 0.0)
        reduce_start = done
    tied = np.where(ranks.first != ranks.last, costs.traffic.tied_s, 0.0)
    reduce_end = reduce_start + reduce + tied
    # The norm of all gradients joins the ranks before the update, unless they validate afterwards.
    ready = reduce_end if schedule.unsynchronised_end else np.full(x.pipe.p, reduce_end.max())
    finish = ready + x.share * costs.update_s
    begin = timeline.start_s[order.start[:-1]] - shown
    held = costs.activations
    slack = (1.0 + costs.case.framework.fragmentation) / x.pipe.k
    chunks = x.loads.chunks
    alone, moved = (of(costs.case.layouts, chunks.layers, 1.0) for of in (left_alone, moved_layers))
    stays = (chunks.layers - moved) * held.layer[0]
    stage_bytes = (stays + alone * held.whole[0] + chunks.modules * held.modules[0]) * slack
    stage_bytes[0] += held.embedding[0] * slack / (1 if costs.head is None else x.pipe.p)
    static = rank_memory(
        costs.case, layers=ranks.chunks.layers, in_flight=0.0, first=ranks.first,
        last=ranks.last, modules=ranks.chunks.modules, dense=ranks.chunks.dense,
        copies=schedule.copies, versions=schedule.weight_versions(x.pipe, np.arange(x.pipe.p)),
        at_once=layers_at_once(costs.case.layouts, ranks.chunks.layers), held=held,
    ).total_bytes  # fmt: skip
    gather = x.share * x.data.gather_s
    tokens = 1.0 if x.slices is None else x.slices.tokens[order.slice]
    return StepSimulation(
        schedule=schedule, pipe=x.pipe, steps=x.steps, loads=x.loads, timeline=timeline, gather_s=gather,
        gather_hidden_s=gather - shown,
        reduce_s=reduce, tied_s=tied, reduce_start_s=reduce_start, reduce_end_s=reduce_end,
        update_start_s=ready, update_end_s=finish,
        held_bytes=timeline.held(lambda stage: stage_bytes[stage] * tokens, float(held.weight_grad_share[0])),
        static_bytes=static,
        moved_s=moved * (0.0 if costs.move_s is None else costs.move_s[0]),
        step_time_s=float((finish - begin).max()) if schedule.unsynchronised_end else float(finish.max()),
    )  # fmt: skip
