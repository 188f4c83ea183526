"""Hanayo (Liu et al. 2023, arXiv 2308.15762): wave-like pipelines, the V repeated, without copies of the weights.

v chunks per rank, v even: stages run down the ranks and back up, v/2 waves. The order is an action list made greedily:
a backward as soon as one is ready, else the deepest forward that is. With B = 2F and m = p the paper states a bubble
fraction of (2p - 2)/(3p W + p - 1) for W waves. Of one wave this order idles for those 2p - 2 forwards beside 3p of
work, so that they are (2p - 2)/(3p + 2p - 2) of the step (1/3 for the paper's 2/5 at p = 4): a denominator of
3p + p - 1 is less than work and idling together. More waves idle a little longer, within 8 % of the paper's fraction.

rank 0  0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1     (p = 2, m = 2, v = 2)
rank 1  1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1
"""

import heapq
from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools
from planner.schedules.base import Operation, Order, Pipeline
from planner.schedules.generated import Generated

_FORWARD, _BACKWARD = 1, 2
"""Lengths for which the list is made: the paper's B = 2F."""


class Hanayo(Generated):
    """Interleaving that folds back on itself: the bubble shrinks with the number of waves, v/2."""

    name = "hanayo"
    source = "Liu et al. 2023, arXiv 2308.15762; order derived from its description, not the authors' list"
    chunks = None
    looped_placement = False
    settles = False  # the greedy list changes with m

    def own_rules(self, pipe: Pipeline) -> list[tuple[str, Any]]:
        """A wave is two chunks."""
        return [("needs an even number of virtual stages", pipe.v % 2 != 0)]

    def closed_form(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> tuple[Array, Bools]:
        """(p - m) F + (p - 1) B for one wave, m <= p and B >= 2F. Found by simulation."""
        p, m, B = np.asarray(pipe.p), np.asarray(pipe.m), I + W
        return np.asarray((p - m) * F + (p - 1) * B), np.asarray((pipe.v == 2) & (m <= p) & (B >= 2 * F))

    def order(self, pipe: Pipeline) -> Order:
        """Each rank as soon as it is free: the ready backward of the first micro-batch, else the deepest forward."""
        p, m, stages = pipe.p, pipe.m, pipe.p * pipe.v
        where = self.rank_of(pipe, np.arange(stages), 0).tolist()
        rows: list[list[Operation]] = [[] for _ in range(p)]
        backwards: list[list[tuple[int, int]]] = [[] for _ in range(p)]
        forwards: list[list[tuple[int, int]]] = [[] for _ in range(p)]
        free = [0] * p
        events: list[tuple[int, int, int, int]] = []
        """Time, kind (0 forward, 1 backward), stage, micro-batch: what becomes ready then."""
        events += [(0, 0, 0, i) for i in range(m)]
        left = 2 * stages * m
        now = 0
        while left:
            while events and events[0][0] <= now:
                _, back, s, i = heapq.heappop(events)
                if back:
                    heapq.heappush(backwards[where[s]], (i, -s))
                else:
                    heapq.heappush(forwards[where[s]], (-s, i))
            for r in range(p):
                if free[r] > now or not (backwards[r] or forwards[r]):
                    continue
                left -= 1
                if backwards[r]:
                    i, s = heapq.heappop(backwards[r])
                    s = -s
                    rows[r].append(Operation(s, "B", i))
                    free[r] = now + _BACKWARD
                    if s:
                        heapq.heappush(events, (free[r], 1, s - 1, i))
                else:
                    s, i = heapq.heappop(forwards[r])
                    s = -s
                    rows[r].append(Operation(s, "F", i))
                    free[r] = now + _FORWARD
                    heapq.heappush(events, (free[r], *((0, s + 1, i) if s + 1 < stages else (1, s, i))))
            later = [t for t in free if t > now]
            now = min(later) if later else events[0][0]
        return Order.of_rows(rows)
