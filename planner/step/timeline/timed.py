"""Estimates of the layouts that an answer names, with the exact timeline's seconds and bytes of a step.

The closed form ranks the many layouts of a search. It stays the answer without a pipeline, where both are the same, and
for steps of more than `MOST_OPERATIONS`, which take seconds to simulate and whose bubbles are small.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from planner.base import records
from planner.base.arrays import Bools, Ints
from planner.layouts import Layouts
from planner.setup import Setup
from planner.step.estimate import Estimate, estimate
from planner.step.step_costs import StepCosts, step_costs
from planner.step.timeline.many import simulate_all

MOST_OPERATIONS = 100_000


def most_operations(layouts: Layouts) -> Ints:
    """Upper bound on the number of operations in each layout's step, shape (n,)."""
    each = layouts.virtual_stages * layouts.micro_batches * layouts.sequence_slices
    return np.asarray(3 * layouts.pp * each)


def has_timeline(layouts: Layouts) -> Bools:
    """Whether the timeline is the answer, boolean of shape (n,)."""
    return np.asarray((layouts.pp > 1) & (most_operations(layouts) <= MOST_OPERATIONS))


def timed(setup: Setup, result: Estimate, rows: Any = slice(None), costs: StepCosts | None = None) -> Estimate:
    """The estimate with the timeline's step and peak memory of some of its layouts (an index array or a mask).

    costs: `step_costs` of the first of its layouts, where they are known.
    """
    some = np.zeros(len(result.layouts), dtype=bool)
    some[rows] = True
    due = np.flatnonzero(some & has_timeline(result.layouts) & ~result.simulated)
    if not len(due):
        return result
    some_of = replace(setup, model=records.take(setup.model, due))
    known = None if costs is None or due[-1] >= len(costs.case.layouts) else costs.take(due)
    return result.with_simulated(due, *simulate_all(some_of, result.layouts.take(due), known))


def timed_estimate(setup: Setup, layouts: Layouts) -> Estimate:
    """Step time and peak memory of every layout as an answer has them; the layouts must be legal."""
    costs = step_costs(setup, layouts)
    return timed(setup, estimate(setup, layouts, costs), costs=costs)
