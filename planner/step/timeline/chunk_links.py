"""The gathers and reductions of a chunk's sharded parameters as operations of their rank's links.

What waits for what: `planner.step.chunk_gathers`. Operations of one chunk that follow one another on a rank are a
visit: they share one gather and one reduction, as in the trainer's executor.
"""

import numpy as np

from planner.base.arrays import Array, Ints, record
from planner.schedules.dependencies import dependencies
from planner.schedules.operations import KINDS, Order

F = KINDS.index("F")


@record
class ChunkLinks:
    """Operations of links, one lane a rank, shape (k,): a gather for each visit, then a reduction for each.

    place: sorts a rank's. waits, lag_s: operations of the order that each waits for, (k, 4), -1 for none, and seconds
    after their end. first: the operation of the order that each visit begins with; it ends no sooner than its gather,
    or where `prefetch` is not, begins no sooner. before, held_s: the last one of the rank's visit before, -1 for none,
    and how long after its end the rank is held up.
    """

    rank: Ints
    place: Array
    seconds: Array
    waits: Ints
    lag_s: Array
    first: Ints
    first_lag_s: Array
    before: Ints
    held_s: Array


def chunk_links(
    order: Order, duration_s: Array, gathers: tuple[Array, Array], reduce_s: Array, costs: tuple[Array, Array, Array],
    prefetch: bool,
) -> ChunkLinks:  # fmt: skip
    """The links of an order. By stage: gathers (forward, backward), the reduction, and what each costs the rank."""
    rank, stage = order.rank, order.stage
    new = (rank[1:] != rank[:-1]) | (stage[1:] != stage[:-1])
    first = np.flatnonzero(np.r_[True, new])
    last = np.r_[first[1:], len(order)] - 1
    owner, of = rank[first], stage[first]
    number = np.arange(len(first)) - np.searchsorted(owner, owner)
    forward = np.logical_or.reduceat(order.kind == F, first)
    backward = np.logical_or.reduceat(order.kind != F, first)
    seconds = np.concatenate([np.where(forward, gathers[0][of], gathers[1][of]), np.where(backward, reduce_s[of], 0.0)])
    many, ago = len(first), 2 if prefetch else 1
    waits, lag = np.full((2 * many, 4), -1, dtype=np.int64), np.zeros((2 * many, 4))
    waits[:many, 3] = np.where(number >= ago, last[np.arange(many) - ago], -1)
    waits[many:, 0] = last
    if prefetch:
        lag[many:, 0] = -np.minimum(seconds[many:], duration_s[last])
    else:
        waits[:many, :3] = dependencies(order)[first]
    reduced = np.where(backward, costs[2][of], 0.0)
    held = np.where(forward, costs[0][of], costs[1][of]) + np.r_[0.0, reduced[:-1]]
    return ChunkLinks(
        rank=np.tile(owner, 2), place=np.concatenate([number - ago + 0.5, number]), seconds=seconds,
        waits=waits, lag_s=lag, first=first, first_lag_s=-duration_s[first] * prefetch,
        before=np.where(number > 0, np.r_[-1, last[:-1]], -1), held_s=held * prefetch,
    )  # fmt: skip
