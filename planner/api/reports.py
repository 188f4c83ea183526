"""All that a report on a plan shows, gathered: for `planner recommend --html` and for `Plan.report`."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from planner import __version__
from planner.errors import LayoutError
from planner.export.plan_export import TARGETS, export_plan
from planner.layouts import Attention, Precision
from planner.plan_file import Plan
from planner.plans.goal import Goal
from planner.question import Question
from planner.report.plan_report import ExportText, PlanReport, shortest_times, simulate_shown
from planner.report.tables import question_title
from planner.search import Recommendation
from planner.search.passes import sample
from planner.validation import accuracy_of

__all__ = ["best_plan", "gather_report"]

LARGEST_COMPANION = 60_000  # characters of a schedule's CSV in a page
MOST_OTHERS = 4096  # layouts that are estimated to be grey dots: a tenth of them lies in the picture, or more
Working = Callable[[str], AbstractContextManager[Any]]


def best_plan(question: Question, found: Recommendation, record: dict[str, Any]) -> Plan:
    """The best of a search as a plan; record: the recommendation as JSON prints it."""
    layouts = found.estimate.layouts.take(found.best[:1])
    return Plan(question=question, layouts=layouts, record=record["best"][0])


def gather_report(
    question: Question,
    found: Recommendation,
    numerics: tuple[Precision, Attention],
    record: dict[str, Any],
    *,
    command: str,
    aim: Goal | None,
    working: Working = nullcontext,
) -> PlanReport:
    """All that a report shows: takes seconds.

    record: the recommendation as JSON prints it. command: what made the report. aim: what is trained, None: without the
    curve of the shortest time. working: told what is being done, around it.
    """
    q, (precision, attention), gpus = question, numerics, int(record["gpus"])
    curve = None
    if aim is not None:
        with working("searching the shortest time to train"):
            curve = shortest_times(
                q.model, q.cluster, q.framework, aim, gpus=gpus, precision=precision, attention=attention
            )
    with working("simulating the layouts of the report"):
        steps = simulate_shown(q.model, q.cluster, q.framework, found)
    batch = int(record["global_batch"])
    return PlanReport(
        version=__version__,
        title=question_title(q.model, q.cluster, gpus, batch),
        command=command,
        model=q.model,
        cluster=q.cluster,
        framework=q.framework,
        gpus=gpus,
        global_batch=batch,
        precision=precision.name.lower(),
        attention=attention.name.lower(),
        found=found,
        others=sample(q.model, q.cluster, q.framework, found.asked, every=-(-found.legal // MOST_OTHERS)),
        steps=steps,
        accuracy=accuracy_of(q.cluster.accelerator.efficiency.name),
        curve=curve,
        exports=_exports(record, best_plan(q, found, record)) if len(found.best) else [],
    )


def _exports(record: dict[str, Any], plan: Plan) -> list[ExportText]:
    """The recommended plan as JSON and as every framework's file, or why a framework can't run it."""
    text = json.dumps(record | {"best": record["best"][:1], "pareto_front": []}, indent=2, allow_nan=False) + "\n"
    note = "As planner recommend --save writes it, with the best layout alone: planner export reads it."
    out = [ExportText(name="Plan (JSON)", filename="plan.json", text=text, notes=(note,))]
    for target in TARGETS.values():
        name = target.name if any(x.name == target.title for x in out) else target.title
        file = Path(target.name + target.suffix)
        try:
            done = export_plan(plan, target, path=file)
        except LayoutError as error:
            out.append(ExportText(name=name, filename=file.name, text="", notes=(str(error),)))
            continue
        notes = tuple(f"Not in {target.title}: {note}." for note in done.notes)
        notes += (f"WARNING: {done.warning}",) if done.warning else ()
        out.append(ExportText(name=name, filename=file.name, text=done.text, notes=notes))
        for path, beside in done.companions.items():
            if len(beside) <= LARGEST_COMPANION:
                out.append(ExportText(name=path.name, filename=path.name, text=beside))
    return out
