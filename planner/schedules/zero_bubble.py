"""Zero bubble by hand: ZB-H1 and ZB-H2 (Qi et al. 2023, arXiv 2401.10241, section 3), and ZB-H1 on sequence slices.

The backward is split: the input gradient I goes on at once, the weight gradient W fills what would be idle.

rank 0  F0 F1 .  .  I0 W0 F2 I1 W1 I2 W2     (ZB-H1, p = 2, m = 3)
rank 1  .  F0 I0 F1 W0 I1 F2 W1 I2 W2
"""

from typing import Any

import numpy as np

from planner.base.arrays import Array, Ints
from planner.schedules.base import Pipeline, Schedule
from planner.schedules.one_f_one_b_rows import by_slot, units


class ZeroBubbleH1(Schedule):
    """1F1B's memory; the bubble is (p - 1)(F + I - W), a third of 1F1B's where the three are equal."""

    name = "zb-h1"
    source = "Qi et al. 2023, arXiv 2401.10241; order read in its repository"
    splits_backward = True
    unsynchronised_end = True
    depth = 1
    """Warm-up forwards for every rank behind: 1 in H1, 2 in H2."""
    least = "pp micro-batches"

    def own_rules(self, pipe: Pipeline) -> list[tuple[str, Any]]:
        """The warm-up must not run out of micro-batches."""
        least = self.depth * (pipe.p - 1) + pipe.k
        return [(f"needs at least {self.least}", pipe.m * pipe.k < least)]

    def row(self, pipe: Pipeline, r: int) -> Ints:
        """Rank r: w = depth (p - 1 - r) + k - 1 F; then F, I, and a W once depth r have waited; then the other W.

        Of slices the forwards go by micro-batch, then slice, the gradients from a micro-batch's last slice back.
        """
        k = pipe.k
        i = np.arange(pipe.m * k)
        w, late = self.depth * (pipe.p - 1 - r) + k - 1, self.depth * r
        back = k - 1 - i % k
        tables = [units(r, "F", i // k, i % k), units(r, "I", i // k, back), units(r, "W", i // k, back)]
        # Round n of F, I, W: F of unit w + n, I of n, W of n - late.
        return by_slot(tables, [3 * (i - w), 3 * i + 1, 3 * (i + late) + 2])

    def bubble_s(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> Array:
        """(p - 1) max(F + I - depth min(F, W), 0)/k, from a rank's first operation to its last.

        The paper's F + I - depth W is for W <= F; a longer W fills no more than F's place (found by simulation).
        """
        return np.asarray((pipe.p - 1) * np.maximum(F + I - self.depth * np.minimum(F, W), 0.0) / pipe.k)

    def in_flight(self, pipe: Pipeline, rank: Any, kept: Any = 0.0) -> Array:
        """(p - r) and, of what W still needs, r more; H2: 2(p - r) - 1 and 2r. On slices (p - r + k - 1)/k and r/k."""
        d, p, k = self.depth, pipe.p, pipe.k
        return np.asarray((d * (p - 1 - rank) + k + d * rank * np.asarray(kept)) / k)


class ZeroBubbleH2(ZeroBubbleH1):
    """No bubble where F, I and W are equal, for nearly twice 1F1B's activations."""

    name = "zb-h2"
    depth = 2
    least = "2 pp - 1 micro-batches"


class Seq1F1BZeroBubble(ZeroBubbleH1):
    """Seq1F1B with a split backward: at most its first rank's memory, a third of its bubble where F = I = W."""

    name = "seq1f1b-zb"
    source = "Sun et al. 2024, arXiv 2406.03488, names it; order derived: ZB-H1's rounds over Seq1F1B's units"
    sliced = True
    least = "pp - 1 + k slices of all micro-batches"
