"""Papers and their claims beside ours, as records, views and a page: read, recalled and derived apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from planner.base.units import few_digits
from planner.report.plain_table import View, bold, plain_table, stacked
from planner.report.plots import RED, figure_of
from planner.report.training import finite

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from planner.reproductions import Outcome, Paper, Reproduction

FROM = {
    "timeline": "timeline of its order", "layout": "cost models", "run": "cost models, the run as published",
    "runs": "cost models, measured runs", "model of 2021": "the paper's assumptions",
    "shortest": "cost models, searched", "largest": "cost models, searched", "volume": "mini-trainer",
}  # fmt: skip
"""Sources of our figures, by evaluator."""
GROUPS = (("read", "Read in a source"), ("recalled", "Recalled, not read again"))
COUNTED = ("agrees", "off", "not reproduced")
HOW = (
    "agrees: within 10 % of a ratio, 15 % of an absolute figure, on the right side of a bound. What is derived here, "
    "or has no published figure, is shown and counts for nothing"
)


def number(value: float | None) -> str:
    """A figure in few digits; a dash for none."""
    return "-" if value is None else few_digits(value)


def said(o: Outcome) -> str:
    """The paper's figure with its bound, such as "at least 1.1"."""
    bound = "" if o.claim.says == "about" else f"{o.claim.says} "
    return bound + number(o.claim.figure)


def off_by(o: Outcome) -> str:
    """How far ours is off, as a share of the paper's."""
    return "-" if o.deviation is None or not o.claim.figure else f"{round(o.deviation, 3) + 0.0:+.0%}"


def note(o: Outcome) -> str:
    """The source of our figure, and why it is off or missing."""
    parts = [FROM.get(o.claim.by, ""), o.note, o.claim.why if o.verdict != "agrees" else ""]
    return "; ".join(part for part in parts if part)


def notes(outcomes: Sequence[Outcome]) -> list[str]:
    """The note of each; a reason that a row above gives is not repeated."""
    out: list[str] = []
    told: set[str] = set()
    for o in outcomes:
        words = note(o)
        out.append(words.replace(o.claim.why, "as above") if o.claim.why in told else words)
        if o.claim.why and o.claim.why in words:
            told.add(o.claim.why)
    return out


def groups(outcomes: Sequence[Outcome]) -> list[tuple[str, list[Outcome]]]:
    """Outcomes under headings: read, recalled, derived or without a figure, not reproduced."""
    there = [o for o in outcomes if o.verdict != "not reproduced"]
    out = [
        (title, [o for o in there if o.claim.standing == standing and o.verdict != "shown"])
        for standing, title in GROUPS
    ]
    out.append(("Shown, not counted: derived here, or no published figure", [o for o in there if o.verdict == "shown"]))
    out.append(("Not reproduced", [o for o in outcomes if o.verdict == "not reproduced"]))
    return [(title, some) for title, some in out if some]


def summary(outcomes: Sequence[Outcome]) -> str:
    """How many claims agree, are off, are not reproduced; and of those that agree how many were read."""
    agree, off, none = (sum(o.verdict == v for o in outcomes) for v in COUNTED)
    read = sum(o.verdict == "agrees" and o.claim.standing == "read" for o in outcomes)
    known = ", ".join(f"{n} {word}" for n, word in ((read, "read"), (agree - read, "recalled")) if n)
    rest = "".join(f", {n} {word}" for n, word in ((off, "off"), (none, "not reproduced")) if n)
    return f"{agree} of {agree + off + none} claims agree" + (f" ({known})" if known else "") + rest


def summary_of_all(done: Sequence[Reproduction], systems: dict[int, str]) -> str:
    """The same of all papers, and how many systems have a claim that agrees."""
    some = {n for d in done if d.count("agrees") for n in d.paper.systems}
    every = [o for d in done for o in d.outcomes]
    return f"{summary(every)}; {len(some)} of {len(systems)} systems have a claim that agrees"


def paper_record(done: Reproduction) -> dict[str, Any]:
    """Title, source and every claim with both figures, standing and verdict."""
    p = done.paper
    claims = [
        {
            "sentence": o.claim.sentence, "unit": o.claim.unit, "where": o.claim.where, "standing": o.claim.standing,
            "says": o.claim.says, "figure": o.claim.figure, "ours": None if o.ours is None else finite(o.ours),
            "deviation": o.deviation, "verdict": o.verdict, "note": note(o),
        }
        for o in done.outcomes
    ]  # fmt: skip
    return {"paper": p.name, "title": p.title, "source": p.source, "systems": list(p.systems), "claims": claims}


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = plain_table("claim", "paper", "ours", "unit", "off by", "", "where", "ours from", numbers=(1, 2, 4))
    for o, words in zip(outcomes, notes(outcomes), strict=True):
        *figures, verdict, where, ours_from = _cells(o, words)
        table.add_row(*figures, Text(verdict, style="red" if o.verdict == "off" else ""), where, ours_from)
    return table


def paper_view(done: Reproduction) -> View:
    """How many agree first, then the claims by how we know them."""
    lines: list[View] = [
        bold(done.paper.title), done.paper.source, summary(done.outcomes) + ".", HOW + ".",
    ]  # fmt: skip
    for title, some in groups(done.outcomes):
        lines += ["", bold(title), _table(some)]
    return stacked(*lines)


def papers_record(papers: Sequence[Paper], systems: dict[int, str]) -> dict[str, Any]:
    """The papers there are, with their systems and how many claims they have."""
    rows = [{"paper": p.name, "title": p.title, "systems": list(p.systems), "claims": len(p.claims)} for p in papers]
    return {"systems": {str(n): name for n, name in systems.items()}, "papers": rows}


def papers_view(papers: Sequence[Paper]) -> View:
    """The papers there are."""
    rows = ((p.name, p.title, str(len(p.claims)), ", ".join(map(str, p.systems))) for p in papers)
    table = plain_table("paper", "title", "claims", "systems", numbers=(2,), rows=rows)
    more = "planner paper NAME compares one; planner paper all compares all (--html, --markdown: a page)"
    return stacked(table, "", more)


def by_system(done: Sequence[Reproduction], systems: dict[int, str]) -> list[tuple[int, str, list[Reproduction]]]:
    """Every system that some of these papers are about, with them."""
    found = ((n, name, [d for d in done if n in d.paper.systems]) for n, name in systems.items())
    return [(n, name, some) for n, name, some in found if some]


def all_view(done: Sequence[Reproduction], systems: dict[int, str]) -> View:
    """A row a system: its papers, how many claims agree, are off, have no model."""
    table = plain_table("", "system", "papers", "agree", "off", "not reproduced", numbers=(0, 3, 4, 5))
    for n, name, some in by_system(done, systems):
        counts = [str(sum(d.count(v) for d in some)) for v in COUNTED]
        table.add_row(str(n), name, ", ".join(d.paper.name for d in some), *counts)
    return stacked(bold(summary_of_all(done, systems) + "."), HOW + ".", "", table)


DOTS = (
    "A dot is a claim that counts. It lies left where ours is less than the paper's figure, right where it is more; at "
    "the edge, less than half or more than twice. The green band is 15 %; a ratio agrees within 10 %. Red is off."
)
MARKS = {"half": 0.5, "-15 %": 0.85, "0": 1.0, "+15 %": 1.15, "twice": 2.0}
"""The words on the picture's axis, each with ours over the paper's."""
HEAD = ("claim", "paper", "ours", "unit", "off by", "verdict", "where in the paper", "ours from, and why off")


def page_view(done: Sequence[Reproduction], systems: dict[int, str]) -> View:
    """The text under a page's picture: a row for each system, then every paper's claims."""
    papers = [part for d in done for part in ("", paper_view(d))]
    return stacked(DOTS, "", all_view(done, systems), *papers)


def draw_claims(done: Sequence[Reproduction]) -> Figure:
    """A row for each paper with a dot for each claim that counts, placed as `DOTS` says."""
    counted = [
        (d.paper.name, [o for o in d.outcomes if o.verdict in ("agrees", "off") and o.claim.figure]) for d in done
    ]
    rows = [(name, some) for name, some in counted if some]

    def panel(axis: Any) -> None:
        axis.axvspan(math.log2(MARKS["-15 %"]), math.log2(MARKS["+15 %"]), color="#e8f1ea")
        for place, (_, some) in enumerate(rows):
            off = [math.log2(min(max(1.0 + (o.deviation or 0.0), 0.5), 2.0)) for o in some]
            colours = [RED if o.verdict == "off" else "#2e6b3f" for o in some]
            axis.scatter(off, [place] * len(off), c=colours, alpha=0.55)
        axis.set_yticks(range(len(rows)), [name for name, _ in rows])
        axis.set_xticks([math.log2(ratio) for ratio in MARKS.values()], MARKS)
        axis.invert_yaxis()

    return figure_of("What papers claim, and how far ours is off", panel, bars=len(rows))


def _cells(o: Outcome, words: str) -> tuple[str, ...]:
    verdict = "OFF" if o.verdict == "off" else o.verdict if o.verdict == "agrees" else ""
    return o.claim.sentence, said(o), number(o.ours), o.claim.unit, off_by(o), verdict, o.claim.where, words


def papers_markdown(done: Sequence[Reproduction], systems: dict[int, str]) -> str:
    """The page as Markdown."""
    lines = [
        f"{summary_of_all(done, systems)}. {HOW}.",
        "",
        "| | system | papers | claims |",
        "| ---: | --- | --- | --- |",
    ]
    for n, name, about in by_system(done, systems):
        links = ", ".join(f"[{d.paper.name}](#{d.paper.name})" for d in about)
        lines.append(f"| {n} | {name} | {links} | {summary([o for d in about for o in d.outcomes])} |")
    for d in done:
        lines += ["", f"## {d.paper.name}", "", f"*{d.paper.title}.* {d.paper.source}. {summary(d.outcomes)}."]
        for title, some in groups(d.outcomes):
            lines += ["", f"**{title}**", "", _row(HEAD), _row(["---"] * len(HEAD))]
            rows = zip(some, notes(some), strict=True)
            lines += [_row(cell.replace("|", "\\|") for cell in _cells(o, words)) for o, words in rows]
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
