"""Loads of one layout for its exact timeline: the seconds of each stage, and what each rank holds."""

from dataclasses import replace

import numpy as np

from planner.base.arrays import Array, Ints, record
from planner.costs.case import Case
from planner.costs.memory.freed_in_turn import in_buckets
from planner.schedules import Order
from planner.schedules.operations import KINDS
from planner.step.given_stages import chunks_of
from planner.step.passes import passes
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


def stage_loads(costs: StepCosts, stages: int) -> StageLoads:
    """Layers and seconds of every stage of one layout (a table of length one)."""
    layouts = costs.case.layouts
    chunks = chunks_of(layouts, costs.stages, costs.case.model, stages)
    index = np.arange(stages)
    embedding, head = 1.0 * (index == 0), 1.0 * (index == stages - 1)
    if costs.shared_head is not None:  # each rank's part of the embedding; the head's are operations of their own
        p = int(layouts.pp[0])
        embedding, head = (index < p) / p, np.zeros(stages)
    chunks = replace(chunks, first=embedding, last=head)
    forward, input_grad, weight_grad = passes(costs, chunks, 1.0)
    return StageLoads(chunks=chunks, forward_s=forward, input_grad_s=input_grad, weight_grad_s=weight_grad)


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


def gradients_to_come(case: Case, order: Order, gradients_bytes: Array) -> Array:
    """Bytes of a rank's gradients that its first backward pass has yet to make, by operation, shape (n,).

    None where a framework's gradients lie in buckets or in a buffer that stays, or are counted from the start.
    """
    layouts = case.layouts
    framework = case.framework
    if not framework.freed_in_turn or framework.gradient_passes > 0 or in_buckets(layouts)[0]:
        return np.zeros(len(order))
    backward = np.cumsum(np.isin(order.kind, [KINDS.index(kind) for kind in "BI"]))
    before = np.concatenate([[0], backward])[order.start[:-1]]
    return np.asarray(np.where(backward - before[order.rank] <= 1, gradients_bytes[order.rank], 0.0))
