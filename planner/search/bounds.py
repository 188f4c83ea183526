"""Bounds below what a row of a grid or table can do, whatever is chosen for it: cheap, and enough to discard many rows.

Exact: a search discards a row only where every layout of it is known to be out of the answer (`shortlist`).
"""

from dataclasses import replace
from functools import reduce

import numpy as np

from planner.base import records
from planner.base.arrays import Array, record
from planner.costs.memory.rank import rank_memory
from planner.costs.one_layer import OneLayer
from planner.layouts import Layouts, Split
from planner.models import mix
from planner.step.pipelines import by_schedule, layers_at_once, pipeline

ROUNDING = 1.0 - 1e-9  # sums of bytes in another order differ by less; a step has its update beside
FREE = (
    "recompute",
    "recompute_layers",
    "sequence_parallel",
    "layer_split",
)  # choices whose least is taken before the rows'


@record
class Bounds:
    """Lower bounds for each row of a grid, arrays of shape (rows,), on the step without its bubble and on memory."""

    step_time_s: Array
    memory_bytes: Array


def bounds(layouts: Layouts, one: OneLayer) -> Bounds:
    """The least step and the least memory of each row of a grid of one model.

    Step: the layers' own work, and of their collectives the tensor and expert ranks' as far as no overlap can hide
    them, shared evenly by the ranks. Memory: the states of an even share of the layers, sharded as far as a choice
    allows, and their activations, without embedding and head. Split evenly, the first rank has that share; else the
    first, the second or the last has, and the least activations that any of the three holds.
    """
    framework, model = one.case.framework, one.case.model
    spread, cost, wire = one.distinct.spread, one.cost, one.traffic
    # Where some layers alone are recomputed, what of a backward pass all of them have is not known here.
    known = one.case.layouts.recompute_layers == 0
    own = cost.forward_s + cost.backward_s - np.where(known, 0.0, cost.recompute_s)
    tensor = wire.layer_forward_s + known * max(1.0 - framework.overlap_tensor_backward, 0.0) * wire.layer_backward_s
    shown = (1.0 - framework.overlap_tensor) * framework.tensor_slowdown * tensor
    experts = (1.0 - framework.overlap_experts) * (wire.expert_forward_s + known * wire.expert_backward_s)
    work = spread(_least(own) + _least(shown) + _least(experts))
    share = np.asarray(model.num_layers / layouts.pp)
    by_cost = np.any(layouts.layer_split != Split.EVEN)
    flight, copies = np.empty(layouts.shape[-1]), np.empty(layouts.shape[-1])
    for schedule, rows in by_schedule(layouts):
        pipe = pipeline(layouts, rows)
        ranks = (0, np.minimum(1, pipe.p - 1), pipe.p - 1) if by_cost else (0,)
        flight[rows] = reduce(np.minimum, [schedule.in_flight(pipe, rank) for rank in ranks])
        copies[rows] = schedule.copies
    held = one.activations
    least = records.mapped(held, lambda x: spread(_least(x)))
    least = replace(least, working=spread(_least(held.working - held.again)), whole=np.zeros(1), again=np.zeros(1))
    free = {name: getattr(layouts, name) for name in FREE}
    sharded = replace(layouts, **{name: x.ravel()[:1] for name, x in free.items() if x.ndim > 1})
    leading = mix.leading_dense(model)  # these may all be that rank's, where they hold less than layers with experts
    case = one.case_of(sharded)
    memory = rank_memory(
        replace(case, framework=replace(framework, stage_buffers=False)),
        layers=share, in_flight=flight, first=0.0, last=0.0, copies=copies,
        dense=np.minimum(leading, share) - leading * share / model.num_layers,
        at_once=np.minimum(layers_at_once(layouts, share), 1.0), held=least,
    )  # fmt: skip
    return Bounds(step_time_s=layouts.micro_batches * share * work, memory_bytes=_least(memory.total_bytes) * ROUNDING)


def _least(x: Array) -> Array:
    """The least over a grid's choices, by row."""
    return np.asarray(x.min(axis=tuple(range(x.ndim - 1))))
