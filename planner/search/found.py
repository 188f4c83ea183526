"""What a search found, what holds its best layouts back, and the layout to run among those too close to tell apart: the
plainest, likeliest to fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.base import records
from planner.base.arrays import Bools, Ints
from planner.choices.table import CHOICES
from planner.layouts import Layouts
from planner.search.request import Request
from planner.step.estimate import Estimate
from planner.step.timeline.timed import has_timeline

EQUAL = 0.0225
"""Steps that can't be told apart: of two layouts predicted that near to each other the one said to be faster is so with
odds of less than two to one, in pairs of measured runs by fits without their publication
(`benchmarks/near_pairs.py`)."""
WORTH_IT = 0.02  # a gain below this is not worth more memory
ROOMY = 0.05  # of the fastest step, what a user may give for room in memory


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """What a search found. Indices point into `estimate`'s table, best first.

    estimate: of the layouts that mattered: the best and what may overtake them, the front, the nearest misses.
    legal: layouts searched; fitting: those within memory; best: the first k by the objective, the one to run first.
    fastest: the best by the objective alone, None where nothing fits.
    front: fastest layout for each amount of memory, ascending in time.
    ties: how many more fitting layouts are within 1 % of the best by the objective (up to 65,536).
    """

    asked: Request
    estimate: Estimate
    legal: int
    fitting: int
    best: Ints
    fastest: int | None
    front: Ints
    ties: int

    @property
    def named(self) -> Ints:
        """All layouts that an answer names."""
        some = (self.fastest, self.nearest_miss, self.faster_over_memory, self.roomiest)
        return np.unique([*self.best, *self.front, *(i for i in some if i is not None)]).astype(np.int64)

    @property
    def nearly_fastest(self) -> Ints:
        """The layouts to list, the fastest, and what of the front is at most 5 % slower: all that may be the one to
        run."""
        if self.fastest is None:
            return self.best
        step = self.estimate.step_time_s
        near = self.front[step[self.front] <= (1.0 + ROOMY) * step[self.fastest]]
        return np.unique([*self.best, self.fastest, *near]).astype(np.int64)

    @property
    def nearest_miss(self) -> int | None:
        """The layout over memory that exceeds it least; None if all fit."""
        return self._least_memory(np.flatnonzero(~self.estimate.fits))

    @property
    def faster_over_memory(self) -> int | None:
        """The layout that needs least memory among those over memory and at least 2 % faster than the fastest."""
        if self.fastest is None:
            return None
        step = self.estimate.step_time_s
        return self._least_memory(np.flatnonzero(~self.estimate.fits & (step < (1.0 - WORTH_IT) * step[self.fastest])))

    def _least_memory(self, rows: Ints) -> int | None:
        return int(rows[np.argmin(self.estimate.memory_bytes[rows])]) if len(rows) else None

    @property
    def roomiest(self) -> int | None:
        """The layout that needs least memory among those at most 5 % slower than the fastest; None if nothing fits."""
        step = self.estimate.step_time_s[self.front]
        return self._least_memory(self.front[step <= (1.0 + ROOMY) * step.min(initial=np.inf)])


def known(result: Estimate) -> Bools:
    """Whether step and memory are what every answer says of the layout (`planner.step.timeline.timed`)."""
    return np.asarray(result.simulated | ~has_timeline(result.layouts))


def largest_part(result: Estimate, i: int) -> tuple[str, float]:
    """The largest part of a layout's step besides the products themselves, and its share of the step."""
    parts = records.parts(result.time, i, "_s")
    name = max((k for k in parts if k != "matmul"), key=lambda k: parts[k])
    return name, parts[name] / float(result.step_time_s[i])


SURE = 0.01  # of not fitting: less tells nothing apart
USUAL_SCHEDULES = ("1f1b", "interleaved")


def unusual(layouts: Layouts) -> Ints:
    """How many choices of each layout are not the usual ones, shape (n,).

    Each doubling of the context-parallel ranks counts as one: it cuts a sequence into shorter pieces and spreads a
    ring over more nodes, both further from what published runs have measured.
    """
    usual = np.array([name in USUAL_SCHEDULES for name in layouts.schedule_names])
    count = ((layouts.pp > 1) & ~usual[layouts.schedule]).astype(np.int64)
    count += np.ceil(np.log2(layouts.cp)).astype(np.int64)
    for choice in CHOICES.values():
        if choice.risky:
            count += getattr(layouts, choice.name) != choice.default
    return np.asarray(count)


def kinds(layouts: Layouts) -> Ints:
    """A number for each layout, the same for twins, which share all that sets answers `apart`, shape (n,)."""
    columns = np.stack([getattr(layouts, choice.name) for choice in CHOICES.values() if choice.apart])
    return np.asarray(np.unique(columns, axis=1, return_inverse=True)[1].ravel())


def first_of_each(order: Any, kind: Ints) -> Ints:
    """The first index of each kind, in order."""
    _, first = np.unique(kind[order], return_index=True)
    return np.asarray(order[np.sort(first)])


def plainest_first(result: Estimate, order: Any) -> Ints:
    """Fitting layouts, fastest first, with the one to run before them.

    Pipelines whose exact timeline is not known don't count.
    """
    if not len(order):
        return np.asarray(order)
    known = order[result.simulated[order] | (result.layouts.pp[order] == 1) | (order == order[0])]
    pick = known[plainest(result.step_time_s[known], result.fit_chance[known], result.layouts.take(known))]
    return np.concatenate([[pick], order[order != pick]])


def plainest(step_time_s: Any, fit_chance: Any, layouts: Layouts) -> int:
    """The index of the layout to run, of some that fit: steps and chances of fitting of shape (n,).

    Of those that can't be told apart from the fastest (`EQUAL`) it has the fewest unusual choices, then the better
    chance of fitting, above 99 % taken as alike, then the shortest step.
    """
    near = np.flatnonzero(step_time_s <= (1.0 + EQUAL) * step_time_s.min())
    keys = (step_time_s[near], np.maximum(1.0 - fit_chance[near], SURE), unusual(layouts.take(near)))
    return int(near[np.lexsort(keys)[0]])
