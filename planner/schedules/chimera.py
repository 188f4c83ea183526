"""Chimera (Li and Hoefler 2021, arXiv 2107.06925): two pipelines in opposite directions over two copies of the model.

Even micro-batches go down (stage s on rank s), odd ones up (stage s on rank p - 1 - s). In unit slots micro-batch j of
a direction enters at slot 2j and moves one stage a slot, forward and back: with p even the two directions never meet.
p micro-batches make a unit; units follow one another every 2p slots (the paper's direct concatenation).

rank 0  0F0 .   0F2 3F1 3B1 3F3 3B3 0B0 .   0B2     (p = 4, m = 4)
rank 1  .   1F0 2F1 1F2 2F3 2B1 1B0 2B3 1B2 .
rank 2  .   1F1 2F0 1F3 2F2 2B0 1B1 2B2 1B3 .
rank 3  0F1 .   0F3 3F0 3B0 3F2 3B2 0B1 .   0B3
"""

from typing import Any

import numpy as np

from planner.base.arrays import Array, Ints
from planner.schedules.base import Pipeline, Schedule
from planner.schedules.one_f_one_b_rows import by_slot, units


class Chimera(Schedule):
    """Half of 1F1B's bubble where F = B, for two copies of the weights."""

    name = "chimera"
    source = "Li and Hoefler 2021, arXiv 2107.06925; order read in its repository (direct concatenation)"
    copies = 2
    even_ranks = whole_rounds = True

    def row(self, pipe: Pipeline, r: int) -> Ints:
        """Stage s, micro-batch i: F in slot t + s, B in t + 2p - 1 - s, with t = 2p (i // p) + 2 ((i mod p) // 2)."""
        p = pipe.p
        i = np.arange(pipe.m)
        enters = 2 * p * (i // p) + 2 * ((i % p) // 2)
        stage = np.where(i % 2 == 0, r, p - 1 - r)
        tables = [units(stage, "F", i), units(stage, "B", i)]
        return by_slot(tables, [enters + stage, enters + 2 * p - 1 - stage])

    def bubble_s(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> Array:
        """(p - 2)(max(F, B) + (m/p - 1)|F - B|), for all F and B: units don't mesh where F and B differ.

        The paper's (p - 2) F where F = B; the rest found by simulation.
        """
        B = I + W
        longer, gap = np.maximum(F, B), np.abs(F - B)
        return np.asarray((np.asarray(pipe.p) - 2) * (longer + (np.asarray(pipe.m) / pipe.p - 1) * gap))

    def in_flight(self, pipe: Pipeline, rank: Any, kept: Any = 0.0) -> Array:
        """p/2 + 1 at the ends, one more for each rank towards the middle, up to p."""
        p = np.asarray(pipe.p)
        return np.asarray(p / 2 + 1 + np.minimum(rank, p - 1 - rank) + 0.0 * np.asarray(pipe.m))
