"""All that a report on a plan shows, computed: for `planner recommend --html` and for `Plan.report`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner import __version__
from planner.api.anchored import interval_s, trust
from planner.api.training import MOST_GPUS
from planner.base.errors import LayoutError
from planner.base.files import write_text
from planner.exporters.plan_export import TARGETS, export_plan
from planner.report.plan_report import Curve, PlanReport, shown_layouts
from planner.report.tables import question_title
from planner.search import Recommendation
from planner.search.scan import sample
from planner.setup import Setup
from planner.step.timeline.many import simulate_each
from planner.step.timeline.step import StepSimulation
from planner.training_time.assumptions import assume
from planner.training_time.fastest import plan_fastest
from planner.training_time.goal import Goal, goal
from planner.training_time.joint import strategy
from planner.training_time.time import run_of
from planner.training_time.training import TrainingCase
from planner.validation import accuracy_of

if TYPE_CHECKING:
    from planner.api.answer import Answer
    from planner.api.plan import Plan

LARGEST_COMPANION = 60_000  # characters of a schedule's CSV in a page
MORE_GPUS, LEAST_GPUS = 32, 1024  # the curve goes to so many times those asked for, at least to so many
MOST_SIMULATED = 600_000  # operations of a layout's step: half a second
MOST_OTHERS = 4096  # layouts that are estimated to be grey dots: a tenth of them lies in the picture, or more
Working = Callable[[str], AbstractContextManager[Any]]


_accuracy = cache(accuracy_of)


def gather_report(
    plan: Plan, *, command: str, aim: Goal | None, brief: bool = False, answers: Sequence[Answer] = (),
    working: Working = nullcontext,
) -> PlanReport:  # fmt: skip
    """All that a report shows: takes seconds; brief: all but searches and timelines, at once.

    command: what made the report. aim: what is trained, None: without the curve of the shortest time. working: told
    what is being done, around it.
    """
    setup, found, request, curve = plan.setup, plan.found, plan.found.request, None
    architecture = setup.cluster.accelerator.efficiency.name
    if aim is not None:
        with working("searching the shortest time to train"):
            curve = _training(setup, found, aim) if brief else shortest_times(setup, found, aim)
    steps: dict[int, StepSimulation] = {}
    if not brief:
        with working("simulating the layouts of the report"):
            steps = simulate_shown(setup, found)
    return PlanReport(
        version=__version__,
        title=question_title(setup, request.gpus, request.global_batch),
        command=command,
        setup=setup,
        found=found,
        others=None if brief else sample(setup, request, every=-(-found.legal // MOST_OTHERS)),
        steps=steps,
        intervals_s={i: interval_s(setup, found.estimate, i) for i in shown_layouts(found)},
        accuracy=_accuracy(architecture),
        trust=trust(setup),
        curve=curve,
        answers=[answer.to_dict() for answer in answers],
        reasons=[] if brief else plan.reasons,
        exports=[] if brief else exported(plan),
    )


def save_report(
    plan: Plan, path: Path, *, command: str, curve: bool, tokens: float | None, loss: float | None,
    answers: Sequence[Answer], working: Working = nullcontext,
) -> None:  # fmt: skip
    """Write a report as a page; arguments as of `gather_report` and `Plan.report`, and raises as these."""
    from planner.report.html.page import html_page

    aim = goal(plan.setup.model, tokens=tokens, loss=loss) if curve else None
    report = gather_report(plan, command=command, aim=aim, answers=answers, working=working)
    with working("drawing"):
        write_text(path, html_page(report))


def simulate_shown(setup: Setup, found: Recommendation) -> dict[int, StepSimulation]:
    """The exact timelines of `shown_layouts`, but for steps of more operations than `MOST_SIMULATED`.

    The best layout's is made whatever its size, up to the simulator's own limit.

    Raises ScheduleError if the best layout's is over that limit.
    """
    layouts = found.estimate.layouts
    operations = 2 * layouts.pp * layouts.micro_batches * layouts.virtual_stages * layouts.sequence_slices
    best = int(found.best[0]) if len(found.best) else None
    rows = [i for i in shown_layouts(found) if i == best or operations[i] <= MOST_SIMULATED]
    steps = dict(simulate_each(setup, layouts.take(rows)))
    return {row: steps[i] for i, row in enumerate(rows)}


def shortest_times(setup: Setup, found: Recommendation, aim: Goal) -> Curve:
    """The shortest training times on up to `MORE_GPUS` times the accelerators asked for, as the cluster allows.

    What the framework runs and what is settled holds there too, but for the replicas.
    """
    request, curve = found.request, _training(setup, found, aim)
    most = min(setup.cluster.max_gpus or MOST_GPUS, MOST_GPUS, max(MORE_GPUS * request.gpus, LEAST_GPUS))
    try:
        settled = {name: values for name, values in request.fixed.settled.items() if name != "dp"}
        free = request.held(settled=settled)
        fastest = plan_fastest(curve.case, strategy("3d"), free, max_gpus=most)
    except LayoutError as error:
        return replace(curve, none=str(error))
    return replace(curve, found=fastest)


def _training(setup: Setup, found: Recommendation, aim: Goal) -> Curve:
    """The training with the recommended layout on the accelerators asked for, and no search beside it."""
    request, own = found.request, None
    case = TrainingCase(setup=setup, goal=aim, assumptions=assume(setup.cluster), train=request.fixed.train)
    if len(found.best):
        step = found.estimate.step_time_s[found.best[0]]
        own, _, _ = run_of(case, step, gpus=request.gpus, batch=request.global_batch, exact_tokens=aim.exact)
    return Curve(found=None, none="", case=case, own=own)


def exported(plan: Plan) -> list[dict[str, Any]]:
    """The recommended plan as JSON and as every framework's file, or why a framework can't run it (`PlanReport`)."""
    if not len(plan):
        return []
    record, best = plan.to_dict(), plan.best.as_plan()
    text = json.dumps(record | {"best": record["best"][:1], "pareto_front": []}, indent=2, allow_nan=False) + "\n"
    note = "As planner recommend --save writes it, with the best layout alone: planner export reads it."
    out = [{"name": "Plan (JSON)", "file": "plan.json", "text": text, "notes": [note]}]
    for target in TARGETS.values():
        name = target.name if any(x["name"] == target.title for x in out) else target.title
        file = Path(target.name + target.suffix)
        try:
            done = export_plan(best, target, path=file)
        except LayoutError as error:
            out.append({"name": name, "file": file.name, "text": "", "notes": [str(error)]})
            continue
        notes = [f"Not in {target.title}: {note}." for note in done.notes]
        notes += [f"WARNING: {done.warning}"] if done.warning else []
        out.append({"name": name, "file": file.name, "text": done.text, "notes": notes})
        for path, beside in done.companions.items():
            if len(beside) <= LARGEST_COMPANION:
                out.append({"name": path.name, "file": path.name, "text": beside, "notes": []})
    return out
