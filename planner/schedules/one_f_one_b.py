"""1F1B with a flush: PipeDream-Flush (Narayanan et al. 2021, arXiv 2006.09503), DAPPLE.

rank 0  F0 F1 .  .  B0 F2 B1 .  B2
rank 1  .  F0 B0 F1 B1 .  F2 B2 .
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.schedules.base import Array, Operation, Rule, Schedule


class OneFOneB(Schedule):
    """Warm up with p - 1 - r forwards, then one forward and one backward in turn, then the rest."""

    name = "1f1b"

    def rules(self, p: Any, m: Any, v: Any) -> list[Rule]:
        """Only one chunk a rank."""
        return [Rule(text="1f1b has one virtual stage per rank; use interleaved for more", broken=np.asarray(v != 1))]

    def order(self, p: int, m: int, v: int) -> list[list[Operation]]:
        """Rank r: w = min(p - 1 - r, m) forwards, m - w pairs (F, B), w backwards."""
        ranks = []
        for r in range(p):
            w = min(p - 1 - r, m)
            row = [Operation(r, "F", i) for i in range(w)]
            for i in range(m - w):
                row += [Operation(r, "F", w + i), Operation(r, "B", i)]
            ranks.append(row + [Operation(r, "B", i) for i in range(m - w, m)])
        return ranks

    def in_flight(self, p: Any, m: Any, v: Any, rank: Any) -> Array:
        """min(p - r, m)."""
        return np.asarray(np.minimum(p - rank, m), dtype=np.float64)
