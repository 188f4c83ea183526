"""Interleaved 1F1B, depth first (Narayanan et al. 2021, arXiv 2104.04473, section 2.2; Megatron-LM).

Rank r holds v chunks, stages r, p + r, 2p + r...; groups of p micro-batches go through chunk after chunk.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.schedules.base import Array, Operation, Rule, Schedule


class Interleaved(Schedule):
    """1F1B over v chunks a rank: the bubble is 1/v of 1F1B's, for v times the messages."""

    name = "interleaved"

    def rules(self, p: Any, m: Any, v: Any) -> list[Rule]:
        """At least two chunks and two ranks, and micro-batches in whole groups of p."""
        return [
            Rule(text="interleaved needs at least 2 virtual stages", broken=np.asarray(v < 2)),
            Rule(text="interleaved needs at least 2 pipeline ranks", broken=np.asarray(p < 2)),
            Rule(text="interleaved needs a number of micro-batches divisible by pp", broken=np.asarray(m % p != 0)),
        ]

    def order(self, p: int, m: int, v: int) -> list[list[Operation]]:
        """Rank r: w = min(m v, 2(p - 1 - r) + (v - 1) p) forwards, pairs (F, B), the remaining backwards.

        The i-th forward is of chunk (i mod p v) // p and micro-batch (i // p v) p + i mod p; backwards mirror the
        chunk.
        """

        def unit(i: int, kind: str, r: int) -> Operation:
            chunk = (i % (p * v)) // p
            chunk = v - 1 - chunk if kind == "B" else chunk
            return Operation(chunk * p + r, kind, (i // (p * v)) * p + i % p)

        ranks = []
        total = m * v
        for r in range(p):
            w = min(total, 2 * (p - 1 - r) + (v - 1) * p)
            row = [unit(i, "F", r) for i in range(w)]
            for i in range(total - w):
                row += [unit(w + i, "F", r), unit(i, "B", r)]
            ranks.append(row + [unit(i, "B", r) for i in range(total - w, total)])
        return ranks

    def in_flight(self, p: Any, m: Any, v: Any, rank: Any) -> Array:
        """(2(p - 1 - r) + (v - 1) p + 1) / v, at most m; on rank 0 that is p + (p - 1)/v."""
        return np.asarray(np.minimum((2 * (p - 1 - rank) + (v - 1) * p + 1) / v, m), dtype=np.float64)
