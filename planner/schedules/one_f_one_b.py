"""1F1B with a flush: PipeDream-Flush (Narayanan et al. 2021, arXiv 2006.09503), DAPPLE; and on sequence slices.

rank 0  F0 F1 .  .  B0 F2 B1 .  B2
rank 1  .  F0 B0 F1 B1 .  F2 B2 .
"""

from typing import Any

import numpy as np

from planner.base.arrays import Array, Ints
from planner.schedules.base import Loads, Pipeline, Schedule
from planner.schedules.one_f_one_b_rows import one_in_one_out, units


class OneFOneB(Schedule):
    """Warm up with p - 1 - r forwards, then one forward and one backward in turn, then the rest."""

    name = "1f1b"
    exact_uneven = True
    source = "Narayanan et al. 2021, arXiv 2006.09503 (PipeDream-Flush); Megatron-LM; order read"

    def row(self, pipe: Pipeline, r: int) -> Ints:
        """Rank r: w = p - 1 - r + k - 1 forwards, pairs (F, B), w backwards, of m k units.

        With slices (Seq1F1B): forwards by micro-batch, then slice; backwards by micro-batch, last slice first,
        because a slice's keys and values get gradients from the later ones.
        """
        unit = np.arange(pipe.m * pipe.k)
        i, j = unit // pipe.k, unit % pipe.k
        forward, backward = units(r, "F", i, j), units(r, "B", i, pipe.k - 1 - j)
        return one_in_one_out(forward, backward, pipe.p - 1 - r + pipe.k - 1)

    def bubble_s(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> Array:
        """(p - 1)(F + B), and 1/k of it where the unit is a slice."""
        return np.asarray((pipe.p - 1) * (F + I + W) / pipe.k)

    def in_flight(self, pipe: Pipeline, rank: Any, kept: Any = 0.0) -> Array:
        """(p - r + k - 1)/k, at most m."""
        return np.asarray(np.minimum((pipe.p - rank + pipe.k - 1) / pipe.k, pipe.m))

    def makespan(self, pipe: Pipeline, loads: Loads) -> Array:
        """Seconds of a step of uneven ranks: the longest path that stays on one rank but for two detours.

        On rank s, with t = F + B and T_s the later ranks' sum of t: the way there, m t_s, and two detours through the
        later ranks and back, the first micro-batch's before its backward and the last one's after its forward. In
        place of a detour the rank does w = min(p - 1 - s, m - 1) forwards, or backwards. With too few micro-batches
        for both only the longer detour counts. Exact for equal ranks; else a path of the timeline, so never above it.
        With slices the unit is a slice.
        """
        p, k = np.asarray(pipe.p), np.asarray(pipe.k)
        units = np.asarray(pipe.m) * k
        passes = [((F / k, (I + W) / k), number) for (F, I, W), number in loads.blocks(p)]
        total = sum((F + B) * number for (F, B), number in passes)
        longest, before, rank = np.asarray(0.0), np.asarray(0.0), np.asarray(0)
        for ((F, B), number), several in zip(passes, (False, True, True, False), strict=True):
            t = F + B
            ends = [(rank, before)]
            if several:
                ends.append((rank + number - 1, before + (number - 1) * t))
            for s, prefix in ends:
                w = np.minimum(p - 1 - s, units - 1)
                behind = total - prefix - t
                ahead, back = np.maximum(behind - w * F, 0.0), np.maximum(behind - w * B, 0.0)
                both = units >= p - s + 1
                path = prefix + units * t + np.where(both, ahead + back, np.maximum(ahead, back))
                longest = np.where(number > 0, np.maximum(longest, path), longest)
            before, rank = before + number * t, rank + number
        return longest


class Seq1F1B(OneFOneB):
    """1F1B whose unit is a slice of the sequence: the bubble and the activations in flight shrink by 1/k."""

    name = "seq1f1b"
    source = "Sun et al. 2024, arXiv 2406.03488; order read"
    sliced = True
