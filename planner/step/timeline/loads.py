"""Loads of layouts for their exact timelines: the seconds of each stage, and what each rank holds."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.base import records
from planner.base.arrays import Array, Ints, record
from planner.costs.memory.freed_in_turn import in_buckets
from planner.costs.memory.rank import rank_memory
from planner.hardware import Framework
from planner.layouts import Layouts
from planner.schedules import Order, Pipeline, Schedule
from planner.schedules.operations import KINDS
from planner.step.data_comm import DataComm, data_comm
from planner.step.given_stages import chunks_of
from planner.step.passes import passes
from planner.step.pipelines import layers_at_once, shares_ends
from planner.step.shared_ends import SharedHead
from planner.step.splits import Share
from planner.step.step_costs import StepCosts


@record
class StageLoads:
    """Loads of each stage for one micro-batch: seconds of shape (stages,), and what lies on it."""

    chunks: Share
    forward_s: Array
    input_grad_s: Array
    weight_grad_s: Array

    @property
    def layers(self) -> Ints:
        """Layers of the stages."""
        return np.asarray(self.chunks.layers, dtype=np.int64)


def head_of(costs: StepCosts, row: int) -> SharedHead | None:
    """A layout's part of a head that all ranks share; None if its ranks share none."""
    return costs.shared_head if costs.shared_head is not None and shares_ends(costs.case.layouts)[row] else None


def stage_loads(costs: StepCosts, rows: Sequence[int], counts: Sequence[int]) -> list[StageLoads]:
    """Layers and seconds of every stage of some layouts, by row, that have so many stages: computed as one table."""
    chunks = [_stages_of(costs, row, count) for row, count in zip(rows, counts, strict=True)]
    times = passes(costs.take(np.repeat(rows, counts)), records.concatenate(chunks), 1.0)
    each = zip(*(np.split(x, np.cumsum(counts)[:-1]) for x in times), strict=True)
    return [
        StageLoads(chunks=own, forward_s=f, input_grad_s=i, weight_grad_s=w)
        for own, (f, i, w) in zip(chunks, each, strict=True)
    ]


def _stages_of(costs: StepCosts, row: int, stages: int) -> Share:
    """What lies on each stage of a layout."""
    layouts, at = costs.case.layouts, slice(row, row + 1)
    one = records.take((layouts, costs.stages, costs.case.model), at, len(layouts))
    index = np.arange(stages)
    embedding, head = 1.0 * (index == 0), 1.0 * (index == stages - 1)
    if head_of(costs, row) is not None:  # each rank's part of the embedding; the head's are operations of their own
        p = int(layouts.pp[row])
        embedding, head = (index < p) / p, np.zeros(stages)
    return replace(chunks_of(*one, stages), first=embedding, last=head)


@record
class RankLoads:
    """Loads of each rank in one copy of the weights, shape (p,): its share, and its passes of one micro-batch."""

    share: Share
    forward_s: Array
    backward_s: Array


def rank_loads(order: Order, loads: StageLoads, copies: int, shared: bool = False) -> RankLoads:
    """Loads of an order's ranks; with copies of the weights, of one copy. shared: embedding and head alike."""
    stages = len(loads.forward_s)
    holds = np.zeros((order.ranks, stages))
    holds[order.rank, order.stage] = 1.0 / copies
    backward = loads.input_grad_s + loads.weight_grad_s
    first, last = (np.full(order.ranks, 1.0 / order.ranks) if shared else holds[:, i] for i in (0, -1))
    return RankLoads(
        share=replace(loads.chunks.on(holds), first=first, last=last),
        forward_s=holds @ loads.forward_s, backward_s=holds @ backward,
    )  # fmt: skip


@record
class OwnStates:
    """What ranks have of the whole model's states, and of what moves them; arrays of shape (p,).

    share: parameters, of the busiest rank's. shown_s: of the gather, what shows before the first pass. tied_s: the sum
    of a tied embedding's gradients. static_bytes: all memory but activations; gradients_bytes: the gradients of it.
    """

    share: Array
    data: DataComm
    shown_s: Array
    tied_s: Array
    update_s: Array
    static_bytes: Array
    gradients_bytes: Array


def own_states(
    costs: StepCosts, rows: Sequence[int], sizes: Sequence[tuple[Schedule, Pipeline]], loads: Sequence[RankLoads]
) -> list[OwnStates]:
    """The states of the ranks of some layouts, by row, with such pipelines and loads: computed as one table."""
    ranks = [pipe.p for _, pipe in sizes]
    of = costs.take(np.repeat(rows, ranks))
    shares = records.concatenate([x.share for x in loads])
    forward_s, backward_s = (np.concatenate([getattr(x, name) for x in loads]) for name in ("forward_s", "backward_s"))
    own = of.case.ranks.rank(**vars(shares))
    share, data = own.total / of.busiest_params, data_comm(of, forward_s, backward_s, shares.layers)
    memory = rank_memory(
        of.case, **vars(shares), in_flight=0.0,
        copies=np.repeat([schedule.copies for schedule, _ in sizes], ranks),
        versions=np.concatenate([schedule.weight_versions(pipe, np.arange(pipe.p)) for schedule, pipe in sizes]),
        at_once=layers_at_once(of.case.layouts, shares.layers), held=of.activations, own=own,
    )  # fmt: skip
    every = OwnStates(
        share=share, data=data, shown_s=np.maximum(share * data.gather_s - data.gather_hidden_s, 0.0),
        tied_s=np.where(shares.first != shares.last, of.traffic.tied_s, 0.0), update_s=of.update_s,
        static_bytes=memory.total_bytes, gradients_bytes=memory.gradients_bytes,
    )  # fmt: skip
    every = records.mapped(every, lambda x: np.broadcast_to(x, share.shape))
    return [records.take(every, slice(end - p, end)) for p, end in zip(ranks, np.cumsum(ranks), strict=True)]


def gradients_to_come(framework: Framework, one: Layouts, order: Order, gradients_bytes: Array) -> Array:
    """Bytes of a rank's gradients that its first backward pass has yet to make, by operation, shape (n,).

    None where a framework's gradients lie in buckets or in a buffer that stays, or are counted from the start.
    one: the table of the layout alone.
    """
    if not framework.freed_in_turn or framework.gradient_passes > 0 or in_buckets(one)[0]:
        return np.zeros(len(order))
    backward = np.cumsum(np.isin(order.kind, [KINDS.index(kind) for kind in "BI"]))
    before = np.concatenate([[0], backward])[order.start[:-1]]
    return np.asarray(np.where(backward - before[order.rank] <= 1, gradients_bytes[order.rank], 0.0))
