"""The fronts of a sweep, for a terminal and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from planner.report.pictures import label, said
from planner.report.plain_table import plain_table, stacked

if TYPE_CHECKING:
    from planner.sweeps.pareto import Front

MOST_ROWS = 40


def pareto_record(fronts: list[Front]) -> dict[str, Any]:
    """Every front with the whole rows of its cases (docs/sweep.md)."""
    return {
        "fronts": [
            {
                "model": front.model,
                "seq_len": front.seq_len,
                "of": list(front.columns),
                "compared": len(front.cases),
                "cases": front.best.table.to_pylist(),
            }
            for front in fronts
        ]
    }


def pareto_view(fronts: list[Front]) -> RenderableType:
    """A table for each front: what its cases are, and the figures compared."""
    lines: list[RenderableType] = []
    for front in fronts:
        names = ", ".join(label(name, "") for name in front.columns)
        lines += [
            Text(f"{front.model}, {front.seq_len:,} tokens a sequence", style="bold"),
            f"  {len(front.best):,} of {len(front.cases):,} cases are not beaten in {names}",
            _table(front),
            "",
        ]
    return stacked(*lines[:-1])


def _table(front: Front) -> RenderableType:
    best = front.best
    axes = [name for name in front.cases.varied() if name not in ("model", "seq_len", "objective")]
    shown = [*axes, *(name for name in front.columns if name not in axes)]
    heads = [label(name, best.unit(name)) for name in shown]
    table = plain_table("case", *heads)
    for column, name in zip(table.columns, ("case", *shown), strict=True):
        column.justify = "right" if str(best.table.field(name).type) in ("int64", "double") else "left"
    columns = [best.values(name) for name in ("case", *shown)]
    rows = list(zip(*columns, strict=True))
    for row in rows[:MOST_ROWS]:
        table.add_row(*map(said, row))
    if len(rows) <= MOST_ROWS:
        return table
    return stacked(table, f"  and {len(rows) - MOST_ROWS:,} more: --json has all")
