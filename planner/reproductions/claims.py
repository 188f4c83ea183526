"""A paper's claim beside what our models give for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Mark = Literal["read", "recalled", "derived"]
THEIRS = "the paper's assumptions"
OURS = "our cost models"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One figure.

    mark: how we know the paper's figure: read in its source, recalled, or derived here.
    theirs, ours: in `unit`; theirs None where the paper has no such figure, ours None where it isn't computed. low,
    high: the band in which ours agrees.
    basis: the assumptions behind ours; note: what it is made of, or why it differs.
    """

    statement: str
    unit: str
    mark: Mark
    theirs: float | None
    ours: float | None
    low: float = -math.inf
    high: float = math.inf
    basis: str = OURS
    note: str = ""

    @property
    def agrees(self) -> bool | None:
        """Whether ours lies in the band; None where there is nothing to compare."""
        if self.theirs is None or self.ours is None:
            return None
        return bool(self.low <= self.ours <= self.high)


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper's title and source, and its claims."""

    name: str
    title: str
    source: str
    claims: tuple[Claim, ...]


def near(
    statement: str,
    unit: str,
    mark: Mark,
    theirs: float,
    ours: float | None,
    *,
    within: float,
    basis: str = OURS,
    note: str = "",
) -> Claim:
    """A claim that agrees where ours is within a share of theirs."""
    a, b = theirs * (1.0 - within), theirs * (1.0 + within)
    return Claim(
        statement=statement, unit=unit, mark=mark, theirs=theirs, ours=None if ours is None else float(ours),
        low=min(a, b), high=max(a, b), basis=basis, note=note,
    )  # fmt: skip
