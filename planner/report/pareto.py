"""The fronts of a sweep: for a terminal, as JSON, and as a picture.

Drawn are the first two figures as axes, a third as colour, and all other cases in grey.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from planner.report.pictures import label, said
from planner.report.plain_table import plain_table, stacked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from planner.sweeps.pareto import Front

MOST_ROWS = 40
MOST_PANELS = 6
LOG_FROM = 10.0  # largest over smallest value
DECADES = 1000.0  # up to here 1, 2 and 5 of each are marked
THOUSANDS = 10_000.0  # from here on ticks say k, M


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


def draw_fronts(fronts: list[Front]) -> Figure:
    """A panel a model, at most six."""
    from matplotlib.figure import Figure

    shown = fronts[:MOST_PANELS]
    wide = min(len(shown), 3)
    high = -(-len(shown) // wide)
    figure = Figure(figsize=(max(5.6 * wide, 6.4), 4.4 * high), layout="constrained")
    panels = figure.subplots(high, wide, squeeze=False).ravel()
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    for axes, front in zip(panels, shown, strict=False):
        _panel(figure, axes, front)
    return figure


def _panel(figure: Any, axes: Any, front: Front) -> None:
    x, y, *more = front.columns
    grey = front.cases
    axes.scatter(
        grey.numbers(x),
        grey.numbers(y),
        s=9,
        color="#c8c8c8",
        linewidths=0,
        label=f"{len(grey):,} cases",
        rasterized=True,
    )
    best_x, best_y = front.best.numbers(x), front.best.numbers(y)
    said = f"{len(front.best):,} not beaten"
    if more:
        points = axes.scatter(
            best_x, best_y, s=26, c=front.best.numbers(more[0]), cmap="viridis", edgecolors="black", linewidths=0.4,
            label=said,
        )  # fmt: skip
        figure.colorbar(points, ax=axes, label=label(more[0], front.best.unit(more[0])), shrink=0.9)
    else:
        axes.plot(best_x, best_y, color="#31688e", linewidth=1.2, marker="o", markersize=4, label=said)
    _ruled(axes.xaxis, grey.numbers(x))
    _ruled(axes.yaxis, grey.numbers(y))
    axes.margins(0.12)
    _name_ends(axes, front, best_x, best_y)
    axes.set_xlabel(label(x, grey.unit(x)))
    axes.set_ylabel(label(y, grey.unit(y)))
    axes.set_title(f"{front.model}, {front.seq_len:,} tokens a sequence", loc="left", fontsize=10)
    axes.grid(True, which="major", color="#eeeeee", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper right", fontsize=8, frameon=False)


def _ruled(axis: Any, values: Any) -> None:
    """A logarithmic axis for what spans a decade, with ticks that stay apart; k and M for large numbers."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

    low, high = float(values.min()), float(values.max())
    large = EngFormatter(sep=" ") if high >= THOUSANDS else None
    if low > 0 and high / low > LOG_FROM:
        (axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale)("log")
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < DECADES else (1.0,)))
        axis.set_major_formatter(large or FuncFormatter(lambda v, _: f"{v:,g}"))
        axis.set_minor_formatter(NullFormatter())
    elif large:
        axis.set_major_formatter(large)


def _name_ends(axes: Any, front: Front, x: Any, y: Any) -> None:
    """What the case at each end of the front is: the first figure's best above it, the second's below."""
    design = "design" if "design" in front.cases.varied() else "cluster"
    names, gpus = front.best.values(design), front.best.values("gpus")
    first, second = int(np.argmin(x)), int(np.argmin(y))
    for i, up in {first: 7, second: -13}.items() if first != second else [(first, 7)]:
        said = f"{names[i]}, {gpus[i]:,} GPUs"
        align = "left" if x[i] <= np.median(front.cases.numbers(front.columns[0])) else "right"
        axes.annotate(said, (x[i], y[i]), xytext=(0, up), textcoords="offset points", fontsize=7, ha=align)
