"""Answers to what the page's script asks of a plan, as JSON text."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from planner.api.plan import Plan
from planner.api.reports import exported, gather_report
from planner.base.errors import InputError, PlannerError, shown
from planner.base.units import GBIT
from planner.choices.choice import value_text
from planner.choices.table import CHOICES, SETTLED, SHARED
from planner.hardware import cluster_figures
from planner.imports.deepspeed import deepspeed_run
from planner.imports.megatron import megatron_run
from planner.imports.torchtitan import torchtitan_run
from planner.report.html.page import html_page
from planner.report.html.record import answer_record, report_record, timeline_text
from planner.report.plan_report import shown_layouts
from planner.report.tables import layout_text
from planner.serve.fields import CHANGED, SEQUENCES
from planner.serve.question import AskedQuestion, pasted, read_question
from planner.step.timeline.step import simulate
from planner.training_time.goal import Goal, goal

TIMES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Multiples of the question's number at which a curve has its points."""
_figures_of = lru_cache(maxsize=64)(cluster_figures)


@dataclass(frozen=True, eq=False)
class Planned:
    """A question with its plan, and the answer's text."""

    question: AskedQuestion
    plan: Plan
    text: str


def planned(question: AskedQuestion) -> Planned:
    """The plan of a question, and what the page shows at once: all of a report that takes no simulation."""
    plan = question.plan()
    report = gather_report(plan, command=question.command, aim=_aim(question), brief=True)
    own = _figures_of(question.texts["cluster"], network=question.texts.get("network"))
    profile = {name: own.get(name) for name in CHANGED}
    record = report_record(report) | {"python": question.python, "profile": profile}
    return Planned(question, plan, _json(record))


def _aim(question: AskedQuestion) -> Goal:
    return goal(question.model.transformer, tokens=question.tokens)


def why(planned: Planned, *, wanted: str) -> str:
    """Why the best isn't as wanted, part by part."""
    return _json(answer_record(planned.plan.why(wanted).to_dict()))


def beside(planned: Planned) -> str:
    """The parts that take searches of their own: costs of the nearest other decisions, a sentence each; exports."""
    return _json({"reasons": planned.plan.reasons, "exports": exported(planned.plan)})


def timeline(planned: Planned, *, row: str) -> str:
    """The exact timeline of a layout that the page shows, by its place there. Raises InputError if there is none."""
    plan, rows = planned.plan, shown_layouts(planned.plan.found)
    if not rows:
        return _json({"timeline": ""})
    if row not in (places := [*map(str, range(len(rows)))]):
        raise InputError(f"row is {shown(row)}; allowed: 0 to {places[-1]}")
    layout = plan.found.estimate.layouts.take([rows[int(row)]])
    return _json({"timeline": timeline_text(simulate(plan.setup, layout))})


def along(planned: Planned, *, axis: str) -> str:
    """The best layout of each of some GPUs, batches or bandwidths of a NIC; a fault where there is none.

    Raises InputError if there is no such axis.
    """
    q, link = planned.question, planned.plan.setup.cluster.network.bandwidth_bytes_per_s / GBIT
    axes: Mapping[str, tuple[str, float, Mapping[str, str]]] = {
        "gpus": ("gpus", q.gpus, {}), "batch": ("batch", q.batch, {"batch_in": SEQUENCES}),
        "bandwidth": ("network.bandwidth_gbit_per_s", link, {}),
    }  # fmt: skip
    if axis not in axes:
        raise InputError(f"axis is {shown(axis)}; allowed: {', '.join(axes)}")
    field, own, beside = axes[axis]
    values = [own * times for times in TIMES if axis == "bandwidth" or (own * times).is_integer()]
    return _json({"axis": axis, "asked": own, "points": [_point(q, {field: f"{x:.12g}", **beside}, x) for x in values]})


def _point(question: AskedQuestion, texts: Mapping[str, str], x: float) -> dict[str, Any]:
    """The best layout of a question with some texts changed."""
    try:
        plan = read_question({**question.texts, "batch": str(question.batch), "batch_in": SEQUENCES, **texts}).plan()
    except PlannerError as error:
        return {"x": x, "none": str(error)}
    if not len(plan):
        return {"x": x, "none": "Nothing fits in memory."}
    best = plan.best
    return {
        "x": x, "text": layout_text(best.layout), "step_s": best.step_time_s, "memory_gib": best.memory_gib,
        "tokens_per_s_per_gpu": best.tokens_per_s_per_gpu,
    }  # fmt: skip


def taken(planned: Planned, *, text: str) -> str:
    """The choices of a run from Megatron-LM's arguments, DeepSpeed's JSON or torchtitan's TOML, with the own model."""
    q, setup = planned.question, planned.plan.setup
    if text.lstrip().startswith("{"):
        with pasted(text, "ds_config.json") as path:
            run = deepspeed_run(path, setup, gpus=q.gpus, pp=1, ep=1, recompute="none", attention=None)
    elif re.search(r"(?m)^[ \t]*\[[a-z_][\w.]*\][ \t\r]*(#.*)?$", text):
        with pasted(text, "torchtitan.toml") as path:
            run = torchtitan_run(path, setup, gpus=q.gpus)
    else:
        run = megatron_run(text, setup.cluster, setup.framework, gpus=q.gpus, model=q.model.transformer, vocab=None)
    row, own = run.layouts.row(0), planned.plan.found.estimate.layouts.row(0)
    said = [f"{name}={value_text(row[name])}" for name in SETTLED if _matters(name, row)]
    notes = [*run.notes, *(f"not understood: {x}" for x in run.unknown)]
    # A question has one value of such a choice, and the page compares layouts of one question.
    other = [name for name in SHARED if name not in SETTLED and row[name] != own[name]]
    notes += [f"{CHOICES[n].typed} {value_text(row[n])}: compared with {value_text(own[n])}" for n in other]
    return _json({"wanted": ",".join(said), "notes": notes})


def _matters(name: str, row: Mapping[str, Any]) -> bool:
    """Whether a choice of a run says something: pipelines' own where there is one, experts' where they are spread."""
    choice = CHOICES[name]
    return bool(row["pp"] > 1) if choice.pipelined else choice.always or row[name] != choice.plain(choice.default)


def report(planned: Planned) -> str:
    """The whole report as an HTML file's text."""
    plan = planned.plan
    return _json({"html": html_page(gather_report(plan, command=planned.question.command, aim=_aim(planned.question)))})


def _json(record: object) -> str:
    return json.dumps(record, separators=(",", ":"), allow_nan=False)


ANSWERS: Mapping[str, tuple[Callable[..., str] | None, tuple[str, ...]]] = {
    "answer": (None, ()), "why": (why, ("wanted",)), "timeline": (timeline, ("row",)), "taken": (taken, ("text",)),
    "report": (report, ()), "beside": (beside, ()), "along": (along, ("axis",)),
}  # fmt: skip
"""Who answers each of the page's questions, None for the plan's own text; and the fields beside the question."""
