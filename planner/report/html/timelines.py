"""A simulated step as small whole numbers for the page: the fill and the drain of a long one, its middle left out."""

from __future__ import annotations

import json
from base64 import b64encode
from gzip import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.base.arrays import Bools, Ints
from planner.base.units import GIB
from planner.schedules.operations import KINDS

if TYPE_CHECKING:
    from planner.step.timeline.step import StepSimulation

TICKS = 40  # of an operation's average place on a rank: finer than a pixel
MOST_RANKS = 32


def timeline_record(step: StepSimulation, most_operations: int) -> dict[str, Any]:
    """The timeline of at most about so many operations and `MOST_RANKS` ranks, first and last ones kept.

    types: kind, stage and ticks of an operation. A rank's row has for each operation t: its type, m: its micro-batch,
    g: ticks idle before it, k: its slice, u: 1 where it is fused with the next; tail: the position from which
    operations are of the drain; net: ticks of its gather's end, its reduction, its update. cut: ticks between which
    the rest lies, left out.
    """
    timeline, order = step.timeline, step.timeline.order
    end_s = float(max(step.update_end_s.max(), timeline.end_s.max()))
    tick = end_s / (TICKS * int(np.diff(order.start).max()))
    ranks = np.arange(order.ranks)
    if order.ranks > MOST_RANKS:
        ranks = np.r_[ranks[: MOST_RANKS // 2], ranks[-MOST_RANKS // 2 :]]
    start, end = (np.round(x / tick).astype(np.int64) for x in (timeline.start_s, timeline.end_s))
    kept = np.isin(order.rank, ranks)
    head, tail, cut = _ends(start, end, kept, most_operations)
    shown = kept & (head | tail)
    types, code = np.unique(
        np.stack([order.kind[shown], order.stage[shown], (end - start)[shown]], axis=1), axis=0, return_inverse=True
    )
    code_of = np.zeros(len(order), dtype=np.int64)
    code_of[shown] = code.reshape(-1)
    net = (step.gather_s, step.reduce_start_s, step.reduce_end_s, step.update_start_s, step.update_end_s)
    net_ticks = np.round(np.stack(net) / tick).astype(np.int64)
    rows = []
    for r in ranks.tolist():
        every = np.arange(order.start[r], order.start[r + 1])
        at = every[shown[every]]
        rows.append(_row(step, r, at, start, end, code_of, int(np.sum(head[at]))) | {"net": net_ticks[:, r].tolist()})
    return {
        "end_s": end_s,
        "step_s": step.step_time_s,
        "steps": step.steps,
        "ranks": order.ranks,
        "operations": len(order),
        "shown": int(shown.sum()),
        "ticks": round(end_s / tick),
        "cut": cut,
        "schedule": step.schedule.name,
        "types": [[KINDS[kind], stage, ticks] for kind, stage, ticks in types.tolist()],
        "chunks": bool(np.any(order.stage != order.rank)),
        "rows": rows,
    }


def packed(records: list[dict[str, Any] | None]) -> str:
    """JSON, compressed, in letters: a tenth of its size. The same records give the same text."""
    text = json.dumps(records, separators=(",", ":"), allow_nan=False)
    return b64encode(compress(text.encode(), mtime=0)).decode()


def _ends(start: Ints, end: Ints, kept: Bools, most: int) -> tuple[Bools, Bools, list[int] | None]:
    """Operations of the fill and of the drain, together about `most`, and between which ticks the rest lies.

    Where there is room for all, all are of the fill.
    """
    if int(kept.sum()) <= 1.25 * most:  # to leave out little is not worth it
        return kept, np.zeros_like(kept), None
    half = max(most // 2, 1)
    fill = int(np.sort(end[kept])[half - 1])
    drain = max(int(np.sort(start[kept])[-half]), fill)
    return kept & (end <= fill), kept & (start >= drain), [fill, drain]


def _row(step: StepSimulation, rank: int, at: Ints, start: Ints, end: Ints, code: Ints, head: int) -> dict[str, Any]:
    """One rank's operations and its totals."""
    order = step.timeline.order
    gap = start[at] - np.r_[0, end[at][:-1]] if len(at) else at
    row: dict[str, Any] = {
        "r": rank,
        "t": code[at].tolist(),
        "m": order.micro_batch[at].tolist(),
        "g": gap.tolist(),
        "busy_s": float(step.timeline.busy_s[rank] / step.steps),
        "idle_s": max(float(step.idle_s[rank]), 0.0),
        "comm_s": float(step.exposed_comm_s[rank]),
        "peak_gib": float(step.peak_bytes[rank]) / GIB,
    }
    if head < len(at):
        row["tail"] = head
    if order.slice[at].any():
        row["k"] = order.slice[at].tolist()
    if order.fused[at].any():
        row["u"] = order.fused[at].astype(int).tolist()
    return row
