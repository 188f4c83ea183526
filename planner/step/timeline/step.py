"""`simulate(setup, layout)`: the exact timeline of one layout's step.

Every rank has lanes, each strictly in order: compute (the schedule's operations, then the update) and network (the
parameter gather, the gradient reduction). Stages carry their own layers, embedding and head. What the closed form
charges to a pass (exposed tensor collectives, sends, ZeRO-3 gathers) lasts here in that pass too, so for equal
stages both give the same step.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.base import records
from planner.base.arrays import Array, record
from planner.base.errors import LayoutError, ScheduleError
from planner.costs.layer.slices import even_slices
from planner.costs.memory.chosen_layers import layers_not_recomputed, offloaded_layers
from planner.costs.memory.rank import Activations
from planner.hardware import Framework
from planner.layouts import Layouts
from planner.schedules import Order, Pipeline, Schedule, get_schedule
from planner.schedules.operations import KINDS
from planner.setup import Setup
from planner.step.chunk_gathers import NAMES, ChunkSeconds, chunk_seconds, has_chunks
from planner.step.legality import check_legal
from planner.step.slice_program import times
from planner.step.step_costs import StepCosts, step_costs
from planner.step.timeline.chunk_links import ChunkLinks, chunk_links
from planner.step.timeline.loads import (
    OwnStates,
    RankLoads,
    StageLoads,
    gradients_to_come,
    head_of,
    own_states,
    rank_loads,
    stage_loads,
)
from planner.step.timeline.timeline import TimedOrder, Timeline, check_size, durations, run_all

Sized = tuple[Schedule, Pipeline]


@record
class StepSimulation:
    """A simulated step: the schedule's timeline and what surrounds it, by rank, seconds of shape (p,).

    steps: how many the timeline shows, more than one where the pipeline is never drained. gather_s: the gather of a
    rank's parameters, gather_hidden_s: what of it hides; reduce_s, tied_s: its gradients' reduction and the tied
    embedding's. held_bytes: activations after each operation's start, (n,); static_bytes: the rest, (p,). moved_s: a
    stage's activations to the host, and again back, shape (stages,).
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
    setup: Setup, layouts: Layouts, *, order: Order | None = None, slices: Sequence[int] | None = None
) -> StepSimulation:
    """The timeline of one layout; `order` replaces the schedule's own (a user's schedule).

    slices: tokens of the sequence's slices (`planner.step.slice_program.cut`); None is that all take alike.

    Raises LayoutError for more than one layout, or an illegal one; ScheduleError for an order that is incomplete or
    deadlocks.
    """
    model = setup.model
    if len(layouts) != 1:
        raise LayoutError(f"simulate takes one layout, got {len(layouts)}")
    check_legal(model, setup.cluster, layouts, scheduled=order is None)
    schedule, pipe = schedule_of(layouts)
    if order is not None:
        _check_fits(order, schedule, pipe, int(model.num_layers))
    costs = step_costs(setup, layouts)
    if schedule.steady and order is None:
        return steady_step(costs, 0, schedule, pipe)
    chosen, cut = order or schedule.order(pipe), _slices(setup, layouts, slices)
    [prepared] = prepare(costs, [OrderedSteps(row=0, schedule=schedule, pipe=pipe, order=chosen, slices=cut)])
    return finish(prepared, run_all([prepared.run])[0])


@record
class SliceLoads:
    """Each slice's seconds and tokens, over the mean of as many even slices; shape (k,)."""

    seconds: Array
    tokens: Array


def _slices(setup: Setup, layouts: Layouts, cut: Sequence[int] | None) -> SliceLoads | None:
    if cut is None:
        return None
    k, tokens = len(cut), np.asarray(cut, dtype=np.float64)
    mean = float(times(setup, layouts, even_slices(int(setup.model.seq_len), k)).mean())
    return SliceLoads(seconds=times(setup, layouts, cut) / mean, tokens=tokens / tokens.mean())


def schedule_of(layouts: Layouts, i: int = 0) -> Sized:
    """The schedule of layout i, and the size of its pipeline.

    Raises ScheduleError for more operations than a timeline takes.
    """
    sizes = (layouts.pp, layouts.micro_batches, layouts.virtual_stages, layouts.sequence_slices)
    p, m, v, k = (int(x[i]) for x in sizes)
    pipe = Pipeline(p=p, m=m, v=v, k=k)
    check_size(pipe)
    return get_schedule(layouts.schedule_names[int(layouts.schedule[i])]), pipe


def _check_fits(order: Order, schedule: Schedule, pipe: Pipeline, num_layers: int) -> None:
    """Raises ScheduleError unless a user's schedule has the layout's ranks, micro-batches and slices, stages that share
    the layers, and the head's passes where, and only where, the layout's schedule lets ranks share the head.
    """
    stages, m, k = (int(x.max()) + 1 for x in (order.stage, order.micro_batch, order.slice))
    sizes = {"ranks": (order.ranks, pipe.p), "micro-batches": (m, pipe.m), "sequence slices": (k, pipe.k),
             "virtual stages": (max(stages // order.ranks, 1), pipe.v)}  # fmt: skip
    for name, (has, wanted) in sizes.items():
        if has != wanted:
            raise ScheduleError(f"the schedule has {has} {name}; the layout has {wanted}")
    if bool(np.any(order.kind >= KINDS.index("S"))) != (schedule.barriers > 0):
        raise ScheduleError(
            f"the layout's schedule is {schedule.name}; cells S, T, U and V are of those that share a head"
        )
    if stages != pipe.p and num_layers % stages:
        raise ScheduleError(f"the schedule has {stages} stages, which don't divide the model's {num_layers} layers")


@record
class OrderedSteps:
    """What a timeline is made of: a layout, by its row of a table, and the order of so many of its steps."""

    row: int
    schedule: Schedule
    pipe: Pipeline
    order: Order
    steps: int = 1
    slices: SliceLoads | None = None


def steady_step(costs: StepCosts, row: int, schedule: Schedule, pipe: Pipeline) -> StepSimulation:
    """A schedule that is never drained: the period that one more step adds, on the timeline of several.

    Between two steps each rank, and it alone, waits for its own collectives and update: a quick rank may do so while
    it would wait for the others. A slow rank with slack to the others sets the pace only once that is used up: more
    steps, until the period is no less than the work of any rank.
    """
    steps = 2 + -(-pipe.p // pipe.m)
    while True:
        several = [
            OrderedSteps(row=row, schedule=schedule, pipe=pipe, order=schedule.steps_order(pipe, n), steps=n)
            for n in (steps, steps + 1)
        ]
        both = prepare(costs, several)
        longer = finish(both[1], run_all([both[1].run])[0])
        pause_s = longer.exposed_comm_s + longer.update_end_s - longer.update_start_s
        ends = [x.end_s[x.order.start[1:] - 1] for x in run_all([_paused(y, pause_s) for y in both])]
        period = float((ends[1] - ends[0]).max())
        if period >= float((longer.timeline.busy_s / longer.steps + pause_s).max()) * (1.0 - 1e-9):
            return replace(longer, step_time_s=period)
        steps *= 2


@record
class PreparedStep:
    """A job with all that its timeline, and the step around that, need.

    one: the table of its layout alone, and `held` its activations. sharers: ranks that share the embedding.
    """

    job: OrderedSteps
    framework: Framework
    one: Layouts
    held: Activations
    sharers: int
    offload_layer_s: float
    loads: StageLoads
    ranks: RankLoads
    states: OwnStates
    run: TimedOrder


def prepare(costs: StepCosts, jobs: Sequence[OrderedSteps]) -> list[PreparedStep]:
    """Jobs of layouts of one table, timed operation by operation. Their ranks and stages are computed together."""
    case, rows, bare = costs.case, [job.row for job in jobs], replace(costs, ranks=())  # those of the closed form
    heads = [head_of(costs, row) for row in rows]
    loads = stage_loads(bare, rows, [int(job.order.stage.max()) + 1 for job in jobs])
    ranks = [
        rank_loads(job.order, own, job.schedule.copies, head is not None)
        for job, own, head in zip(jobs, loads, heads, strict=True)
    ]
    states = own_states(bare, rows, [(job.schedule, job.pipe) for job in jobs], ranks)
    chunked = np.broadcast_to(has_chunks(costs), len(case.layouts))
    chunks = chunk_seconds(costs)
    offload_s = 0.0 if costs.offload_layer_s is None else costs.offload_layer_s
    out = []
    for job, own, of_ranks, mine, head in zip(jobs, loads, ranks, states, heads, strict=True):
        row, k = job.row, job.pipe.k
        one, held, gathers, offload = records.take(
            (case.layouts, costs.activations, chunks, np.broadcast_to(offload_s, len(case.layouts))),
            slice(row, row + 1), len(case.layouts),
        )  # fmt: skip
        parts = (0.0,) * 4 if head is None else [float(np.ravel(x)[row]) for x in head.parts_s]
        lasting = durations(job.order, own.forward_s / k, own.input_grad_s / k, own.weight_grad_s / k, parts)
        if job.slices is not None:
            lasting = lasting * job.slices.seconds[job.order.slice]
        links = _links(gathers, case.framework, job.order, own, lasting) if chunked[row] else None
        run = TimedOrder(
            order=job.order, duration_s=lasting, release_s=mine.shown_s, links=links,
            head_lag_s=() if head is None else head.lags_s(row),
        )  # fmt: skip
        out.append(PreparedStep(
            job=job, framework=case.framework, one=one, held=held, sharers=1 if head is None else job.pipe.p,
            offload_layer_s=float(offload[0]), loads=own, ranks=of_ranks, states=mine, run=run,
        ))  # fmt: skip
    return out


def _paused(x: PreparedStep, pause_s: Array) -> TimedOrder:
    """Several steps, with an operation of its link between two steps for which a rank waits; pause_s: shape (p,)."""
    order = x.run.order
    step = order.rank * x.job.steps + order.micro_batch // x.job.pipe.m
    last = (
        (len(step) - 1 - np.unique(step[::-1], return_index=True)[1]).reshape(order.ranks, x.job.steps)[:, :-1].ravel()
    )
    nothing, none = np.zeros((len(last), 4)), np.full((len(last), 4), -1)
    links = ChunkLinks(
        rank=order.rank[last], place=last.astype(np.float64), seconds=pause_s[order.rank[last]],
        waits=np.where(np.arange(4) > 0, none, last[:, None]), lag_s=nothing, first=last + 1,
        first_lag_s=nothing[:, 0], before=none[:, 0], held_s=nothing[:, 0],
    )  # fmt: skip
    return replace(x.run, links=links)


def _links(one: ChunkSeconds, framework: Framework, order: Order, loads: StageLoads, duration_s: Array) -> ChunkLinks:
    """Collectives of the sharded states of one layout's chunks."""
    layers = loads.layers.astype(np.float64)
    gather, again, reduce, *taken = (layers * getattr(one, name)[0] for name in NAMES)
    ends = np.zeros(len(layers))
    ends[[0, -1]] = one.ends_s[0]
    prefetch = framework.overlap_param_gather > 0.0
    return chunk_links(
        order, duration_s, (gather + ends, again), reduce + ends, (taken[0], taken[1], taken[2]), prefetch
    )


def finish(x: PreparedStep, timeline: Timeline) -> StepSimulation:
    """The step around a timeline: gathers before it, reductions and the update after it, what the ranks hold."""
    job, own, share = x.job, x.states, x.ranks.share
    order, schedule = job.order, job.schedule
    done = timeline.end_s[order.start[1:] - 1]
    if timeline.link_end_s is None:
        reduce = own.share * own.data.reduce_s
        reduce_start = done - np.minimum(own.data.reduce_hidden_s, reduce)
    else:
        reduce = np.maximum(timeline.link_end_s - done, 0.0)
        reduce_start = done
    reduce_end = reduce_start + reduce + own.tied_s
    # The norm of all gradients joins the ranks before the update, unless they validate afterwards.
    ready = reduce_end if schedule.unsynchronised_end else np.full(job.pipe.p, reduce_end.max())
    end = ready + own.share * own.update_s
    begin = timeline.start_s[order.start[:-1]] - own.shown_s
    held, chunks, slack = x.held, x.loads.chunks, (1.0 + x.framework.fragmentation) / job.pipe.k
    whole = layers_not_recomputed(x.one, chunks.layers, 1.0)
    moved = offloaded_layers(x.one, chunks.layers, 1.0)
    stays = chunks.layers * held.layer[0] - moved * held.moved[0]
    stage_bytes = (stays + whole * held.whole[0] + chunks.modules * held.modules[0]) * slack
    stage_bytes[0] += held.embedding[0] * slack / x.sharers
    loss = held.loss[0] * (schedule.losses_wait and x.framework.freed_in_turn)  # of one it is in the logits
    stage_bytes[-1] += loss * slack
    gather = own.share * own.data.gather_s
    tokens = 1.0 if job.slices is None else job.slices.tokens[order.slice]
    return StepSimulation(
        schedule=schedule, pipe=job.pipe, steps=job.steps, loads=x.loads, timeline=timeline, gather_s=gather,
        gather_hidden_s=gather - own.shown_s,
        reduce_s=reduce, tied_s=own.tied_s, reduce_start_s=reduce_start, reduce_end_s=reduce_end,
        update_start_s=ready, update_end_s=end,
        held_bytes=timeline.held(stage_bytes[order.stage] * tokens, float(held.weight_grad_share[0]))
        - gradients_to_come(x.framework, x.one, order, own.gradients_bytes),
        static_bytes=own.static_bytes - loss * np.asarray(share.last),
        moved_s=moved * x.offload_layer_s,
        step_time_s=float((end - begin).max()) if schedule.unsynchronised_end else float(end.max()),
    )  # fmt: skip
