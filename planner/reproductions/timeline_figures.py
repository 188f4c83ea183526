"""Figures of a schedule from the timeline of its own order of operations, not from its closed form."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from planner.schedules import Pipeline, get_schedule
from planner.step.timeline.timeline import Timeline, durations, run


def timeline_figure(
    *, quantity: str, schedule: str, p: int, m: int, v: int = 1, k: int = 1, F: float = 1, I: float = 1, W: float = 1,
    transfer: float = 0, kept: float = 0.0,
) -> tuple[float, str]:  # fmt: skip
    """A figure of a pipeline with equal ranks.

    F, I, W: of one micro-batch through a rank; transfer: between ranks. kept: what W still needs of the activations.
    quantity: bubble (idle share of the step), idle over work, step (in F's unit), peak (activations of the fullest
    rank, in micro-batches of all of its layers), total peak (those of all ranks), versions, copies (of the weights).

    Raises:
        PlannerError: no such schedule, or one that can't run.
    """
    rule = get_schedule(schedule)
    pipe = Pipeline(p=p, m=m, v=v, k=k)
    if quantity in ("versions", "copies"):
        return float(rule.copies if quantity == "copies" else max(rule.weight_versions(pipe, r) for r in range(p))), ""
    parts = max(v // rule.copies, 1) * k  # of a micro-batch's pass through a rank; each copy has its own chunks
    timeline = _run(rule.name, p, m, v, k, parts, F, I, W, transfer, kept)
    whole = timeline.span_s if rule.unsynchronised_end else timeline.makespan_s
    work = float(timeline.busy_s.mean())
    peaks = timeline.peak(kept=kept) / parts
    figures: dict[str, Any] = {
        "bubble": 1.0 - work / whole, "idle over work": whole / work - 1.0, "step": whole, "speed": 1.0 / whole,
        "peak": peaks.max(), "total peak": peaks.sum(),
    }  # fmt: skip
    return float(figures[quantity]), ""


@lru_cache(maxsize=64)
def _run(
    name: str, p: int, m: int, v: int, k: int, parts: int, F: float, I: float, W: float, transfer: float, kept: float
) -> Timeline:
    """The timeline of one step, the order fitted to the durations where the schedule can."""
    pipe = Pipeline(p=p, m=m, v=v, k=k)
    seconds = (F / parts, I / parts, W / parts)
    order = get_schedule(name).fitted(pipe, seconds, transfer, kept)
    return run(order, durations(order, *seconds), transfer)
