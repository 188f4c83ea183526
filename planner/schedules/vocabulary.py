"""Vocabulary parallelism in the pipeline (Yeung et al. 2024, arXiv 2411.05288): all ranks share embedding and head.

Every rank has a p-th of both tables' rows. A micro-batch's last hidden states go to all ranks; each does its part of
the head, and the input gradient is their sum. What ranks tell one another, the softmax's largest logit and sum, is a
barrier, which a forward or a backward pass hides. Algorithm 1 has two, before the gradients (T) and before the last
stage's backward pass; algorithm 2 has one, for its logits pass (U) makes the input gradient beforehand. Each barrier
keeps one more micro-batch alive.

rank 0  F0 F1 F2 .  U0 .  U1 V0 .  B0 U2 V1 F3 B1 U3 V2 B2 V3 B3     (vocab-2, p = 2, m = 4)
rank 1  .  F0 F1 .  U0 B0 U1 V0 F2 B1 U2 V1 F3 B2 U3 V2 B3 V3
"""

from typing import Any

import numpy as np

from planner.base.arrays import Array, Ints
from planner.schedules.base import Pipeline
from planner.schedules.generated import Generated
from planner.schedules.one_f_one_b_rows import by_slot, units


class Vocabulary1(Generated):
    """1F1B whose ranks share embedding and head, with two barriers: two micro-batches more than 1F1B."""

    name = "vocab-1"
    source = "Yeung et al. 2024, arXiv 2411.05288, algorithm 1; order derived from its rules"
    barriers = 2
    several_ranks = True  # to share with
    parts = "ST"
    settles = False  # where backwards don't take twice the forwards, circles of ranks of different lengths compete

    def row(self, pipe: Pipeline, r: int) -> Ints:
        """Order by the slots of a pipeline without end, F one and B two long, where the head takes none.

        Of barriers d and w = p - 1 - r + d: F of micro-batch j in slot r + j, for j > w behind the backward pass of
        j - w - 1; B of i in slot p + d + 3 i + 2 (p - 1 - r); on every rank the logits half a slot after the last
        stage's forward, which leaves time for what is sent, the rest after the next micro-batch's.
        """
        p, d, i = pipe.p, self.barriers, np.arange(pipe.m)
        ends = p + np.minimum(i, d) + 3 * np.maximum(i - d, 0)
        next_ends = ends + np.where(i < d, 1, 3)
        w, back = p - 1 - r + d, p + d + 2 * (p - 1 - r)
        forward = np.where(i <= w, r + i, back + 3 * (i - w) - 1)
        slots = [forward, back + 3 * i, ends + 0.5, next_ends + 0.6]
        return by_slot([units(r, kind, i) for kind in ("F", "B", *self.parts)], slots)

    def in_flight(self, pipe: Pipeline, rank: Any, kept: Any = 0.0) -> Array:
        """p - r and one for each barrier, at most m."""
        return np.asarray(np.minimum(pipe.p - rank + self.barriers, pipe.m), dtype=np.float64)

    def messages(self, pipe: Pipeline) -> Array:
        """1F1B's, and each rank's part of four hidden states to or from all others, half of it each way."""
        return np.asarray(1.0 + 2.0 * (pipe.p - 1.0) / pipe.p)


class Vocabulary2(Vocabulary1):
    """1F1B whose ranks share embedding and head, with one barrier: one micro-batch more than 1F1B."""

    name = "vocab-2"
    source = "Yeung et al. 2024, arXiv 2411.05288, algorithm 2; order derived from its rules"
    barriers = 1
    parts = "UV"
