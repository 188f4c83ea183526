"""A sweep's grid as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from planner.report.pictures import label, said

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from planner.sweeps.grid import CaseGrid
    from planner.sweeps.results import Results

MOST_LABELLED = 15  # columns or rows with a number in each cell
MOST_TICKS = 24
LOG_FROM = 30.0  # largest over smallest value
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
    axes.set_xlabel(label(grid.x, results.unit(grid.x)))
    axes.set_ylabel(label(grid.y, results.unit(grid.y)))
    axes.tick_params(length=0)
    axes.set_title(_title(grid, results), loc="left", fontsize=9)
    if (grid.rows < 0).any():
        legend.append(Patch(color=NONE, label="no layout fits"))
    if legend:
        figure.legend(handles=legend, loc="outside lower center", ncols=min(len(legend), 4), frameon=False, fontsize=8)
    return figure


def _title(grid: CaseGrid, results: Results) -> str:
    models, lengths = (dict.fromkeys(results.values(name)) for name in ("model", "seq_len"))
    what = f"{next(iter(models))}, {next(iter(lengths)):,} tokens a sequence" if len(models) == 1 else "all models"
    over = f"\nbest by {label(grid.by, '')} over {', '.join(label(n, '') for n in grid.over)}" if grid.over else ""
    return f"{what}: {label(grid.value, '')}{over}"


def _numbers(figure: Any, axes: Any, grid: CaseGrid, unit: str) -> list[Any]:
    from matplotlib.colors import LogNorm, Normalize

    cells = np.array([[np.nan if v is None else v for v in line] for line in grid.cells], dtype=np.float64)
    low, high = float(np.nanmin(cells)), float(np.nanmax(cells))
    norm = LogNorm(low, high) if low > 0 and high / low > LOG_FROM else Normalize(low, high)
    image = axes.imshow(cells, origin="lower", aspect="auto", cmap="viridis", norm=norm)
    figure.colorbar(image, ax=axes, label=label(grid.value, unit), shrink=0.9)
    if max(cells.shape) <= MOST_LABELLED:
        for (row, column), value in np.ndenumerate(cells):
            if np.isfinite(value):
                dark = norm(value) < 0.55
                axes.text(
                    column,
                    row,
                    f"{value:.3g}",
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
    return [Patch(color=c, label=name.replace("_", " ")) for c, name in zip(colours, names, strict=True)]
