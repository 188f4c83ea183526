"""A sweep drawn: its fronts for a terminal, as JSON and as a picture; a figure over two axes as a heat map."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.base.units import counted, gpus_text
from planner.report.pictures import label, said
from planner.report.plain_table import View, bold, plain_table, stacked
from planner.report.plots import ruled
from planner.report.tables import PARTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from planner.sweeps.case_grid import CaseGrid
    from planner.sweeps.fronts import Front
    from planner.sweeps.results import Results

MOST_ROWS = 40
MOST_PANELS = 6


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


def pareto_view(fronts: list[Front]) -> View:
    """A table for each front: what its cases are, and the figures compared."""
    lines: list[View] = []
    for front in fronts:
        names = ", ".join(label(name, "") for name in front.columns)
        lines += [
            bold(f"{front.model}, {front.seq_len:,} tokens per sequence"),
            f"  not beaten in {names}: {len(front.best):,} of {counted(len(front.cases), 'case')}",
            _table(front),
            "",
        ]
    return stacked(*lines[:-1])


def _table(front: Front) -> View:
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
    ruled(axes.xaxis, grey.numbers(x))
    ruled(axes.yaxis, grey.numbers(y))
    axes.margins(0.12)
    _name_ends(axes, front, best_x, best_y)
    axes.set(xlabel=label(x, grey.unit(x)), ylabel=label(y, grey.unit(y)))
    axes.set_title(f"{front.model}, {front.seq_len:,} tokens per sequence", loc="left", fontsize=10)
    axes.grid(True, which="major", color="#eeeeee", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper right", fontsize=8, frameon=False)


def _name_ends(axes: Any, front: Front, x: Any, y: Any) -> None:
    """Names the case at each end of the front: the first figure's best above it, the second's below."""
    design = "design" if "design" in front.cases.varied() else "cluster"
    names, gpus = front.best.values(design), front.best.values("gpus")
    first, second = int(np.argmin(x)), int(np.argmin(y))
    for i, up in {first: 7, second: -13}.items() if first != second else [(first, 7)]:
        said = f"{names[i]}, {gpus_text(gpus[i])}"
        align = "left" if x[i] <= np.median(front.cases.numbers(front.columns[0])) else "right"
        axes.annotate(said, (x[i], y[i]), xytext=(0, up), textcoords="offset points", fontsize=7, ha=align)


MOST_LABELLED = 15  # columns or rows with a number in each cell
MOST_TICKS = 24
COLOURS_LOG_FROM = 30.0  # largest over smallest value
NONE = "#d9d9d9"


def heatmap_record(grid: CaseGrid, results: Results) -> dict[str, Any]:
    """The grid as plain values (docs/sweep.md)."""
    cases = results.values("case")
    return {
        "x": grid.x,
        "y": grid.y,
        "value": grid.value,
        "unit": results.unit(grid.value),
        "best_by": grid.by,
        "best_over": grid.over,
        "x_values": grid.xs,
        "y_values": grid.ys,
        "cells": grid.cells,
        "cases": [[None if i < 0 else cases[i] for i in line] for line in grid.rows.tolist()],
    }


def draw_heatmap(grid: CaseGrid, results: Results) -> Figure:
    """Colour and number a cell; grey where no layout fits."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    wide, high = len(grid.xs), len(grid.ys)
    size = (max(5.0, 2.2 + min(0.62 * wide, 14.0)), max(3.2, 1.7 + min(0.42 * high, 12.0)))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor(NONE)
    text = any(isinstance(v, (str, bool)) for line in grid.cells for v in line)
    legend = _categories(axes, grid) if text else _numbers(figure, axes, grid, results.unit(grid.value))
    for set_ticks, values, which in ((axes.set_xticks, grid.xs, "x"), (axes.set_yticks, grid.ys, "y")):
        every = -(-len(values) // MOST_TICKS)
        long = which == "x" and max(len(said(v)) for v in values) > 6
        turned: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if long else {}
        set_ticks(range(0, len(values), every), [said(v) for v in values[::every]], fontsize=8, **turned)
    axes.set(xlabel=label(grid.x, results.unit(grid.x)), ylabel=label(grid.y, results.unit(grid.y)))
    axes.tick_params(length=0)
    axes.set_title(_title(grid, results), loc="left", fontsize=9)
    if (grid.rows < 0).any():
        legend.append(Patch(color=NONE, label="no layout fits"))
    if legend:
        figure.legend(handles=legend, loc="outside lower center", ncols=min(len(legend), 4), frameon=False, fontsize=8)
    return figure


def _title(grid: CaseGrid, results: Results) -> str:
    models, lengths = (dict.fromkeys(results.values(name)) for name in ("model", "seq_len"))
    what = f"{next(iter(models))}, {next(iter(lengths)):,} tokens per sequence" if len(models) == 1 else "all models"
    over = f"\nbest by {label(grid.by, '')} over {', '.join(label(n, '') for n in grid.over)}" if grid.over else ""
    return f"{what}: {label(grid.value, '')}{over}"


def _numbers(figure: Any, axes: Any, grid: CaseGrid, unit: str) -> list[Any]:
    from matplotlib.colors import LogNorm, Normalize

    cells = np.array([[np.nan if v is None else v for v in line] for line in grid.cells], dtype=np.float64)
    low, high = float(np.nanmin(cells)), float(np.nanmax(cells))
    norm = LogNorm(low, high) if low > 0 and high / low > COLOURS_LOG_FROM else Normalize(low, high)
    image = axes.imshow(cells, origin="lower", aspect="auto", cmap="viridis", norm=norm)
    figure.colorbar(image, ax=axes, label=label(grid.value, unit), shrink=0.9)
    spread = (high - low) / max(abs(high), abs(low), 1e-300)
    digits = 3 if spread == 0 else min(max(3, 2 - math.floor(math.log10(spread))), 6)  # so that colours have numbers
    if max(cells.shape) <= MOST_LABELLED:
        for (row, column), value in np.ndenumerate(cells):
            if np.isfinite(value):
                dark = norm(value) < 0.55
                axes.text(
                    column,
                    row,
                    f"{value:.{digits}g}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white" if dark else "black",
                )
    return []


def _categories(axes: Any, grid: CaseGrid) -> list[Any]:
    """A colour for each text, most frequent first."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    found = [str(v) for line in grid.cells for v in line if v is not None]
    names = sorted(set(found), key=lambda name: (-found.count(name), name))
    colours = [colormaps["Set2"](i % 8) for i in range(len(names))]
    cells = [[np.nan if v is None else names.index(str(v)) for v in line] for line in grid.cells]
    axes.imshow(cells, origin="lower", aspect="auto", cmap=ListedColormap(colours), vmin=-0.5, vmax=len(names) - 0.5)
    return [
        Patch(color=c, label=PARTS.get(name, name.replace("_", " "))) for c, name in zip(colours, names, strict=True)
    ]
