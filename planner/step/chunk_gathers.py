"""Waits of a step whose chunks gather their sharded parameters once for all micro-batches.

Breadth-first and modular pipelines with ZeRO-3 (Lamy-Poirier 2022, arXiv 2211.05953). A rank visits its v chunks one
after another: forward, then the last one's backward too, then the others backward. A visit has one gather, and one
reduction if it goes backward. They queue on the rank's links and are independent of other ranks', so ranks wait for
them at the same time. A gather begins when the visit before the last has ended, for a rank holds the chunk at work and
the one that is fetched. The first micro-batch passes layer by layer as they arrive; a reduction runs beside the last
one in the same way. A framework without prefetch gathers when the first micro-batch is there.
"""

from functools import cached_property
from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools, record
from planner.costs.network.data_parallel import gathered_twice
from planner.step.pipelines import by_chunk
from planner.step.step_costs import StepCosts

NAMES = ("gather_s", "again_s", "reduce_s", "gather_cost_s", "again_cost_s", "reduce_cost_s")
SETTLED = 3  # visits after which each further one takes as long as the one before


@record
class ChunkSeconds:
    """Seconds of one layer's collectives, shape (n,).

    gather_s, again_s, reduce_s: the gather of the forward pass, that of the backward pass, the reduction.
    gather_cost_s, again_cost_s, reduce_cost_s: seconds that each takes from the rank's compute.
    ends_s: one gather, or one reduction, of the embedding or the head.
    """

    gather_s: Array
    again_s: Array
    reduce_s: Array
    gather_cost_s: Array
    again_cost_s: Array
    reduce_cost_s: Array
    ends_s: Array


def has_chunks(costs: StepCosts) -> Bools:
    """Whether a layout moves its sharded states chunk by chunk, boolean."""
    return np.asarray(by_chunk(costs.case.layouts) & costs.case.by_layer)


def chunk_seconds(costs: StepCosts) -> ChunkSeconds:
    """The collectives of every layout's chunks, 0 where layers or the whole rank have their own."""
    layouts, t = costs.case.layouts, costs.traffic
    mine = has_chunks(costs)
    gather, reduce, gather_taken, reduce_taken = (
        np.where(mine, x, 0.0)
        for x in (t.layer_gather_s, t.layer_reduce_s, t.layer_gather_taken_s, t.layer_reduce_taken_s)
    )
    twice = np.where(gathered_twice(layouts), 1.0, 0.0)
    return ChunkSeconds(
        gather_s=gather,
        again_s=twice * gather,
        reduce_s=reduce,
        gather_cost_s=gather_taken,
        again_cost_s=twice * gather_taken,
        reduce_cost_s=reduce_taken,
        ends_s=np.where(mine, t.ends_sharding_s / 4.0, 0.0),
    )


def chunk_wait_s(costs: StepCosts, forward_s: Any, backward_s: Any) -> Array:
    """Seconds by which the collectives of chunks lengthen a step, of the layouts' shape.

    forward_s, backward_s: the slowest rank's passes of one micro-batch. For equal ranks the timeline's figure or,
    where ranks delay one another, up to 3 % of the step less (tested).
    """
    layouts, mine = costs.case.layouts, has_chunks(costs)
    if not np.any(mine):
        return np.zeros(1)
    out = np.zeros(np.broadcast_shapes(layouts.shape, np.shape(forward_s)))
    some = _along_axes(mine, out.ndim)
    one = chunk_seconds(costs)
    p, m, v = (_at(x, some) for x in (layouts.pp, layouts.micro_batches, layouts.virtual_stages))
    first, early, late, last = (x.layers for x in costs.stages.kinds)
    layers = np.maximum(np.maximum(first, last), np.where(costs.stages.num_early > 0, early, late))
    n, forward, backward = (_at(x, some) for x in (layers, forward_s, backward_s))
    x = Visits(
        p=p, m=m, v=v, forward_s=forward / v, backward_s=backward / v, ends_s=_at(one.ends_s, some),
        **{name: n / v * _at(getattr(one, name), some) for name in NAMES},
    )  # fmt: skip
    bare = (v * m + p - 1 + (v - 1) * np.maximum(p - m, 0)) * (x.forward_s + x.backward_s)
    prefetch = costs.case.framework.overlap_param_gather > 0.0
    longer = (_prefetched(x) if prefetch else _blocking(x)) - bare
    out[np.ix_(*(np.arange(out.shape[axis])[index] for axis, index in enumerate(some)))] = np.maximum(longer, 0.0)
    return out


def _along_axes(mine: Bools, ndim: int) -> list[Any]:
    """The indices along each axis where any layout gathers by chunk; slice(None) for an axis of length 1."""
    mine = mine.reshape((1,) * (ndim - mine.ndim) + mine.shape)
    others = (tuple(a for a in range(ndim) if a != axis) for axis in range(ndim))
    return [
        np.flatnonzero(mine.any(axis=axes)) if n > 1 else slice(None)
        for n, axes in zip(mine.shape, others, strict=True)
    ]


def _at(x: Any, some: list[Any]) -> Array:
    """An array's part at indices of the axes that it has."""
    out = np.asarray(x)
    for axis, index in enumerate(some[len(some) - out.ndim :]):
        if out.shape[axis] > 1 and not isinstance(index, slice):
            out = np.take(out, index, axis)
    return out


@record
class Visits(ChunkSeconds):
    """A rank's visits to its v chunks, with p ranks and m micro-batches. Collectives are those of a chunk.

    forward_s, backward_s: a chunk's passes of one micro-batch.
    """

    p: Any
    m: Any
    v: Any
    forward_s: Any
    backward_s: Any

    @cached_property
    def all_s(self) -> tuple[Array, Array]:
        """Seconds of a chunk's passes of all micro-batches, forward and backward."""
        return self.m * self.forward_s, self.m * self.backward_s

    @cached_property
    def visits_s(self) -> tuple[Array, Array]:
        """Seconds from one visit to the next, forward and backward."""
        f, b, most = *self.all_s, np.maximum(self.m, self.p)
        forward = np.maximum(most * self.forward_s, f + self.gather_cost_s)
        return forward, np.maximum(most * self.backward_s, b + self.again_cost_s + self.reduce_cost_s)


def _blocking(x: Visits) -> Array:
    """Seconds of the passes without prefetch: each visit's first micro-batch waits for a gather, its last reduces."""
    m, p, v, again = x.m, x.p, x.v, x.again_s
    f, b, gather, reduce = x.forward_s, x.backward_s, x.gather_s, x.reduce_s
    forward = (p - 1) * (f + gather) + m * f + gather + (v - 1) * np.maximum(m * f + gather, p * (f + gather))
    own, around = m * b + again + reduce, p * (b + again)
    # The ranks don't gather what they turn with.
    backward = np.minimum(v - 1, 1) * np.maximum(own, p * b + again) + np.maximum(v - 2, 0) * np.maximum(own, around)
    backward = backward + (p - 1) * (b + (v > 1) * again) + m * b + reduce
    return np.asarray(forward + backward + 4.0 * x.ends_s)


def _prefetched(x: Visits) -> Array:
    """Seconds of the slower of the first and the last rank, with prefetch.

    The first rank's links keep working while the rank waits mid-step, the last rank's at both ends of the step.
    """
    q = x.p - 1
    first = _rank(x, (x.ends_s, 0.0, 0.0, x.ends_s), (0.0, q * (x.forward_s + x.backward_s), 0.0))
    last = _rank(x, (0.0, x.ends_s, x.ends_s, 0.0), (q * x.forward_s, 0.0, q * x.backward_s))
    return np.maximum(first, last)


def _rank(x: Visits, ends: tuple[Any, ...], idle: tuple[Any, ...]) -> Array:
    """Seconds until a rank's last pass and reduction have ended.

    ends: further seconds of the first gather, the last forward gather, that chunk's reduction and the last reduction.
    idle: seconds before the rank's first pass, between its forward and backward passes, and after its last pass.
    """
    v, (f, b), (forward, backward) = x.v, x.all_s, x.visits_s
    link = x.gather_s + ends[0]
    start = np.maximum(idle[0], link - x.forward_s)
    before = start + f
    earlier = np.zeros_like(before)
    for k in range(1, SETTLED):  # where there are fewer visits nothing changes
        link_k = np.maximum(link, earlier) + x.gather_s + np.where(k == v - 1, ends[1], 0.0)
        start_k = np.maximum(start + forward, link_k - x.forward_s)
        new, old = (link_k, start_k, before, start_k + f), (link, start, earlier, before)
        link, start, earlier, before = (np.where(k < v, a, b) for a, b in zip(new, old, strict=True))
    more = np.maximum(v - SETTLED, 0) * np.maximum(forward, x.gather_s) + np.where(v > SETTLED, ends[1], 0.0)
    # The turn: the last chunk stays, while the one before it is gathered again.
    link, start = link + more, before + more + idle[1]
    link = np.where(v > 1, link + x.again_s, link)
    before = start + b
    due = x.reduce_s + ends[2]
    for k in range(1, SETTLED + 1):
        start_k = np.maximum(start + backward, link - x.backward_s)
        reduced = np.maximum(link, before - np.minimum(x.backward_s, due)) + due
        link_k = np.where(k < v - 1, np.maximum(reduced, before) + x.again_s, reduced)
        new, old = (link_k, start_k, start_k + b, x.reduce_s), (link, start, before, due)
        link, start, before, due = (np.where(k < v, a, b) for a, b in zip(new, old, strict=True))
    more = np.maximum(v - 1 - SETTLED, 0) * np.maximum(backward, x.again_s + x.reduce_s)
    link, before = link + more - np.where(v - 1 > SETTLED, x.again_s, 0.0), before + more
    due = due + ends[3]
    end = np.maximum(link, before - np.minimum(x.backward_s, due)) + due
    return np.asarray(np.maximum(end, before + idle[2]))
