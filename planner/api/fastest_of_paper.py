"""The shortest training that a paper found, and ours for the same question: the difference, part by part."""

from __future__ import annotations

from planner.api.answer import Answer
from planner.base.errors import InputError
from planner.base.units import DAY
from planner.report.fastest_of_paper import paper_fastest_view, point
from planner.report.tables import layout_text
from planner.reproductions import get_paper
from planner.reproductions.shortest import (
    paper_question,
    parts_of_ours,
    parts_of_the_paper,
    shortest,
    towards_today,
)

MOST_GPUS = 100_000


def fastest_of_paper(paper: str, model: str, framework: str | None = None) -> Answer:
    """The paper's answer, the paper's model of costs, ours on its question, and ours on today's usual question.

    Raises:
        UnknownNameError: No such paper, or it asks no such question; or no such framework.
        InputError: Another model than the paper's.
    """
    question = paper_question(paper, framework)
    p = question.preset
    if model != p["model"]:
        raise InputError(f"model is {model}; allowed with --paper {paper}: {p['model']}")
    c, theirs = parts_of_the_paper(question)
    found = shortest(question, p["strategy"], p["max_gpus"])
    i, ours = found.best, parts_of_ours(found)
    lost = float(found.run.wall_s[i] - found.run.busy_s[i]) / DAY
    changes = towards_today(question, "3d", MOST_GPUS)
    record = {
        "paper": paper,
        "model": model,
        "tokens": p["tokens"],
        "framework": question.setup.framework.name,
        "published_days": p["days"],
        "paper_days": sum(theirs.values()),
        "paper_gpus": int(c.gpus),
        "ours": point(found) | {"layout": layout_text(found.estimate.layouts.row(i))},
        "parts": [{"part": name, "paper_days": theirs[name], "ours_days": ours[name]} for name in theirs],
        "failures_and_checkpoints_days": lost,
        "towards_today": [{"change": name} | point(one) for name, one in changes],
    }
    return Answer("", record, paper_fastest_view(record, get_paper(paper)))
