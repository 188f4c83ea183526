"""Interleaved 1F1B, depth first (Narayanan et al. 2021, arXiv 2104.04473, section 2.2; Megatron-LM), also on slices.

Rank r holds v chunks, stages r, p + r, 2p + r...; groups of p units go through chunk after chunk.
"""

from typing import Any

import numpy as np

from planner.base.arrays import Array, Ints
from planner.schedules.base import Pipeline, Schedule
from planner.schedules.one_f_one_b_rows import one_in_one_out, units


class Interleaved(Schedule):
    """1F1B over v chunks per rank: the bubble is 1/v of 1F1B's, for v times the messages."""

    name = "interleaved"
    source = "Narayanan et al. 2021, arXiv 2104.04473, section 2.2; Megatron-LM; order read"
    chunks = None
    several_ranks = whole_rounds = True

    def row(self, pipe: Pipeline, r: int) -> Ints:
        """Rank r: w = 2(p - 1 - r) + (v - 1) p + k - 1 forwards, pairs (F, B), the remaining backwards.

        The i-th forward is of chunk (i mod p v) // p and unit (i // p v) p + i mod p of the m k units; backwards
        mirror the chunk, and take each micro-batch's slices from the last.
        """
        p, v, k = pipe.p, pipe.v, pipe.k
        index = np.arange(pipe.m * v * k)
        chunk = (index % (p * v)) // p
        unit = (index // (p * v)) * p + index % p
        forward = units(chunk * p + r, "F", unit // k, unit % k)
        backward = units((v - 1 - chunk) * p + r, "B", unit // k, k - 1 - unit % k)
        return one_in_one_out(forward, backward, 2 * (p - 1 - r) + (v - 1) * p + k - 1)

    def bubble_s(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> Array:
        """(p - 1)(F + B)/(v k)."""
        return np.asarray((pipe.p - 1) * (F + I + W) / (pipe.v * pipe.k))

    def in_flight(self, pipe: Pipeline, rank: Any, kept: Any = 0.0) -> Array:
        """(2(p - 1 - r) + (v - 1) p + k)/(v k), at most m; on rank 0 and k = 1 that is p + (p - 1)/v."""
        p, v, k = pipe.p, pipe.v, pipe.k
        return np.asarray(np.minimum((2 * (p - 1 - rank) + (v - 1) * p + k) / (v * k), pipe.m))


class Seq1F1BInterleaved(Interleaved):
    """Interleaved 1F1B whose unit is a slice of the sequence."""

    name = "seq1f1b-interleaved"
    source = "Sun et al. 2024, arXiv 2406.03488; Seq1F1B repository; order read"
    sliced = True

    def own_rules(self, pipe: Pipeline) -> list[tuple[str, Any]]:
        """A group of p units must hold whole micro-batches."""
        return [("needs pp divisible by the sequence slices", pipe.p % np.maximum(pipe.k, 1) != 0)]
