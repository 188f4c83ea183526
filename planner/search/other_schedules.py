"""The schedules whose closed form takes long, tried on the best pipelines by simulation alone."""

from typing import Any

import numpy as np

from planner.layouts import Layouts
from planner.schedules import SCHEDULES
from planner.search.compare import with_schedule
from planner.setup import Setup
from planner.step.estimate import Estimate, estimate, least_step_s
from planner.step.legality import legal
from planner.step.timeline.many import simulate_all

MOST_OPERATIONS = 12_000  # of one layout: about 50 ms to simulate
MOST_LAYOUTS = 2
WORTH_IT = 0.002  # a smaller gain is within what the timeline leaves out


def try_others(setup: Setup, result: Estimate, order: Any, allow_async: bool) -> Estimate | None:
    """An estimate of one more layout that is faster than the best, with its step time simulated; None if there is none.

    The best pipelines, small enough to simulate at once, are run under every schedule that the search leaves out.
    """
    layouts = result.layouts
    pipelines = [int(i) for i in order[:20] if layouts.pp[i] > 1][:MOST_LAYOUTS]
    best = float(result.step_time_s[order[0]]) * (1.0 - WORTH_IT) if len(order) else 0.0
    candidates = []
    for i in pipelines:
        for schedule in SCHEDULES.values():
            if schedule.quick or not (schedule.synchronous or allow_async):
                continue
            one = with_schedule(layouts.take([i]), setup.model, schedule)
            size = 3 * int(one.pp[0] * one.virtual_stages[0] * one.micro_batches[0])
            if size <= MOST_OPERATIONS and legal(setup.model, setup.cluster, one)[0]:
                candidates.append(one)
    chosen: tuple[Layouts, float] | None = None
    for one, step_time_s, peak_bytes in _hopeful(setup, candidates, best):
        if step_time_s < best and peak_bytes <= setup.cluster.accelerator.usable_bytes:
            best, chosen = step_time_s, (one, peak_bytes)
    if chosen is None:
        return None
    layout, peak = chosen
    return estimate(setup, layout).with_simulated(np.array([0]), best, peak)


def _hopeful(setup: Setup, candidates: list[Layouts], best_s: float) -> list[tuple[Layouts, float, float]]:
    """The candidates that are faster than the best without their bubble: each with its step, and its fullest rank's
    bytes."""
    if not candidates:
        return []
    table = Layouts.concatenate(candidates)
    hopeful = np.flatnonzero(least_step_s(setup, table) < best_s)
    if not len(hopeful):
        return []
    found = zip(hopeful, *simulate_all(setup, table.take(hopeful)), strict=True)
    return [(candidates[i], float(step_time_s), float(peak_bytes)) for i, step_time_s, peak_bytes in found]
