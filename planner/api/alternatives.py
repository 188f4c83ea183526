"""Other questions whose answer a plan names: another framework's schedules, more GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from planner.api.layout_estimate import LayoutEstimate
from planner.base.errors import InputError, LayoutError
from planner.search import Recommendation
from planner.search import recommend as search
from planner.search.request import Request
from planner.setup import Setup

WORTH_SAYING = 0.995  # of the best step
DOUBLINGS = 7


def faster_elsewhere(setup: Setup, found: Recommendation, free: Sequence[str]) -> LayoutEstimate | None:
    """The best layout that the framework does not run, with tensor ranks as the best have; None where it gains little.

    free: the choices that the user has not settled.
    """
    lacks = {name: None for name in free if getattr(setup.framework.runs, name)}
    if not lacks or not len(found.best):
        return None
    asked, tp = found.asked, found.estimate.layouts.tp[found.best]
    only: dict[str, Any] = {**lacks, "tp": tuple(np.unique(tp).tolist())}
    worth = WORTH_SAYING * float(found.estimate.step_time_s[found.best[0]])
    try:
        other = replace(asked, fixed=replace(asked.fixed, **only))
        wider = search(setup, **other.question, top=1, plainest=True, reach_s=worth)
    except LayoutError:  # nothing is that fast
        return None
    best = LayoutEstimate(setup, wider.estimate, int(wider.best[0])) if len(wider.best) else None
    return best if best is not None and best.step_time_s < worth else None


def fewest_gpus(setup: Setup, asked: Request) -> int | None:
    """Of 2, 4, 8, ... times the GPUs of a question the fewest on which a layout fits; None where it fits on none."""
    for gpus in (asked.gpus << k for k in range(1, DOUBLINGS + 1)):
        try:
            found = search(setup, **asked.sized(gpus, asked.global_batch).question, top=1, objective="memory")
        except (InputError, LayoutError):  # more GPUs than the cluster has, or a number that nothing divides
            continue
        if len(found.best):
            return gpus
    return None
