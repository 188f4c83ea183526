"""The schedules whose closed form takes long, tried on the best pipelines by simulation alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from planner.estimate import Estimate, estimate
from planner.hardware import Cluster, Framework
from planner.legality import legal
from planner.models import Transformer
from planner.schedules import SCHEDULES
from planner.search.compare import with_schedule
from planner.simulation.step import simulate

__all__ = ["try_others"]

MOST_OPERATIONS = 12_000  # of one layout: about 50 ms to simulate
MOST_LAYOUTS = 2
WORTH_IT = 0.002  # a smaller gain is within what the timeline leaves out


def try_others(
    model: Transformer, cluster: Cluster, framework: Framework, result: Estimate, order: Any, allow_async: bool
) -> Estimate | None:
    """An estimate of one more layout that is faster than the best, with its step time simulated; None if there is none.

    The best pipelines, small enough to simulate at once, are run under every schedule that the search leaves out.
    """
    layouts = result.layouts
    pipelines = [int(i) for i in order[:20] if layouts.pp[i] > 1][:MOST_LAYOUTS]
    best, chosen = float(result.step_time_s[order[0]]) * (1.0 - WORTH_IT) if len(order) else 0.0, None
    for i in pipelines:
        for schedule in SCHEDULES.values():
            if schedule.quick or not (schedule.synchronous or allow_async):
                continue
            one = with_schedule(layouts.take([i]), model, schedule)
            size = 3 * int(one.pp[0] * one.virtual_stages[0] * one.micro_batches[0])
            if size > MOST_OPERATIONS or not legal(model, cluster, one)[0]:
                continue
            step = simulate(model, cluster, framework, one)
            if step.step_time_s < best and step.peak_bytes.max() <= cluster.accelerator.memory_bytes:
                best, chosen = step.step_time_s, one
    if chosen is None:
        return None
    closed = estimate(model, cluster, framework, chosen)
    speed = closed.step_time_s / best
    return replace(
        closed,
        time=replace(closed.time, bubble_s=closed.time.bubble_s + best - closed.step_time_s),
        step_time_s=np.array([best]),
        fits=np.array([True]),
        mfu=closed.mfu * speed,
        tokens_per_s_per_gpu=closed.tokens_per_s_per_gpu * speed,
    )
