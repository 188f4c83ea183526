"""Figures of how far training scales: the largest within a time, and where utilisation falls."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from planner.api.limits import largest


def scaling_figure(*, quantity: str, **asked: Any) -> tuple[float, str]:
    """A figure of `planner.largest` without failures: largest (FLOP), or falls_at_flop, where utilisation falls.

    Raises:
        PlannerError: an unknown name, a number out of range.
    """
    kind = _kind(**asked)
    best = kind["largest"]
    note = f"{best['gpus']:,} GPUs at {best['utilisation']:.1%}; what binds there: {best['binding']}"
    return {"largest": best["flop"], "falls_at_flop": kind["falls_at_flop"]}[quantity], note


@lru_cache(maxsize=8)
def _kind(**asked: Any) -> dict[str, Any]:
    kind: dict[str, Any] = largest(**asked, given={"mtbf_hours": 1e12}).record["kinds"][0]
    return kind
