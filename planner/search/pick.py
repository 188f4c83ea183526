"""Of layouts that can't be told apart the one to run: the plainest, likeliest to fit. And answers that differ."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.choices.table import CHOICES
from planner.layouts import Layouts
from planner.search.shortlist import NEAR
from planner.step.estimate import Estimate

PLAIN = ("virtual_stages", "sequence_slices", "cp", "dp_replicate", "layer_split", "recompute", "offload_optimizer")
"""Choices that are one more thing to go wrong where they are not at their default."""
KIND = ("tp", "pp", "cp", "ep", "schedule")
"""Choices by which answers differ: layouts that share all of them are twins, of which a table shows the best."""
USUAL_SCHEDULES = ("1f1b", "interleaved")


def unusual(layouts: Layouts) -> NDArray[np.int64]:
    """How many choices of each layout are not the usual ones, shape (n,)."""
    usual = np.array([name in USUAL_SCHEDULES for name in layouts.schedule_names])
    count = ((layouts.pp > 1) & ~usual[layouts.schedule]).astype(np.int64)
    for name in PLAIN:
        count += getattr(layouts, name) != CHOICES[name].default
    return np.asarray(count)


def kinds(layouts: Layouts) -> NDArray[np.int64]:
    """A number for each layout, the same where all of `KIND` is, shape (n,)."""
    columns = np.stack([getattr(layouts, name) for name in KIND])
    return np.asarray(np.unique(columns, axis=1, return_inverse=True)[1].ravel())


def first_of_each(order: Any, kind: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of indices in order, the first of each kind."""
    _, first = np.unique(kind[order], return_index=True)
    return np.asarray(order[np.sort(first)])


def plainest_first(result: Estimate, order: Any, simulated: Any) -> NDArray[np.int64]:
    """Fitting layouts, fastest first, with the one to run before them.

    simulated: those of which the exact timeline is known; other pipelines don't count. Of those whose steps are within
    1 % of the fastest the one to run has the fewest unusual choices, then the least memory, then
    the shortest step. Predictions hardly tell such layouts apart: of 290 pairs of measured runs of one model on as many
    GPUs that were predicted within 1 % of each other, the one predicted to be faster was so in 59 %
    (`benchmarks/near_pairs.py`).
    """
    if not len(order):
        return np.asarray(order)
    step = result.step_time_s[order]
    known = np.isin(order, simulated) | (result.layouts.pp[order] == 1)
    near = order[(step <= (1.0 + NEAR) * step[0]) & (known | (order == order[0]))]
    keys = (result.step_time_s[near], result.memory_bytes[near], unusual(result.layouts.take(near)))
    pick = near[np.lexsort(keys)[0]]
    return np.concatenate([[pick], order[order != pick]])
