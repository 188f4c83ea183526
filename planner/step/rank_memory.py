"""Peak memory of the ranks that may be fullest: each with the micro-batches that its schedule keeps in flight."""

from __future__ import annotations

import numpy as np

from planner.costs.memory.rank import Memory, rank_memory
from planner.step.pipelines import by_schedule, layers_at_once, pipeline
from planner.step.ranks import key_ranks
from planner.step.step_costs import StepCosts


def rank_memories(costs: StepCosts) -> list[Memory]:
    """Of the ranks that may be fullest: the first, one between the ends, and the last with its logits."""
    layouts = costs.case.layouts
    share, n = costs.activations.weight_grad_share, layouts.shape[-1]
    ranks = []
    for rank in key_ranks(layouts, costs.stages):
        number = np.broadcast_to(rank.number, (*np.shape(rank.number)[:-1], n))
        flight, copies = np.zeros(np.broadcast_shapes(share.shape, number.shape)), np.ones(n)
        versions = np.ones(number.shape)
        for schedule, rows in by_schedule(layouts):
            pipe, at = pipeline(layouts, rows), number[..., rows]
            flight[..., rows] = schedule.in_flight(pipe, at, share[..., rows])
            copies[rows], versions[..., rows] = schedule.copies, schedule.weight_versions(pipe, at)
        ranks.append(
            rank_memory(
                costs.case,
                layers=rank.layers,
                in_flight=flight,
                first=rank.first,
                last=rank.last,
                modules=rank.modules,
                dense=rank.dense,
                copies=copies,
                versions=versions,
                at_once=layers_at_once(layouts, rank.layers),
                held=costs.activations,
            )
        )
    return ranks
