"""What the page's script may ask of a plan, each answer as JSON text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.api.plan import Plan
from planner.api.reasons import reasons
from planner.api.reports import exported, gather_report, simulate_row
from planner.choices.table import CHOICES, SETTLED
from planner.imports.megatron import megatron_run
from planner.report.html import html_page
from planner.report.html.record import answer_record, export_records, report_record, timeline_text
from planner.report.plan_report import shown_layouts
from planner.serve.question import AskedQuestion
from planner.training_time.goal import Goal, goal


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
    record = report_record(report) | {"python": question.python}
    return Planned(question, plan, _json(record))


def _aim(question: AskedQuestion) -> Goal:
    return goal(question.model.transformer, tokens=question.tokens)


def why(planned: Planned, *, wanted: str) -> str:
    """Why the best isn't as wanted, part by part."""
    return _json(answer_record(planned.plan.why(wanted).to_dict()))


def beside(planned: Planned) -> str:
    """What takes searches of its own: what the nearest other decisions would cost, a sentence each; the exports."""
    return _json({"reasons": reasons(planned.plan), "exports": export_records(exported(planned.plan))})


def timeline(planned: Planned, *, row: str) -> str:
    """The exact timeline of a layout that the page shows, by its place there."""
    rows = shown_layouts(planned.plan.found)
    at = int(row) if row.isdecimal() and len(row) < 4 and int(row) < len(rows) else 0
    return _json({"timeline": timeline_text(simulate_row(planned.plan, rows[at])) if rows else ""})


def taken(planned: Planned, *, text: str) -> str:
    """The choices of a run from its Megatron-LM arguments, with the question's own model."""
    q = planned.question
    setup = planned.plan.setup
    run = megatron_run(text, setup.cluster, setup.framework, gpus=q.gpus, model=q.model.transformer, vocab=None)
    row = run.layouts.row(0)
    said = [f"{name}={_word(row[name])}" for name in SETTLED if _matters(name, row)]
    return _json({"wanted": ",".join(said), "notes": [*run.notes, *(f"not understood: {x}" for x in run.unknown)]})


def _matters(name: str, row: Mapping[str, Any]) -> bool:
    """Whether a choice of a run says something: pipelines' own where there is one, experts' where they are spread."""
    choice = CHOICES[name]
    return bool(row["pp"] > 1) if choice.pipelined else choice.always or row[name] != choice.plain(choice.default)


def _word(value: Any) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def report(planned: Planned) -> str:
    """The whole report as an HTML file's text."""
    plan = planned.plan
    return _json({"html": html_page(gather_report(plan, command=planned.question.command, aim=_aim(planned.question)))})


def _json(record: object) -> str:
    return json.dumps(record, separators=(",", ":"), allow_nan=False)


ANSWERS: Mapping[str, tuple[Callable[..., str] | None, tuple[str, ...]]] = {
    "answer": (None, ()), "why": (why, ("wanted",)), "timeline": (timeline, ("row",)), "taken": (taken, ("text",)),
    "report": (report, ()), "beside": (beside, ()),
}  # fmt: skip
"""By what the page asks: who answers, None for the plan's own text; and the fields beside the question."""
