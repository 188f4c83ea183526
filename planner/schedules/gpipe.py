"""GPipe (Huang et al. 2019, arXiv 1811.06965): all forwards, then all backwards.

rank 0  F0 F1 F2 .  .  .  .  B2 B1 B0
rank 1  .  F0 F1 F2 .  .  B2 B1 B0 .
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.schedules.base import Array, Operation, Rule, Schedule


class GPipe(Schedule):
    """All forwards, then all backwards in reverse order; every micro-batch's activations live until then."""

    name = "gpipe"

    def rules(self, p: Any, m: Any, v: Any) -> list[Rule]:
        """Only one chunk a rank."""
        return [Rule(text="gpipe has one virtual stage per rank", broken=np.asarray(v != 1))]

    def order(self, p: int, m: int, v: int) -> list[list[Operation]]:
        """Every rank: F0..F(m-1), B(m-1)..B0."""
        return [
            [Operation(r, "F", i) for i in range(m)] + [Operation(r, "B", i) for i in reversed(range(m))]
            for r in range(p)
        ]

    def in_flight(self, p: Any, m: Any, v: Any, rank: Any) -> Array:
        """All m, on every rank."""
        return np.asarray(m + 0.0 * (p + rank))
