"""What a pipeline schedule is: an order of operations per rank, and its closed forms beside it.

p: pipeline ranks; m: micro-batches; v: virtual stages (model chunks) per rank; r: rank from 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Operation", "Rule", "Schedule"]

Array = NDArray[np.float64]


class Operation(NamedTuple):
    """One operation on a rank; prints as a cell such as ``2F0``: stage, kind (F or B), micro-batch."""

    stage: int
    kind: str
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule of legality: its text for a person, and where it is broken, boolean of shape (n,)."""

    text: str
    broken: NDArray[np.bool_]


class Schedule(ABC):
    """A pipeline schedule. Closed forms broadcast over arrays of p, m, v."""

    name: str

    @abstractmethod
    def rules(self, p: Any, m: Any, v: Any) -> list[Rule]:
        """The rules that p, m and v must keep, each with where it is broken."""

    @abstractmethod
    def order(self, p: int, m: int, v: int) -> list[list[Operation]]:
        """The operations of every rank, in order; stage j*p + r is chunk j of rank r."""

    @abstractmethod
    def in_flight(self, p: Any, m: Any, v: Any, rank: Any) -> Array:
        """Peak micro-batches whose activations a rank holds, in units of all the rank's layers."""

    def bubble_fraction(self, p: Any, m: Any, v: Any) -> Array:
        """Idle share of the step for equal stages and no communication: (p-1)/(v m + p - 1)."""
        return np.asarray((p - 1) / (v * m + p - 1.0))

    def makespan(self, total_s: Any, slowest_s: Any, m: Any, v: Any) -> Array:
        """Seconds from the first operation to the last.

        total_s: one micro-batch forward and backward through all stages; slowest_s: through the slowest rank.
        The slowest rank sets the pace, the others are passed once to fill and drain: m slowest + (total - slowest)/v.
        """
        return np.asarray(m * slowest_s + (total_s - slowest_s) / v)
