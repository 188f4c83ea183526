"""GPipe (Huang et al. 2019, arXiv 1811.06965) and TeraPipe (Li et al. 2021, arXiv 2102.07988).

All forwards, then all backwards:

rank 0  F0 F1 F2 .  .  .  .  B2 B1 B0
rank 1  .  F0 F1 F2 .  .  B2 B1 B0 .
"""

from functools import reduce
from typing import Any

import numpy as np

from planner.base.arrays import Array, Ints
from planner.schedules.base import Loads, Pipeline, Schedule
from planner.schedules.one_f_one_b_rows import one_in_one_out, units


class GPipe(Schedule):
    """All forwards, then all backwards in reverse order; every micro-batch's activations live until then."""

    name = "gpipe"
    exact_uneven = True
    losses_wait = True
    source = "Huang et al. 2019, arXiv 1811.06965; order read"

    def row(self, pipe: Pipeline, r: int) -> Ints:
        """Every rank: F0..F(N-1), B(N-1)..B0 over the N = m k units in order of micro-batch, then slice."""
        unit = np.arange(pipe.m * pipe.k)
        i, j = unit // pipe.k, unit % pipe.k
        forward, backward = units(r, "F", i, j), units(r, "B", i[::-1], j[::-1])
        return one_in_one_out(forward, backward, len(unit))

    def bubble_s(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> Array:
        """(p - 1)(F + B), and 1/k of it where the unit is a slice."""
        return np.asarray((pipe.p - 1) * (F + I + W) / pipe.k)

    def makespan(self, pipe: Pipeline, loads: Loads) -> Array:
        """Once through all ranks, and every further unit at the pace of the slowest forward and the slowest backward.

        Exact for uneven ranks: all forwards are done when the last rank starts the first backward.
        """
        total, k = sum(loads.total(pipe.p)), np.asarray(pipe.k)
        blocks = [(passes, number > 0) for passes, number in loads.blocks(pipe.p)]
        forward = reduce(np.maximum, [np.where(there, F, 0.0) for (F, _, _), there in blocks])
        backward = reduce(np.maximum, [np.where(there, I + W, 0.0) for (_, I, W), there in blocks])
        return np.asarray((total + (pipe.m * k - 1) * (forward + backward)) / k)


class TeraPipe(GPipe):
    """GPipe's order over slices of the sequence, token order forward and back again."""

    name = "terapipe"
    source = "Li et al. 2021, arXiv 2102.07988; order read"
    sliced = True
