"""Pictures by matplotlib: labels from column names, files that are the same for the same picture, a timeline."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.base.files import check_writable, write_bytes
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
    "mfu": "MFU",
    "gpus": "GPUs",
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
    """What is drawn inside has its text as it is: a name may hold a dollar sign, or letters that the font lacks."""
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


def write_picture(draw: Callable[[], Figure], path: Path) -> None:
    """Write a figure; its kind is the path's suffix, .svg or .png. Raises OutputError if the path can't be written."""
    check_writable(path)
    write_bytes(path, picture(draw, path.suffix.removeprefix(".")))


# Colours that differ in lightness too, so that they can be told apart in grey and by colour-blind readers.
COLOURS = dict(
    zip(KINDS, ["#9ecae1", "#31a354", "#74c476", "#fed976", "#d4b9da", "#df65b0", "#c994c7", "#fdae6b"], strict=True)
)
MOST_LABELS = 2000
LEAST_WIDE = 8.0  # inches
LEAST_LABELLED = 0.6  # of the boxes must have room for theirs


def plot_timeline(timeline: Timeline, path: Path, title: str, unit: str = "") -> None:
    """Write the picture; its kind is the path's suffix, .svg or .png. Time in `unit`.

    Raises OutputError if the path can't be written.
    """
    write_picture(lambda: timeline_figure(timeline, title, unit), path)


def timeline_svg(timeline: Timeline, title: str, unit: str = "") -> str:
    """The picture as an SVG element, to stand in a page."""
    text = picture(lambda: timeline_figure(timeline, title, unit), "svg").decode()
    return text[text.index("<svg") :]


def timeline_figure(timeline: Timeline, title: str, unit: str) -> Figure:
    """The picture, of no window and no global state: a notebook's own plots stay as they are."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    order, whole = timeline.order, float(timeline.end_s.max())
    wide = _width(timeline)
    figure = Figure(figsize=(wide, 1.4 + 0.45 * order.ranks), layout="constrained")
    axes = figure.subplots()
    kinds = [k for k in KINDS if np.any(order.kind == KINDS.index(k))]
    # Two fused operations share their time: one above, one below.
    second = np.roll(order.fused, 1)
    halves = ((~order.fused & ~second, 0.42, 0.84), (order.fused, 0.42, 0.42), (second, 0.0, 0.42))
    rank = order.rank
    for kind, (among, up, height) in product(kinds, halves):
        for r in range(order.ranks):
            at = np.flatnonzero(among & (rank == r) & (order.kind == KINDS.index(kind)))
            spans = [(timeline.start_s[i], timeline.end_s[i] - timeline.start_s[i]) for i in at]
            if spans:
                axes.broken_barh(spans, (r - up, height), facecolors=COLOURS[kind], edgecolor="white", linewidth=0.4)
    if len(order) <= MOST_LABELS:
        _label(axes, timeline, wide)
    axes.set_yticks(range(order.ranks), [f"rank {r}" for r in range(order.ranks)])
    axes.invert_yaxis()
    axes.set_xlim(0, whole)
    axes.set_xlabel(f"time{f' ({unit})' if unit else ''}")
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(
        handles=[Patch(color=COLOURS[k], label=f"{k}  {NAMES[k]}") for k in kinds],
        loc="outside lower center", ncols=len(kinds), frameon=False, fontsize=9,
    )  # fmt: skip
    return figure


def _width(timeline: Timeline) -> float:
    """Inches: by the operations, or where that is no more than twice the least, so that every label has room."""
    order = timeline.order
    lasts = timeline.end_s - timeline.start_s
    shortest = float(lasts[lasts > 0].min()) if np.any(lasts > 0) else 1.0
    longest = max(len(_text(timeline, i)) for i in range(len(order))) if len(order) <= MOST_LABELS else 99
    room = 0.078 * longest * float(timeline.end_s.max()) / shortest / 0.9
    return min(max(LEAST_WIDE, len(order) / order.ranks * 0.35, room if room <= 2 * LEAST_WIDE else 0.0), 40.0)


def _text(timeline: Timeline, i: int) -> str:
    """An operation's label: its micro-batch, the stage and kind before it where a rank has several stages."""
    order = timeline.order
    op = order.operation(i)
    part = f".{op.slice}" if op.slice else ""
    chunks = bool(np.any(order.stage != order.rank))
    return f"{op.stage}{op.kind}{op.micro_batch}{part}" if chunks else f"{op.micro_batch}{part}"


def _label(axes: Any, timeline: Timeline, wide: float) -> None:
    """Micro-batch numbers in the boxes that have room for them, the stage above it where a rank has several."""
    order = timeline.order
    inch = wide * 0.9 / float(timeline.end_s.max())
    rank = order.rank
    labels = []
    for i in range(len(order)):
        text = _text(timeline, i)
        if (timeline.end_s[i] - timeline.start_s[i]) * inch > 0.075 * len(text):
            labels.append((i, text))
    if len(labels) < LEAST_LABELLED * len(order):
        return  # a few labels among many boxes would look as if they meant something
    for i, text in labels:
        shift = -0.2 if order.fused[i] else 0.2 if i and order.fused[i - 1] else 0.0
        middle = (timeline.start_s[i] + timeline.end_s[i]) / 2.0
        axes.text(middle, rank[i] + shift, text, ha="center", va="center", fontsize=7)
