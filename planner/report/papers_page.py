"""All papers' claims beside ours as one page: Markdown, or HTML with a picture of how far ours are off."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from planner.report.papers import HOW, by_system, groups, note, number, off_by, said, summary, summary_of_all

if TYPE_CHECKING:
    from planner.reproductions import Outcome, Reproduction

HEAD = ("claim", "paper", "ours", "unit", "off by", "", "where", "ours from, and why")
WIDTH, ROW, LEFT = 760, 22, 170
MOST = math.log(2.0)  # of the picture: twice or half the paper's figure; beyond, a dot lies at its edge
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1180px; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.2rem; font-size: 13.5px; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #e2e2e2; vertical-align: top; }
td:nth-child(2), td:nth-child(3), td:nth-child(5) { text-align: right; white-space: nowrap; }
th:nth-child(2), th:nth-child(3), th:nth-child(5) { text-align: right; }
.off { color: #b3261e; font-weight: 600; } h2 { margin-top: 2.2rem; } h3 { font-size: 15px; margin-bottom: 0; }
@media (max-width: 700px) { table { display: block; } } table, .wide { overflow-x: auto; }
.small { color: #555; } svg text { font: 12px system-ui, sans-serif; }
"""


def _cells(o: Outcome) -> tuple[str, ...]:
    verdict = "OFF" if o.verdict == "off" else o.verdict if o.verdict == "agrees" else ""
    return o.claim.sentence, said(o), number(o.ours), o.claim.unit, off_by(o), verdict, o.claim.where, note(o)


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
            lines += [_row(cell.replace("|", "\\|") for cell in _cells(o)) for o in some]
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def papers_html(done: Sequence[Reproduction], systems: dict[int, str]) -> str:
    """The page as HTML that needs nothing else."""
    body = [
        "<h1>What papers claim, and what planner gives</h1>",
        f"<p><b>{summary_of_all(done, systems)}.</b> {HOW}.</p>",
    ]
    body += [_picture(done), "<table><tr><th></th><th style='text-align:left'>system</th>"]
    body.append("<th style='text-align:left'>papers</th><th>claims</th></tr>")
    for n, name, about in by_system(done, systems):
        links = ", ".join(f"<a href='#{d.paper.name}'>{d.paper.name}</a>" for d in about)
        words = summary([o for d in about for o in d.outcomes])
        left = "style='text-align:left;white-space:normal'"
        body.append(f"<tr><td>{n}</td><td {left}>{escape(name)}</td><td {left}>{links}</td><td>{words}</td></tr>")
    body.append("</table>")
    for d in done:
        body.append(f"<h2 id='{d.paper.name}'>{escape(d.paper.title)}</h2>")
        body.append(f"<p class='small'>{escape(d.paper.source)}. <code>planner paper {d.paper.name}</code></p>")
        body.append(f"<p>{summary(d.outcomes)}.</p>")
        for title, some in groups(d.outcomes):
            head = "".join(f"<th>{word}</th>" for word in HEAD)
            body.append(f"<h3>{title}</h3><table><tr>{head}</tr>")
            for o in some:
                kind = " class='off'" if o.verdict == "off" else ""
                cells = [f"<td{kind if i in (4, 5) else ''}>{escape(c)}</td>" for i, c in enumerate(_cells(o))]
                body.append(f"<tr>{''.join(cells)}</tr>")
            body.append("</table>")
    head = "<meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>planner: papers</title>"
    return (
        f"<!doctype html><html lang='en'><head>{head}<style>{STYLE}</style></head><body>{''.join(body)}</body></html>"
    )


def _picture(done: Sequence[Reproduction]) -> str:
    """A row a paper: a dot a counted claim, left where ours is less than the paper's figure, right where it is more."""
    shown = [(d, [o for o in d.outcomes if o.verdict in ("agrees", "off") and o.claim.figure]) for d in done]
    rows = [(d, some) for d, some in shown if some]
    span, height = (WIDTH - LEFT - 20) / 2, ROW * (len(rows) + 2)
    middle = LEFT + span

    def place(deviation: float) -> float:
        return middle + span * max(-1.0, min(1.0, math.log(max(1.0 + deviation, 1e-9)) / MOST))

    size = f"viewBox='0 0 {WIDTH} {height}' width='{WIDTH}'"
    out = [f"<div class='wide'><svg {size} role='img' aria-label='how far ours are off'>"]
    low, high = place(-0.15), place(0.15)
    out.append(f"<rect x='{low:.1f}' y='0' width='{high - low:.1f}' height='{height - ROW}' fill='#e8f1ea'/>")
    for deviation, word in ((-0.5, "half"), (-0.15, "-15 %"), (0.0, "equal"), (0.15, "+15 %"), (1.0, "twice")):
        x = place(deviation)
        out.append(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='0' y2='{height - ROW}' stroke='#cfcfcf'/>")
        out.append(f"<text x='{x:.1f}' y='{height - 6}' text-anchor='middle' fill='#555'>{word}</text>")
    for k, (d, some) in enumerate(rows):
        y = ROW * (k + 0.8)
        out.append(f"<text x='0' y='{y + 4:.1f}'>{d.paper.name}</text>")
        for o in some:
            colour = "#b3261e" if o.verdict == "off" else "#2e6b3f"
            x = place(o.deviation or 0.0)
            out.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4.5' fill='{colour}' fill-opacity='.55'/>")
    return "".join(out) + "</svg></div>"
