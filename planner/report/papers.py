"""A paper's claims beside ours, as records and views."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from planner.report.plain_table import plain_table, stacked
from planner.report.training import finite

if TYPE_CHECKING:
    from planner.reproductions import Claim, Paper


def paper_record(paper: Paper) -> dict[str, Any]:
    """Title, source and every claim with both figures, mark, band and whether they agree."""
    claims = []
    for c in paper.claims:
        row = asdict(c) | {"agrees": c.agrees}
        claims.append({k: finite(v) if isinstance(v, float) else v for k, v in row.items()})
    return {"paper": paper.name, "title": paper.title, "source": paper.source, "claims": claims}


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _table(claims: list[Claim]) -> Table:
    table = plain_table("claim", "paper", "ours", "unit", "known", "agree", "note", numbers=(1, 2))
    for c in claims:
        open_ = "-" if c.theirs is None else "not yet"
        said = {True: "yes", False: "NO", None: open_}[c.agrees]
        verdict = Text(said, style="red" if c.agrees is False else "")
        table.add_row(c.statement, _number(c.theirs), _number(c.ours), c.unit, c.mark, verdict, c.note)
    return table


def paper_view(paper: Paper) -> RenderableType:
    """How many agree first, then the claims by the assumptions behind our figure."""
    agreed = sum(c.agrees is True for c in paper.claims)
    compared = sum(c.theirs is not None for c in paper.claims)
    lines: list[RenderableType] = [
        Text(paper.title, style="bold"),
        paper.source,
        f"{agreed} of {compared} claims agree. known: how we know the paper's figure - read in its source, "
        "recalled, or derived here",
    ]
    for basis in sorted({c.basis for c in paper.claims}, reverse=True):  # the paper's assumptions, then our models
        claims = [c for c in paper.claims if c.basis == basis]
        lines += ["", Text(f"Under {basis}", style="bold"), _table(claims)]
    return stacked(*lines)
