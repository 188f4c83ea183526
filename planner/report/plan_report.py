"""The parts of a report on a recommended plan: `planner.api.reports` computes them, a page draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.setup import Setup

if TYPE_CHECKING:
    from planner.scaling.training import TrainingTime
    from planner.search import Recommendation
    from planner.step.estimate import Estimate
    from planner.step.timeline.step import StepSimulation
    from planner.training_time.fastest import Fastest
    from planner.training_time.training import TrainingCase
    from planner.validation import Accuracy

MOST_TOP, MOST_FRONT = 10, 30


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The reader's own training, and the shortest time against accelerators.

    found: that search; None where there is none, for the reason in `none`, or it was not asked for. case: what is
    trained, and what is assumed. own: the training with the recommended layout; None where nothing fits.
    """

    found: Fastest | None
    none: str
    case: TrainingCase
    own: TrainingTime | None = None


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """A recommendation with all that a reader asks next.

    others: the estimate of some of the layouts that were searched, evenly through the space; None: not drawn.
    steps: simulated steps by the layout's row in the recommendation's table; intervals_s: for each row that is shown
    between which seconds its measured step lies in 80 % of such cases, if that is known; trust: how far predictions
    have been from measured runs. answers: the records of `Plan.why`; reasons: what the nearest other
    decisions would cost, a sentence each. exports: the plan in other tools' words, each tool's `name`, a `file`'s name
    and `text` (none: the tool can't run it), and `notes` on what it can't express. command: the line that made this
    report, by planner of that version.
    """

    version: str
    title: str
    command: str
    setup: Setup
    found: Recommendation
    others: Estimate | None
    steps: Mapping[int, StepSimulation]
    intervals_s: Mapping[int, tuple[float, float] | None]
    accuracy: Accuracy
    trust: str
    curve: Curve | None = None
    exports: Sequence[dict[str, Any]] = ()
    answers: Sequence[dict[str, Any]] = ()
    reasons: Sequence[str] = ()


def shown_layouts(found: Recommendation) -> list[int]:
    """Rows of the layouts that a report shows in full, fastest of the fitting first: best, front, those over memory."""
    front = found.front
    if len(front) > MOST_FRONT:  # evenly along the front, both ends kept
        front = front[np.unique(np.linspace(0, len(front) - 1, MOST_FRONT).round().astype(int))]
    over = [i for i in (found.nearest_miss, found.faster_over_memory) if i is not None]
    ends = [int(i) for i in (found.fastest, found.roomiest) if i is not None]
    rows = dict.fromkeys([*map(int, found.best[:MOST_TOP]), *map(int, front), *ends])
    ordered = sorted(rows, key=lambda i: float(found.estimate.step_time_s[i]))
    return [*ordered, *(i for i in dict.fromkeys(over) if i not in rows)]
