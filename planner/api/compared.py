"""One layout under every schedule, its layers split over stages, and two plans side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planner.api.answer import Answer
from planner.plan_file import SavedPlan, read_plan
from planner.question import one_layout
from planner.report.difference import difference_record, plans_view
from planner.report.records import estimate_record
from planner.report.simulations import comparison_record, comparison_view, split_record, split_view
from planner.report.tables import question_title
from planner.search.compare import compare
from planner.search.stage_split import stage_split
from planner.setup import Setup
from planner.step.timeline.timed import timed_estimate


def compare_schedules(setup: Setup, **choices: Any) -> Answer:
    """Every schedule that is legal for a layout, simulated; choices: as of `planner.estimate`.

    Raises as `planner.estimate`, and LayoutError if no schedule can run it.
    """
    layouts = one_layout(setup.cluster, **choices, own_split=setup.framework.layer_split)
    rows, refused = compare(setup, layouts)
    title = question_title(setup, int(layouts.gpus[0]), int(layouts.global_batch[0]))
    return Answer(title, comparison_record(rows, refused, setup.cluster), comparison_view(rows, refused, setup.cluster))


def partition(setup: Setup, **choices: Any) -> Answer:
    """The layers split over pipeline stages by cost; choices: as of `planner.estimate`, but for the split.

    Raises as `planner.estimate`, and LayoutError if no split fits in memory.
    """
    layouts = one_layout(setup.cluster, **choices, layer_split="even")
    split = stage_split(setup, layouts)
    title = question_title(setup, int(layouts.gpus[0]), int(layouts.global_batch[0]))
    return Answer(title, split_record(split), split_view(split))


def compare_plans(
    first: Path, second: Path, *, cluster: str | None = None, network: str | None = None, framework: str | None = None
) -> Answer:
    """Two plans: their own figures, or estimates where a file has none.

    cluster, network, framework: in place of the plans' own.

    Raises as `planner.plan_file.read_plan`.
    """
    plans = [read_plan(path, cluster=cluster, network=network, framework=framework) for path in (first, second)]
    a, b = (_figures(plan) for plan in plans)
    titles = [question_title(p.setup, p.gpus, int(p.layouts.global_batch[0])) for p in plans]
    record = {"a": a, "b": b, "difference": difference_record(a, b)}
    return Answer("", record, plans_view((str(first), str(second)), (titles[0], titles[1]), a, b))


def _figures(plan: SavedPlan) -> dict[str, Any]:
    """The layout's record as the file has it, or its estimate where the file has no figures."""
    setup = plan.setup
    record = estimate_record(timed_estimate(setup, plan.layouts), 0, setup.cluster)
    return record | plan.figures()
