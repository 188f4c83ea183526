"""The best layout's step against the network, drawn: where the layout changes, and what each strategy needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_network(r: Mapping[str, Any]) -> Figure:
    """The curve of a record of `planner network`, and a bar for each strategy."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure = Figure(figsize=(11.5, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    x, y = [p["value"] for p in r["curve"]], [p["step_time_s"] for p in r["curve"]]
    left.loglog(x, y, marker="o", markersize=4, color="#31688e")
    left.axhspan(y[-1], 1.05 * y[-1], color="#e8f1ea", label="within 5 % of the fastest")
    left.axvline(r["enough"], color="#2e6b3f", linestyle="--", linewidth=1.2, label=f"enough: {r['enough']:,g}")
    letters: dict[str, str] = {}
    for p in r["curve"]:
        letter = letters.setdefault(p["layout_text"], chr(ord("a") + len(letters)))
        left.annotate(letter, (p["value"], p["step_time_s"]), xytext=(4, 5), textcoords="offset points", fontsize=8)
    for text, letter in letters.items():
        left.plot([], [], " ", label=f"{letter}  {text}")
    left.set(xlabel=f"{r['along']} ({r['unit']})", ylabel="step (s)")
    left.set_title(f"{r['model']}, {r['gpus']:,} GPUs of {r['cluster']}, batch {r['global_batch']:,}", fontsize=9)
    left.legend(fontsize=7, frameon=False, handlelength=1.2)
    needs = [n for n in r["strategies"] if not n["none"]]
    right.barh([n["strategy"] for n in needs], [n["enough"] for n in needs], color="#8bb0c9")
    for k, n in enumerate(needs):
        right.text(n["enough"], k, f" {n['enough']:,g}; {n['step_time_s']:.3g} s", va="center", fontsize=7)
    right.set(xscale="log", xlabel=f"enough for its own fastest ({r['unit']})")
    right.set_xlim(min(x), 12.0 * max(x))
    right.invert_yaxis()
    for axis in (left.xaxis, left.yaxis, right.xaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set_minor_formatter(NullFormatter())
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    return figure
