"""The fronts of a sweep as a picture: the first two figures as axes, a third as colour, all other cases in grey."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from planner.report.pictures import label
from planner.sweep.pareto import Front

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_fronts"]

MOST_PANELS = 6
LOG_FROM = 10.0  # largest over smallest value
THOUSANDS = 10_000.0  # from here on ticks say k, M


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
    from matplotlib.ticker import EngFormatter

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
    for scale, values in ((axes.set_xscale, grey.numbers(x)), (axes.set_yscale, grey.numbers(y))):
        if values.min() > 0 and values.max() / values.min() > LOG_FROM:
            scale("log")
    for values, ruler in ((grey.numbers(x), axes.xaxis), (grey.numbers(y), axes.yaxis)):
        if values.max() >= THOUSANDS and ruler.get_scale() == "linear":
            ruler.set_major_formatter(EngFormatter(sep=" "))
    axes.margins(0.12)
    _name_ends(axes, front, best_x, best_y)
    axes.set_xlabel(label(x, grey.unit(x)))
    axes.set_ylabel(label(y, grey.unit(y)))
    axes.set_title(f"{front.model}, {front.seq_len:,} tokens a sequence", loc="left", fontsize=10)
    axes.grid(True, which="major", color="#eeeeee", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper right", fontsize=8, frameon=False)


def _name_ends(axes: Any, front: Front, x: Any, y: Any) -> None:
    """What the case at each end of the front is: the first figure's best above it, the second's below."""
    clusters, gpus = front.best.values("cluster"), front.best.values("gpus")
    first, second = int(np.argmin(x)), int(np.argmin(y))
    for i, up in {first: 7, second: -13}.items() if first != second else [(first, 7)]:
        said = f"{clusters[i]}, {gpus[i]:,} GPUs"
        align = "left" if x[i] <= np.median(front.cases.numbers(front.columns[0])) else "right"
        axes.annotate(said, (x[i], y[i]), xytext=(0, up), textcoords="offset points", fontsize=7, ha=align)
