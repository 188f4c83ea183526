"""Pictures by matplotlib: labels from column names, files that are the same for the same picture, a timeline."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.base.arrays import Ints
from planner.report.plain_table import View, html_of, plain_text
from planner.schedules.operations import KINDS, NAMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from planner.step.timeline.timeline import Timeline


LABELS = {
    "training_days": "training time",
    "training_cost_usd": "training cost",
    "training_energy_mwh": "training energy",
    "time_s_per_billion_tokens": "time per billion tokens",
    "cost_usd_per_billion_tokens": "cost per billion tokens",
    "energy_kwh_per_billion_tokens": "energy per billion tokens",
    "step_time_s": "step time",
    "power_kw": "power",
    "tokens_per_s": "tokens per second",
    "tokens_per_s_per_gpu": "tokens per second and GPU",
    "mfu": "MFU with whole attention",
    "causal_mfu": "causal MFU",
    "gpus": "GPUs",
    "binding": "largest cost after matrix products",
    "binding_share": "share of the largest cost after matrix products",
    "memory_binds": "whether a layout 2 % faster does not fit",
}


def label(column: str, unit: str) -> str:
    """A column's name as an axis says it: `accelerator.memory_gib` is "accelerator memory (GiB)"."""
    from planner.sweeps.columns import UNITS

    stem = next((column.removesuffix(ending) for ending in UNITS if column.endswith(ending)), column)
    words = LABELS.get(column) or stem.replace("_", " ").replace(".", " ").replace("gpus", "GPUs")
    return f"{words} ({unit})" if unit and column not in ("tokens_per_s", "tokens_per_s_per_gpu") else words


def said(value: Any) -> str:
    """A cell of a table: four digits of a fraction, whole numbers with their thousands apart."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@contextmanager
def drawing_style(style: dict[Any, Any]) -> Iterator[None]:
    """A context that draws text as it is: a name may hold a dollar sign, or letters that the font lacks."""
    import matplotlib as mpl

    with mpl.rc_context({"text.parse_math": False} | style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def picture(draw: Callable[[], Figure], kind: str) -> bytes:
    """A figure as an SVG or PNG file: no date, no random names, so that the same picture gives the same file."""
    out = io.BytesIO()
    with drawing_style({"svg.fonttype": "none", "svg.hashsalt": "planner"}):
        draw().savefig(out, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()


def svg_element(draw: Callable[[], Figure]) -> str:
    """The picture as an SVG element, to stand in a page."""
    text = picture(draw, "svg").decode()
    return text[text.index("<svg") :]


PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 1rem auto; max-width: 75rem; padding: 0 1rem }}
div {{ overflow-x: auto }} svg {{ max-width: 100%; height: auto; min-width: 40rem }}
</style><main aria-label="{title}"><div tabindex="0">{svg}</div>{text}</main></html>
"""


def page(draw: Callable[[], Figure], *views: View) -> bytes:
    """One file for a browser, which loads nothing: the picture, and below it what is printed."""
    title = escape(plain_text(*views, width=500).strip().split("\n")[0])
    return PAGE.format(title=title, svg=svg_element(draw), text=html_of(*views)).encode()


# Colours that differ in lightness too, so that they can be told apart in grey and by colour-blind readers.
COLOURS = dict(
    zip(KINDS, ["#9ecae1", "#31a354", "#74c476", "#fed976", "#d4b9da", "#df65b0", "#c994c7", "#fdae6b"], strict=True)
)
MOST_ACROSS, EACH = 100, 0.35  # operations of a rank that are drawn, and inches of each
LEAST_WIDE = 8.0  # inches
LEAST_LABELLED = 0.6  # of the boxes must have room for theirs


def timeline_figure(timeline: Timeline, title: str, unit: str) -> Figure:
    """The picture, of no window and no global state: a notebook's own plots stay as they are.

    Of a step of many operations it shows the beginning and the end, as wide as can be read.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    order, whole = timeline.order, float(timeline.end_s.max())
    share = MOST_ACROSS * order.ranks / max(len(order), 1)
    parts = [(0.0, whole)] if share >= 1 else [(0.0, share * whole / 2), (whole - share * whole / 2, whole)]
    wide = _width(timeline) if share >= 1 else MOST_ACROSS * EACH
    figure = Figure(figsize=(wide, 1.4 + 0.45 * order.ranks), layout="constrained")
    for axes, (start, end) in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts, strict=True):
        at = np.flatnonzero((timeline.start_s < end) & (timeline.end_s > start))
        _boxes(axes, timeline, at)
        _label(axes, timeline, at, wide * 0.9 / (len(parts) * (end - start)))
        axes.set_yticks(range(order.ranks), [f"rank {r}" for r in range(order.ranks)])
        axes.invert_yaxis()
        axes.set_xlim(start, end)
        axes.set_xlabel(f"time{f' ({unit})' if unit else ''}")
        axes.spines[["top", "right"]].set_visible(False)
        said = "" if share >= 1 else f", the last {end - start:.3g}" if start else f", the first {end - start:.3g}"
        axes.set_title(title + (said and f"{said} {unit} of {whole:.4g}"), loc="left", fontsize=10)
    kinds = [k for k in KINDS if np.any(order.kind == KINDS.index(k))]
    figure.legend(
        handles=[Patch(color=COLOURS[k], label=f"{k}  {NAMES[k]}") for k in kinds],
        loc="outside lower center", ncols=len(kinds), frameon=False, fontsize=9,
    )  # fmt: skip
    return figure


def _boxes(axes: Any, timeline: Timeline, at: Ints) -> None:
    """A box for each of some operations; two fused ones share their time: one above, one below."""
    order = timeline.order
    rank, second, kind = order.rank[at], np.roll(order.fused, 1)[at], order.kind[at]
    fused = order.fused[at]
    for among, up, height in ((~fused & ~second, 0.42, 0.84), (fused, 0.42, 0.42), (second, 0.0, 0.42)):
        for r, code in product(range(order.ranks), np.unique(kind[among]).tolist()):
            chosen = at[among & (rank == r) & (kind == code)]
            spans = [(timeline.start_s[i], timeline.end_s[i] - timeline.start_s[i]) for i in chosen]
            look = {"facecolors": COLOURS[KINDS[code]], "edgecolor": "white", "linewidth": 0.4}
            axes.broken_barh(spans, (r - up, height), **look)


def _width(timeline: Timeline) -> float:
    """Inches: by the operations, or where that is no more than twice the least, so that every label has room."""
    order = timeline.order
    lasts = timeline.end_s - timeline.start_s
    shortest = float(lasts[lasts > 0].min()) if np.any(lasts > 0) else 1.0
    longest = max(len(_text(timeline, i)) for i in range(len(order)))
    room = 0.078 * longest * float(timeline.end_s.max()) / shortest / 0.9
    return max(LEAST_WIDE, len(order) / order.ranks * EACH, room if room <= 2 * LEAST_WIDE else 0.0)


def _text(timeline: Timeline, i: int) -> str:
    """An operation's label: its micro-batch, the stage and kind before it where a rank has several stages."""
    order = timeline.order
    op = order.operation(i)
    part = f".{op.slice}" if op.slice else ""
    chunks = bool(np.any(order.stage != order.rank))
    return f"{op.stage}{op.kind}{op.micro_batch}{part}" if chunks else f"{op.micro_batch}{part}"


def _label(axes: Any, timeline: Timeline, at: Ints, inch: float) -> None:
    """Micro-batch numbers in the boxes that have room for them, the stage above it where a rank has several.

    inch: inches of a unit of time.
    """
    order, lasts = timeline.order, timeline.end_s - timeline.start_s
    rank = order.rank
    texts = {i: _text(timeline, i) for i in at.tolist()}
    labels = {i: text for i, text in texts.items() if lasts[i] * inch > 0.075 * len(text)}
    if len(labels) < LEAST_LABELLED * len(at):
        return  # a few labels among many boxes would look as if they meant something
    for i, text in labels.items():
        shift = -0.2 if order.fused[i] else 0.2 if i and order.fused[i - 1] else 0.0
        middle = (timeline.start_s[i] + timeline.end_s[i]) / 2.0
        axes.text(middle, rank[i] + shift, text, ha="center", va="center", fontsize=7, clip_on=True)
