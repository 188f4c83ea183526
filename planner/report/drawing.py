"""A schedule's timeline in characters: a row a rank, time to the right, in bands where it is longer than the screen.

Every operation is labelled with its cell as far as it fits; colour adds the kind, and nothing is said by colour alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from planner.base.arrays import Ints
from planner.schedules.operations import KINDS

if TYPE_CHECKING:
    from planner.step.timeline.timeline import Timeline

_PAPER = ("bright_cyan", "bright_green", "bright_green", "yellow", *("bright_magenta", "magenta") * 2)
STYLES = {kind: f"black on {paper}" for kind, paper in zip(KINDS, _PAPER, strict=True)}
MOST_BANDS = 8


def _label(kind: str, stage: int, micro_batch: int, part: int, chunks: bool, room: int) -> str:
    """The longest label that fits: 2F0, F0, 0, or the kind's letter."""
    tail = f".{part}" if part else ""
    for text in ([f"{stage}{kind}{micro_batch}{tail}"] if chunks else []) + [f"{kind}{micro_batch}{tail}"]:
        if len(text) < room:
            return text
    return kind if room > 1 else kind.lower()


def _columns(timeline: Timeline, width: int) -> float:
    """Characters per second: enough for labels, unless that takes more than `MOST_BANDS` bands."""
    lasts = timeline.end_s - timeline.start_s
    shortest = float(lasts[lasts > 0].min()) if np.any(lasts > 0) else 1.0
    order = timeline.order
    stage = f"{int(order.stage.max())}" if np.any(order.stage != order.rank) else ""
    part = f".{int(order.slice.max())}" if order.slice.any() else ""
    label = len(f"{stage}F{int(order.micro_batch.max())}{part}") + 1
    wanted = label / shortest
    whole = float(timeline.end_s.max())
    return min(wanted, MOST_BANDS * width / whole)


def draw_timeline(timeline: Timeline, width: int = 80) -> Text:
    """The timeline as text of at most `width` columns."""
    order = timeline.order
    margin = len(f"rank {order.ranks - 1} ")
    room = max(width - margin, 20)
    scale = _columns(timeline, room)
    chunks = bool(np.any(order.stage != order.rank))
    lines = [_row(timeline, r, scale, chunks) for r in range(order.ranks)]
    length = max(len(line) for line in lines)
    out = Text()
    for begin in range(0, length, room):
        if begin:
            out.append("\n")
        out.append(f"{'time':{margin}}{begin / scale:.4g}\n", style="dim")
        for r, line in enumerate(lines):
            out.append(f"{'rank ' + str(r):{margin}}")
            out.append_text(line[begin : begin + room])
            out.append("\n")
    return out


def _row(timeline: Timeline, rank: int, scale: float, chunks: bool) -> Text:
    """One rank's whole row; idle time is dots."""
    order = timeline.order
    rows = slice(order.start[rank], order.start[rank + 1])
    starts, ends = _edges(timeline.start_s[rows], scale), _edges(timeline.end_s[rows], scale)
    total = int(_edges(timeline.end_s.max(), scale))
    line, at = Text(), 0
    columns: tuple[Any, ...] = (order.kind, order.stage, order.micro_batch, order.slice, order.fused)
    waiting = False
    for i, (k, stage, micro, part, fused) in enumerate(zip(*(c[rows].tolist() for c in columns), strict=True)):
        begin, end = int(starts[i]), int(ends[i])
        if waiting or fused:
            # Two operations share a time: each gets half.
            middle = (begin + end) // 2
            begin, end = (middle, end) if waiting else (begin, middle)
        waiting = bool(fused)
        line.append("." * (begin - at), style="dim")
        if end > begin:
            text = _label(KINDS[k], stage, micro, part, chunks, end - begin)
            line.append(text[: end - begin].ljust(end - begin), style=STYLES[KINDS[k]])
        at = max(end, at)
    line.append("." * (total - at), style="dim")
    return line


def _edges(seconds: Any, scale: float) -> Ints:
    return np.asarray(np.round(np.asarray(seconds) * scale), dtype=np.int64)
