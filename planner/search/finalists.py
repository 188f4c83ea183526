"""The finalists again, on the exact timeline: for the closed form only bounds uneven stages."""

from itertools import islice
from typing import Any

import numpy as np

from planner.base.arrays import Ints
from planner.layouts import Layouts
from planner.search.pick import first_of_each
from planner.search.shortlist import ALTERED
from planner.setup import Setup
from planner.step.estimate import Estimate
from planner.step.pipelines import exact_uneven
from planner.step.step_costs import StepCosts
from planner.step.timeline.many import simulate_all
from planner.step.timeline.timed import has_timeline, most_operations

MOST_LAYOUTS = 32
TOGETHER = 12  # simulated side by side where one is due that the others are likely to follow
MOST_OPERATIONS = 250_000  # in all: about half a second of Python


def refine(
    setup: Setup, result: Estimate, order: Any, tops: set[int], kind: Ints | None = None, costs: StepCosts | None = None
) -> Estimate:
    """The estimate with the step times of likely winners simulated.

    costs: the layouts' `step_costs`, where they are known.
    order: fitting layouts, best first. kind: a number for each layout; of those that share it the first alone counts
    (`planner.search.pick.kinds`). Pipelines among the first `tops`, the fewest first, are run, until all of these are;
    then those that might belong there: by their step without any bubble, where the closed form does not follow uneven
    ranks.
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
        ranked = ranked if kind is None else first_of_each(ranked, kind)
        due: list[int] = []
        for top in sorted(tops):
            shown = set(ranked[:top].tolist())
            due = due or [i for i in waiting if i in shown]
            if not due and len(ran) < MOST_LAYOUTS:
                worst = float(step[ranked[:top]].max(initial=0.0))
                due = list(islice((i for i in waiting if least[i] <= worst), TOGETHER))
        if not due or (left < size[due[0]] and ran):
            break
        if due[0] not in known:
            known |= _simulated(setup, layouts, _within(due, size, left), costs)
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


def _simulated(
    setup: Setup, layouts: Layouts, rows: list[int], costs: StepCosts | None
) -> dict[int, tuple[float, float]]:
    """Seconds of the step and bytes of the fullest rank, by row."""
    own = None if costs is None else costs.take(rows)
    seconds, peak_bytes = simulate_all(setup, layouts.take(rows), own)
    return dict(zip(rows, zip(seconds.tolist(), peak_bytes.tolist(), strict=True), strict=True))
