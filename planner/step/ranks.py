"""The ranks of a pipeline that may be the fullest: each one's layers, shares of embedding and head, and peak memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.costs.memory.rank import Memory, rank_memory
from planner.layouts import Layouts
from planner.step.given_stages import is_given
from planner.step.pipelines import by_schedule, layers_at_once, pipeline, trait, weight_copies
from planner.step.splits import Share, Stages

if TYPE_CHECKING:
    from planner.step.step_costs import StepCosts


def key_ranks(layouts: Layouts, stages: Stages) -> list[tuple[Any, Share]]:
    """The first rank, of the ranks between the ends those that may be the fullest, and the last.

    Of each its number, and its share of one copy of the weights, shape (n,).
    That is the second one, and where later ones have more layers the first of these; where micro-batches enter from
    both ends, the one in the middle; where stages are given, those that `with_given` names.
    """
    first, early, late, last = stages.kinds
    between, mid = layouts.pp - 2, early.first
    both_ends = weight_copies(layouts) > 1
    second = np.where(both_ends, layouts.pp // 2 - 1, np.minimum(1, layouts.pp - 1))
    heavier = (stages.num_early < between) & (late.layers > early.layers)
    is_late = (stages.num_early == 0) | (heavier & both_ends)
    layers = np.where(is_late, late.layers, early.layers) * (between > 0)
    dense = np.where(is_late, late.dense, early.dense) * (between > 0)
    last = replace(last, layers=np.where(layouts.pp == 1, first.layers, last.layers))
    ranks: list[tuple[Any, Share]] = [
        (0, first), (second, Share(layers=layers, first=mid, last=mid, dense=dense)), (layouts.pp - 1, last)
    ]  # fmt: skip
    later = heavier & ~both_ends & (stages.num_early > 0)
    if np.any(later):
        number = np.where(later, 1 + stages.num_early, second).astype(np.int64)
        of_late = np.where(later, late.layers, layers), np.where(later, late.dense, dense)
        ranks.insert(2, (number, Share(layers=of_late[0], first=mid, last=mid, dense=of_late[1])))
    if stages.fullest is not None:
        given = is_given(layouts) & (between > 0)
        for k in range(stages.fullest.shape[1]):
            number, layers, modules, dense = (np.where(given, x, 0.0) for x in stages.fullest[:, k])
            number = np.where(given, number, second).astype(np.int64)
            ranks.append((number, Share(layers=layers, modules=modules, dense=dense)))
    return ranks


def rank_memories(costs: StepCosts) -> list[Memory]:
    """Peak memory of the ranks that may be fullest: the first, some between the ends, and the last with its logits."""
    layouts = costs.case.layouts
    waiting = trait(layouts, "losses_wait")
    share, n = costs.activations.weight_grad_share, layouts.shape[-1]
    ranks = []
    for of_rank, rank, own in costs.ranks:
        number = np.broadcast_to(of_rank, (*np.shape(of_rank)[:-1], n))
        flight, copies = np.zeros(np.broadcast_shapes(share.shape, number.shape)), np.ones(n)
        versions = np.ones(number.shape)
        for schedule, rows in by_schedule(layouts):
            pipe, at = pipeline(layouts, rows), number[..., rows]
            flight[..., rows] = schedule.in_flight(pipe, at, share[..., rows])
            copies[rows], versions[..., rows] = schedule.copies, schedule.weight_versions(pipe, at)
        ranks.append(
            rank_memory(
                costs.case,
                **vars(rank),
                in_flight=flight,
                copies=copies,
                versions=versions,
                at_once=layers_at_once(layouts, rank.layers),
                waiting=waiting,
                held=costs.activations,
                own=own,
            )
        )
    return ranks
