"""Figures of the largest training within a time, as `planner largest` finds it."""

from __future__ import annotations

from functools import cache
from typing import Any

from planner.base.errors import LayoutError
from planner.hardware import load_cluster
from planner.question import largest_question
from planner.training_time.largest import COMPUTES, Largest, plan_largest


def largest_figure(*, quantity: str, cluster: str, mtbf_hours: float, **asked: Any) -> tuple[float, str]:
    """FLOP of a training: the largest that is done in time, or where utilisation falls under four fifths of its most.

    quantity: largest, falls. asked: as of `planner.question.largest_question`.

    Raises:
        PlannerError: an unknown name, or nothing is done in time.
    """
    found = _found(cluster, mtbf_hours, tuple(sorted(asked.items())))
    if found.best is None or found.best.run is None or found.falls_at_flop is None:
        raise LayoutError(f"no training on {cluster} is done in time")
    note = f"the largest on {int(found.best.run.gpus[0]):,} GPUs at {found.best.utilisation:.1%}"
    return {"largest": found.best.flop, "falls": found.falls_at_flop}[quantity], note


@cache
def _found(cluster: str, mtbf_hours: float, asked: tuple[tuple[str, Any], ...]) -> Largest:
    """One search, of which several claims are."""
    question = largest_question(load_cluster(cluster), given={"mtbf_hours": mtbf_hours}, **dict(asked))
    return plan_largest(question, COMPUTES)
