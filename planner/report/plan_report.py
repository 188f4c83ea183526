"""What a report on a recommended plan is made of: gathered once, drawn as a page (HTML) or as slides (PNG, PDF)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.errors import LayoutError
from planner.estimate import Estimate
from planner.hardware import Cluster, Framework
from planner.layouts import Attention, Precision
from planner.models import Transformer
from planner.plans.assumptions import Assumptions, assume
from planner.plans.fastest import Fastest, plan_fastest
from planner.plans.goal import Goal
from planner.plans.joint import strategy
from planner.search import Recommendation
from planner.simulation.step import StepSimulation, simulate
from planner.validation.accuracy import Accuracy

__all__ = ["Curve", "ExportText", "PlanReport", "shortest_times", "shown_layouts", "simulate_shown"]

MOST_TOP, MOST_FRONT = 10, 30
MOST_GPUS = 100_000
MORE_GPUS, LEAST_GPUS = 32, 1024  # the curve goes to so many times those asked for, at least to so many
MOST_SIMULATED = 600_000  # operations of a layout's step: half a second


@dataclass(frozen=True, kw_only=True)
class ExportText:
    """A plan in another tool's words: which tool, a file's name and text, and what that tool can't express.

    No text: the tool can't run it, for the reason in the notes.
    """

    name: str
    filename: str
    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The shortest time against accelerators: the search, or why there is none; what is trained and assumed."""

    found: Fastest | None
    none: str
    goal: Goal
    assumptions: Assumptions


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """A recommendation with all that a reader asks next.

    others: the estimate of some of the layouts that were searched, evenly through the space.
    steps: simulated steps by the layout's row in the recommendation's table; command: the line that made this report,
    by planner of that version.
    """

    version: str
    title: str
    command: str
    model: Transformer
    cluster: Cluster
    framework: Framework
    gpus: int
    global_batch: int
    precision: str
    attention: str
    found: Recommendation
    others: Estimate
    steps: Mapping[int, StepSimulation]
    accuracy: Accuracy
    curve: Curve | None = None
    exports: Sequence[ExportText] = ()


def shown_layouts(found: Recommendation) -> list[int]:
    """Rows of the layouts that a report shows in full, fastest of the fitting first: best, front, those over memory."""
    front = found.front
    if len(front) > MOST_FRONT:  # evenly along the front, both ends kept
        front = front[np.unique(np.linspace(0, len(front) - 1, MOST_FRONT).round().astype(int))]
    over = [i for i in (found.nearest_miss, found.faster_over_memory) if i is not None]
    rows = dict.fromkeys([*map(int, found.best[:MOST_TOP]), *map(int, front)])
    ordered = sorted(rows, key=lambda i: float(found.estimate.step_time_s[i]))
    return [*ordered, *(i for i in dict.fromkeys(over) if i not in rows)]


def simulate_shown(
    model: Transformer, cluster: Cluster, framework: Framework, found: Recommendation
) -> dict[int, StepSimulation]:
    """The exact timelines of `shown_layouts`, but for steps of more operations than `MOST_SIMULATED`.

    The best layout's is made whatever its size, up to the simulator's own limit.

    Raises:
        ScheduleError: the best layout's is over that limit.
    """
    layouts = found.estimate.layouts
    operations = 2 * layouts.pp * layouts.micro_batches * layouts.virtual_stages * layouts.sequence_slices
    best = int(found.best[0]) if len(found.best) else None
    rows = [i for i in shown_layouts(found) if i == best or operations[i] <= MOST_SIMULATED]
    return {i: simulate(model, cluster, framework, layouts.take([i])) for i in rows}


def shortest_times(
    model: Transformer,
    cluster: Cluster,
    framework: Framework,
    aim: Goal,
    *,
    gpus: int,
    precision: Precision,
    attention: Attention,
) -> Curve:
    """The shortest training times on up to `MORE_GPUS` times the accelerators asked for, as the cluster allows."""
    most = min(cluster.max_gpus or MOST_GPUS, MOST_GPUS, max(MORE_GPUS * gpus, LEAST_GPUS))
    assumptions = assume(cluster)
    try:
        found = plan_fastest(
            model, cluster, framework, aim, assumptions, strategy("3d"), max_gpus=most, precision=precision,
            attention=attention,
        )  # fmt: skip
    except LayoutError as error:
        return Curve(found=None, none=str(error), goal=aim, assumptions=assumptions)
    return Curve(found=found, none="", goal=aim, assumptions=assumptions)
