"""A paper's claim: a figure that it states, how we know it, and what our models give for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Standing = Literal["read", "recalled", "derived"]
Says = Literal["about", "at most", "at least"]
RATIO, ABSOLUTE = 0.10, 0.15
"""How far ours may be off, as a share of the paper's figure: where it is a ratio, and where it has a unit."""
RATIOS = ("", "x", "%", "% more")
AGREES, OFF, MISSING, SHOWN = "agrees", "off", "not reproduced", "shown"
"""The verdicts on a claim: ours agrees, ours is off, we have none, or there is nothing to agree with."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A figure of a paper.

    standing: read in a source that a reader can open, recalled, or derived here, which agrees with nothing.
    figure: in `unit`; None where the paper prints none and ours is only shown. where: in the paper.
    says: whether the figure is a value or a bound. by, arguments: the evaluator of ours and what it takes (`evaluate`).
    why: why ours is off, missing, or shown alone.
    """

    sentence: str
    figure: float | None
    unit: str
    where: str
    standing: Standing
    says: Says = "about"
    by: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""

    @property
    def within(self) -> float:
        """How far ours may be off, as a share of the figure."""
        return RATIO if self.unit in RATIOS else ABSOLUTE


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A claim and ours: in its unit, None where there is none; note: what ours is made of."""

    claim: Claim
    ours: float | None
    note: str = ""

    @property
    def deviation(self) -> float | None:
        """Ours over the paper's figure, less 1; of a bound, how far ours is on the wrong side, 0 on the right one."""
        if self.ours is None or self.claim.figure is None:
            return None
        off = self.ours / self.claim.figure - 1.0 if self.claim.figure else self.ours
        return {"about": off, "at most": max(off, 0.0), "at least": min(off, 0.0)}[self.claim.says]

    @property
    def verdict(self) -> str:
        """One of AGREES, OFF, MISSING, SHOWN."""
        if not self.claim.by:
            return MISSING
        if self.claim.standing == "derived" or self.claim.figure is None:
            return SHOWN
        if self.deviation is None:
            return MISSING
        within = self.claim.within if self.claim.says == "about" else 0.0
        return AGREES if abs(self.deviation) <= within + 1e-12 else OFF


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper's title and source, the systems of it (`systems.toml`), and its claims."""

    name: str
    title: str
    source: str
    systems: tuple[int, ...]
    claims: tuple[Claim, ...]


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A paper with the outcome of each of its claims."""

    paper: Paper
    outcomes: tuple[Outcome, ...]

    def count(self, *verdicts: str) -> int:
        """How many claims have one of these verdicts."""
        return sum(o.verdict in verdicts for o in self.outcomes)


def merged(first: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    """The first table with the second's values in place; tables in it are merged alike, and "-" takes a value away."""
    out = dict(first)
    for key, value in then.items():
        old = out.get(key)
        out[key] = merged(old, value) if isinstance(value, Mapping) and isinstance(old, Mapping) else value
    return {key: value for key, value in out.items() if value != "-"}
