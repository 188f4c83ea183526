"""How far training scales, drawn: utilisation against training compute, and what twice as good of each thing saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from planner.report.largest import kind_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#6b6b6b", "#D55E00", "#56B4E9", "#000000")
"""Okabe and Ito's, told apart by colour-blind readers."""


def draw_largest(r: Mapping[str, Any]) -> Figure:
    """Curves of a record of `planner largest`: all kinds on the left, what binds the first kind on the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for kind, colour in zip(r["kinds"], COLOURS, strict=False):
        done = [t for t in kind["curve"] if t["gpus"] is not None]
        if not done:
            continue
        x, y = [t["flop"] for t in done], [100 * t["utilisation"] for t in done]
        says = f"{kind_name(kind)}: up to {x[-1]:.1e} FLOP, on {done[-1]['gpus']:,} GPUs"
        left.semilogx(x, y, marker="o", color=colour, label=says)
        left.axvline(x[-1], color=colour, linestyle=":", linewidth=1.2)
    left.set(xlabel="training compute (FLOP)", ylabel="utilisation, % of peak", xlim=(5e21, 2e32))
    left.set_ylim(bottom=0)
    left.set_title(f"Compute-optimal training in {r['months']:.3g} months, {r['cluster']}", fontsize=10)
    left.legend(frameon=False, fontsize=8, loc="upper right")
    done = [t for t in r["kinds"][0]["curve"] if t["gpus"] is not None]
    for name, colour in zip(done[0]["gains_if_relaxed_twofold"] if done else (), COLOURS, strict=False):
        gains = [100 * t["gains_if_relaxed_twofold"][name] for t in done]
        right.semilogx([t["flop"] for t in done], gains, marker=".", color=colour, label=name)
    right.set(xlabel="training compute (FLOP)", ylabel="time saved if twice as good, %")
    right.set_title(f"What binds ({kind_name(r['kinds'][0])})", fontsize=10)
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    return figure
