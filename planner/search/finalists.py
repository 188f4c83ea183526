"""The finalists again, on the exact timeline: for the closed form only bounds uneven stages.

Then what the search leaves out is tried on the best of them: schedules whose closed form takes long, by simulation
alone; and recomputation, or activations in host memory, of as few layers as fit in memory.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from planner.base.arrays import Array, Ints
from planner.layouts import Layouts, Recompute
from planner.schedules import SCHEDULES
from planner.search.compare import with_schedule
from planner.search.found import first_of_each
from planner.search.request import Request
from planner.search.shortlist import ALTERED
from planner.setup import Setup
from planner.step.estimate import Estimate, estimate, least_step_s, totals
from planner.step.legality import legal
from planner.step.pipelines import exact_uneven
from planner.step.timeline.many import simulate_all
from planner.step.timeline.timed import has_timeline, most_operations, timed_estimate

MOST_LAYOUTS = 32
TOGETHER = 12  # simulated side by side where one is due that the others are likely to follow
MOST_OPERATIONS = 250_000  # in all: about half a second of Python


def refine(setup: Setup, result: Estimate, order: Any, top: int, kind: Ints | None = None) -> Estimate:
    """The estimate with the step times of likely winners simulated.

    order: fitting layouts, best first. kind: a number for each layout; of those that share it the first alone counts
    (`planner.search.found.kinds`). Pipelines among the first `top` are run, until all of these are; then those
    that might belong there: by their step without any bubble, where the closed form does not follow uneven ranks.
    Best first; at most `ALTERED` of the first kind, `MOST_LAYOUTS` with the second, `MOST_OPERATIONS` in all.
    """
    layouts, step, fits = result.layouts, result.step_time_s.copy(), result.fits.copy()
    least = np.where(exact_uneven(layouts), step, step - result.time.bubble_s)
    size, has = most_operations(layouts), has_timeline(layouts)
    waiting = [int(i) for i in order if has[i]]
    ran: list[int] = []
    known: dict[int, tuple[float, float]] = {}
    left = MOST_OPERATIONS
    while len(ran) < ALTERED:
        ranked = order[np.argsort(np.where(fits[order], step[order], np.inf), kind="stable")]
        ranked = (ranked if kind is None else first_of_each(ranked, kind))[:top]
        shown = set(ranked.tolist())
        worst = float(step[ranked[-1]]) if len(ranked) else 0.0
        due = [i for i in waiting if i in shown]
        if not due and len(ran) < MOST_LAYOUTS:
            due = list(islice((i for i in waiting if least[i] <= worst), TOGETHER))
        if not due or (left < size[due[0]] and ran):
            break
        if due[0] not in known:
            known |= _simulated(setup, layouts, _within(due, size, left))
        first = due[0]
        step[first], peak = known[first]
        fits[first] = peak <= setup.cluster.accelerator.usable_bytes
        left -= int(size[first])
        waiting.remove(first)
        ran.append(first)
    simulated = np.array(ran, dtype=np.int64)
    peaks = np.array([known[row][1] for row in ran])
    return result.with_simulated(simulated, step[simulated], peaks)


def _within(due: list[int], size: Ints, left: int) -> list[int]:
    """The first layout, and as many of the next as their operations allow: they are likely to be due then."""
    return due[: max(int(np.searchsorted(np.cumsum(size[due]), left, side="right")), 1)]


def _simulated(setup: Setup, layouts: Layouts, rows: list[int]) -> dict[int, tuple[float, float]]:
    """Seconds of the step and bytes of the fullest rank, by row."""
    seconds, peak_bytes = simulate_all(setup, layouts.take(rows))
    return dict(zip(rows, zip(seconds.tolist(), peak_bytes.tolist(), strict=True), strict=True))


MOST_OF_ONE = 12_000  # of one layout: about 50 ms to simulate
MOST_OTHERS = 2
WORTH_IT = 0.002  # a smaller gain is within what the timeline leaves out


def try_others(setup: Setup, result: Estimate, order: Any, allow_async: bool) -> Estimate | None:
    """An estimate of one more layout that is faster than the best, with its step time simulated; None if there is none.

    The best pipelines, small enough to simulate at once, are run under every schedule that the search leaves out.
    """
    layouts = result.layouts
    pipelines = [int(i) for i in order[:20] if layouts.pp[i] > 1][:MOST_OTHERS]
    best = float(result.step_time_s[order[0]]) * (1.0 - WORTH_IT) if len(order) else 0.0
    candidates = []
    for i in pipelines:
        for schedule in SCHEDULES.values():
            if schedule.quick or not (schedule.synchronous or allow_async):
                continue
            one = with_schedule(layouts.take([i]), setup.model, schedule)
            size = 3 * int(one.pp[0] * one.virtual_stages[0] * one.micro_batches[0])
            if size <= MOST_OF_ONE and legal(setup.model, setup.cluster, one)[0]:
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


FULL = Recompute.FULL
MOST_WHOLE = 64  # that recompute all layers: of many virtual stages few have layers to leave alone
MOST_SIMULATED = 2


def try_some_layers(setup: Setup, asked: Request, result: Estimate, order: Any) -> Estimate | None:
    """An estimate of one more layout that is faster than the best and recomputes fewer layers; None if there is none.

    A question that allows `full` alone means every layer, and none is tried. With --allow-offload, activations go to
    the host in layouts that then recompute nothing.

    order: fitting layouts, best first. Each of the fastest that recompute all layers gets the fewest with which it fits
    in memory by the closed form; the fastest of these are run on the timeline.
    """
    fixed = asked.fixed
    full = order[result.layouts.recompute[order] == FULL][:MOST_WHOLE]
    best = float(result.step_time_s[order[0]]) * (1.0 - WORTH_IT) if len(full) else 0.0
    out: list[Estimate] = []
    if len(full) and setup.framework.block_recompute and fixed.recompute_layers is None and fixed.recompute != (FULL,):
        out += _faster(setup, _fewest(setup, result.layouts.take(full)), best)
    alone = full[result.layouts.pp[full] == 1]
    kept = Recompute.NONE in (fixed.recompute or (Recompute.NONE,)) and fixed.offload_layers is None
    if len(alone) and fixed.offload and setup.framework.offloads_layers and kept:
        whole = replace(result.layouts.take(alone), recompute=np.full(len(alone), Recompute.NONE))
        out += _faster(setup, _fewest(setup, whole, "offload_layers"), best)
    return min(out, key=lambda one: float(one.step_time_s[0]), default=None)


def _faster(setup: Setup, found: tuple[Layouts, Array] | None, best: float) -> list[Estimate]:
    """The fastest of some layouts on the timeline, if it fits and is faster than the best."""
    if found is None:
        return []
    few, seconds = found
    hopeful = [int(i) for i in np.argsort(seconds, kind="stable") if seconds[i] < best][:MOST_SIMULATED]
    if not hopeful:
        return []
    timed = timed_estimate(setup, few.take(hopeful))
    faster = np.flatnonzero(timed.fits & (timed.step_time_s < best))
    return [timed.take(faster[[np.argmin(timed.step_time_s[faster])]])] if len(faster) else []


def _fewest(setup: Setup, layouts: Layouts, choice: str = "recompute_layers") -> tuple[Layouts, Array] | None:
    """For each layout, the smallest number of layers with which it fits, and the closed form's seconds of its step.

    choice: the choice that counts layers. Layouts that don't fit with fewer than all layers are left out. None if none
    is left.
    """
    most = -(-int(setup.model.num_layers) // (layouts.pp * layouts.virtual_stages))
    source_row = np.repeat(np.arange(len(layouts)), most - 1)
    layers = np.concatenate([np.arange(1, n) for n in most]).astype(np.int64)
    changes: dict[str, Any] = {choice: layers}
    table = replace(layouts.take(source_row), **changes)
    legal_rows = np.flatnonzero(legal(setup.model, setup.cluster, table)) if len(source_row) else source_row
    if not len(legal_rows):
        return None
    sums = totals(setup, table.take(legal_rows))
    fits = np.flatnonzero(sums.memory_bytes <= setup.cluster.accelerator.usable_bytes)
    if not len(fits):
        return None
    fewest = fits[np.unique(source_row[legal_rows[fits]], return_index=True)[1]]
    return table.take(legal_rows[fewest]), sums.step_time_s[fewest]
