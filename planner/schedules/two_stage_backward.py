"""2BP (Rae et al. 2024, arXiv 2405.18047): 1F1B with the backward in two stages.

The input gradient I takes the backward's place, so that the gradient travels on sooner; the weight gradients W are
put off, fill the gaps where the pipeline drains, and the rest follows at the end of the step.

rank 0  F0 F1 .  I0 F2 I1 W0 I2 W1 W2     (p = 2, m = 3)
rank 1  .  F0 I0 F1 I1 F2 I2 W0 W1 W2
"""

from typing import Any

import numpy as np

from planner.base.arrays import Array, Ints
from planner.schedules.base import Pipeline, Schedule, largest_sum
from planner.schedules.one_f_one_b_rows import one_in_one_out, units


class TwoStageBackward(Schedule):
    """1F1B with the weight gradients put off to where the rank would idle, for the memory of what they still need."""

    name = "2bp"
    source = "Rae et al. 2024, arXiv 2405.18047; variant for 1F1B derived from the abstract; simulated"
    splits_backward = True

    def row(self, pipe: Pipeline, r: int) -> Ints:
        """1F1B's order with I for B; a W before each I of the drain, the rest at the end."""
        i = np.arange(pipe.m)
        w = min(pipe.p - 1 - r, pipe.m - 1)
        row = one_in_one_out(units(r, "F", i), units(r, "I", i), w)
        weight = units(r, "W", i)
        drain = len(row) - w
        gaps = np.stack([weight[:w], row[drain:]], axis=1).reshape(-1, 4)
        return np.concatenate([row[:drain], gaps, weight[w:]])

    def bubble_s(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> Array:
        """With q = p - 1 and g = min(q, m - 1): max(q (F + I) - g W, q F, (q - g) F + q I), for all F, I, W.

        That is (p - 1)(F + I - W) where the weight gradients fit in the gaps; found by simulation.
        """
        q = np.asarray(pipe.p) - 1
        g = np.minimum(q, np.asarray(pipe.m) - 1)
        return largest_sum((F, I, W), (q, q, -g), (q, 0, 0), (q - g, q, 0))

    def in_flight(self, pipe: Pipeline, rank: Any, kept: Any = 0.0) -> Array:
        """1F1B's p - r, at most m, and what W still needs of the other micro-batches."""
        whole = np.minimum(np.asarray(pipe.p) - rank, pipe.m)
        return np.asarray(whole + (np.asarray(pipe.m) - whole) * np.asarray(kept))
