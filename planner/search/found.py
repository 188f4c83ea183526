"""A search's findings, what holds its best layouts back, and the layout to run among those too close to tell apart: the
plainest, likeliest to fit."""

from dataclasses import dataclass

import numpy as np

from planner.base import records
from planner.base.arrays import Bools, Ints
from planner.search.request import Request
from planner.step.estimate import Estimate
from planner.step.timeline.timed import has_timeline

EQUAL = 0.028
"""Steps that can't be told apart: of two layouts predicted that near to each other the one said to be faster is so with
odds of less than two to one, in pairs of measured runs by fits without their publication
(`benchmarks/near_pairs.py`)."""
WORTH_IT = 0.02  # a gain below this is not worth more memory
LESS = 0.9  # of the memory of the layout to run: a roomier one that takes more is not worth a word
ROOMY = 0.05  # of the fastest step, what a user may give for room in memory


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """Findings of a search. Indices point into `estimate`'s table, best first.

    estimate: of the layouts that mattered: the best and what may overtake them, the front, the nearest misses.
    legal: layouts searched; fitting: those within memory; best: the first k by the objective, the one to run first.
    fastest: the best by the objective alone, None where nothing fits.
    front: fastest layout for each amount of memory, ascending in time.
    ties: how many more fitting layouts are within 1 % of the best by the objective (up to 65,536).
    """

    request: Request
    estimate: Estimate
    legal: int
    fitting: int
    best: Ints
    fastest: int | None
    front: Ints
    ties: int

    @property
    def chosen(self) -> Estimate:
        """The best layout, an estimate of one; of none if nothing fits."""
        return self.estimate.take(self.best[:1])

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
        """The layout that needs least memory among those at most 5 % slower than the fastest.

        None if nothing fits, or it takes over `LESS` of the memory of the layout to run.
        """
        step, memory = self.estimate.step_time_s[self.front], self.estimate.memory_bytes
        i = self._least_memory(self.front[step <= (1.0 + ROOMY) * step.min(initial=np.inf)])
        return i if i is not None and len(self.best) and memory[i] < LESS * memory[self.best[0]] else None


def known(result: Estimate) -> Bools:
    """Whether step and memory are what every answer says of the layout (`planner.step.timeline.timed`)."""
    return np.asarray(result.simulated | ~has_timeline(result.layouts))


def largest_part(result: Estimate, i: int) -> tuple[str, float]:
    """The largest part of a layout's step besides the products themselves, and its share of the step."""
    parts = records.parts(result.time, i, "_s")
    name = max((k for k in parts if k != "matmul"), key=lambda k: parts[k])
    return name, parts[name] / float(result.step_time_s[i])
