"""`simulate(model, cluster, framework, layout)`: the exact timeline of one layout's step.

Every rank has lanes, each strictly in order: compute (the schedule's operations, then the update) and network (the
parameter gather, the gradient reduction). Stages carry their own layers, embedding and head. What the closed form
charges to a pass (exposed tensor collectives, sends, ZeRO-3 gathers) lasts here in that pass too, so for equal
stages both give the same step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.costs import slices
from planner.costs.memory import embedding_bytes, rank_memory, rank_parameters, saved_bytes, weight_grad_share
from planner.errors import LayoutError, ScheduleError
from planner.hardware import Cluster, Framework
from planner.layouts import Layouts
from planner.legality import check_legal
from planner.models import Transformer
from planner.schedules import Order, Pipeline, Schedule, get_schedule
from planner.simulation.timeline import Timeline, check_size, durations, run
from planner.step_costs import StepCosts, data_comm, step_costs

__all__ = ["StageLoads", "StepSimulation", "simulate", "stage_loads"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class StageLoads:
    """What each stage lasts for one micro-batch: seconds of shape (stages,), and its layers."""

    layers: NDArray[np.int64]
    forward_s: Array
    input_grad_s: Array
    weight_grad_s: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class StepSimulation:
    """A simulated step: the schedule's timeline and what surrounds it, by rank, seconds of shape (p,).

    steps: how many the timeline shows, more than one where the pipeline is never drained.
    gather_end_s: when a rank's first forward may start; reduce_s, tied_s: its gradients' reduction and
    the tied embedding's; reduce_start_s, reduce_end_s: when they run;
    update_end_s: its update. held_bytes: activations after each operation's start, (n,); static_bytes: the rest, (p,).
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


def stage_loads(model: Transformer, layouts: Layouts, costs: StepCosts, stages: int) -> StageLoads:
    """Layers and seconds of every stage of one layout (a table of length one)."""
    pick = {name: float(getattr(costs.ends, name)[0]) for name in vars(costs.ends)}
    layer_f, layer_b = costs.layer.forward_s[0], costs.layer.backward_s[0]
    weight = float(costs.cost.weight_grad_s[0])
    if stages == layouts.pp[0]:
        layers = costs.stages.layers(0, stages)
    else:
        layers = np.full(stages, int(model.num_layers) // stages)
    forward, backward = layers * layer_f, layers * layer_b
    # Collectives of the ends: half with the embedding, half with the head, half of each in either pass.
    quarter = float(costs.traffic.ends_s[0]) / 4.0
    forward[0] += pick["embedding_forward_s"] + quarter
    backward[0] += pick["embedding_backward_s"] + quarter
    forward[-1] += pick["head_forward_s"] + quarter
    backward[-1] += pick["head_backward_s"] + quarter
    # The head's gradient is two equal products, one of them the weight's.
    weights = np.asarray(layers * weight, dtype=np.float64)
    weights[-1] += pick["head_backward_s"] / 2.0
    send = float(costs.send_s[0])
    # The first stage's forward and the last one's backward receive nothing.
    forward[1:] += send
    backward[:-1] += send
    return StageLoads(layers=layers, forward_s=forward, input_grad_s=backward - weights, weight_grad_s=weights)


def simulate(
    model: Transformer,
    cluster: Cluster,
    framework: Framework,
    layouts: Layouts,
    *,
    order: Order | None = None,
    even_slices: bool = False,
) -> StepSimulation:
    """The timeline of one layout; `order` replaces the schedule's own (a user's schedule).

    even_slices: slices of the same number of tokens, of which later ones take longer, instead of equal work.

    Raises:
        LayoutError: more than one layout, or an illegal one.
        ScheduleError: an order that is incomplete or deadlocks.
    """
    if len(layouts) != 1:
        raise LayoutError(f"simulate takes one layout, got {len(layouts)}")
    check_legal(model, cluster, layouts)
    schedule = get_schedule(layouts.row(0)["schedule"])
    sizes = (layouts.pp, layouts.micro_batches, layouts.virtual_stages, layouts.sequence_slices)
    p, m, v, k = (int(x[0]) for x in sizes)
    pipe = Pipeline(p=p, m=m, v=v, k=k)
    check_size(pipe)
    if order is not None:
        _check_fits(order, pipe, int(model.num_layers))
    if schedule.steady and order is None:
        return _steady(model, cluster, framework, layouts, schedule, pipe)
    return _one_order(model, cluster, framework, layouts, schedule, pipe, order or schedule.order(pipe), 1, even_slices)


def _check_fits(order: Order, pipe: Pipeline, num_layers: int) -> None:
    """Nothing, if a user's schedule has the layout's ranks, micro-batches and slices, and stages that share the layers.

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
    if stages != pipe.p and num_layers % stages:
        raise ScheduleError(f"the schedule has {stages} stages, which don't divide the model's {num_layers} layers")


def _steady(
    model: Transformer, cluster: Cluster, framework: Framework, layouts: Layouts, schedule: Schedule, pipe: Pipeline
) -> StepSimulation:
    """A schedule that is never drained: the period that one more step adds, on the timeline of several.

    A slow rank with slack to the others sets the pace only once that is used up: more steps, until the period is no
    less than the work of any rank.
    """
    steps = 2 + -(-pipe.p // pipe.m)
    while True:
        shorter, longer = (
            _one_order(model, cluster, framework, layouts, schedule, pipe, schedule.steps_order(pipe, n), n, False)
            for n in (steps, steps + 1)
        )
        ends = [x.timeline.end_s[x.timeline.order.start[1:] - 1] for x in (shorter, longer)]
        period = float((ends[1] - ends[0]).max())
        if period >= float(longer.timeline.busy_s.max()) / longer.steps * (1.0 - 1e-9):
            break
        steps *= 2
    collectives = float((longer.exposed_comm_s + longer.update_end_s - longer.update_start_s).max())
    return replace(longer, step_time_s=period + collectives)


def _one_order(
    model: Transformer,
    cluster: Cluster,
    framework: Framework,
    layouts: Layouts,
    schedule: Schedule,
    pipe: Pipeline,
    order: Order,
    steps: int,
    even_slices: bool,
) -> StepSimulation:
    """The timeline of an order of so many steps."""
    p, k = pipe.p, pipe.k
    costs = step_costs(model, cluster, framework, layouts)
    loads = stage_loads(model, layouts, costs, int(order.stage.max()) + 1)
    ranks = _ranks(order, loads, schedule.copies)
    params = rank_parameters(model, layouts, ranks.layers, ranks.first, ranks.last).total
    share = params / costs.busiest_params
    forward, backward = ranks.layers * costs.layer.forward_s, ranks.layers * costs.layer.backward_s
    data = data_comm(framework, layouts, costs, forward, backward)
    gather = share * data.gather_s
    shown = np.maximum(gather - data.gather_hidden_s, 0.0)
    lasting = durations(order, loads.forward_s / k, loads.input_grad_s / k, loads.weight_grad_s / k)
    if even_slices:
        tokens = slices.even_slices(int(model.seq_len), k)
        lasting = lasting * (k * slices.slice_shares(model, tokens))[order.slice]
    timeline = run(order, lasting, release_s=shown)
    done = timeline.end_s[order.start[1:] - 1]
    reduce = share * data.reduce_s
    reduce_start = done - np.minimum(data.reduce_hidden_s, reduce)
    tied = np.where(ranks.first + ranks.last > 0, costs.traffic.tied_s, 0.0)
    reduce_end = reduce_start + reduce + tied
    # The norm of all gradients joins the ranks before the update, unless they validate afterwards.
    ready = reduce_end if schedule.unsynchronised_end else np.full(p, reduce_end.max())
    finish = ready + share * costs.update_s
    begin = timeline.start_s[order.start[:-1]] - shown
    share_kept = float(weight_grad_share(costs.device, model, layouts)[0])
    slack = (1.0 + framework.fragmentation) / k
    stage_bytes = loads.layers * saved_bytes(costs.device, model, layouts)[0][0] * slack
    stage_bytes[0] += embedding_bytes(costs.device, model, layouts)[0] * slack
    static = rank_memory(
        costs.device, framework, model, layouts, layers=ranks.layers, in_flight=0.0, first=ranks.first,
        last=ranks.last, copies=schedule.copies, versions=schedule.weight_versions(pipe, np.arange(p)),
    ).total_bytes  # fmt: skip
    return StepSimulation(
        schedule=schedule, pipe=pipe, steps=steps, loads=loads, timeline=timeline, gather_s=gather,
        gather_hidden_s=gather - shown,
        reduce_s=reduce, tied_s=tied, reduce_start_s=reduce_start, reduce_end_s=reduce_end,
        update_start_s=ready, update_end_s=finish,
        held_bytes=timeline.held(lambda stage: stage_bytes[stage], share_kept), static_bytes=static,
        step_time_s=float((finish - begin).max()) if schedule.unsynchronised_end else float(finish.max()),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Ranks:
    """Layers that each rank holds of one copy of the weights, and its shares of embedding and head; shape (p,)."""

    layers: Array
    first: Array
    last: Array


def _ranks(order: Order, loads: StageLoads, copies: int) -> _Ranks:
    stages = len(loads.layers)
    holds = np.zeros((order.ranks, stages))
    holds[order.rank, order.stage] = 1.0 / copies
    return _Ranks(layers=holds @ loads.layers, first=holds[:, 0], last=holds[:, -1])
