"""The layouts that a search keeps: all that may still be part of its answer, and little else.

The finalists are simulated afterwards, which may change the step of at most `ALTERED` of them. So a layout is kept if
it may be among the first, on the front of time against memory, or a finalist, once that many others are out of its
way; everything else is dominated more often than that and can't matter. What is kept does not depend on the order in
which layouts come, nor on how they are cut into grids.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.base import records
from planner.base.arrays import Array, Bools, Ints, record
from planner.search.bounds import Bounds
from planner.search.grids import Grid
from planner.step.estimate import Totals
from planner.step.pipelines import exact_uneven

ALTERED = 128  # finalists whose step may change in all
NEAR = 0.01  # layouts within that of the best are counted as ties
MOST_TIES = 65_536
MANY, SEED = 8_192, 2_048  # candidates that wait to be sifted together; of a grid's, those that are sifted first
BINS = 64  # of memory up to the accelerator's, and again for each further multiple of it
MULTIPLES = 4


@record
class Candidates:
    """Layouts by what they are compared by, arrays of shape (n,).

    serial: each layout's own number, which decides between equals. least_s: the step, without its bubble where the
    closed form does not follow uneven ranks. pipelined: more than one stage. layouts: the table, or each layout's place
    in its grid.
    """

    serial: Ints
    step_time_s: Array
    least_s: Array
    memory_bytes: Array
    pipelined: Bools
    layouts: Any

    def __len__(self) -> int:
        return len(self.serial)

    def take(self, index: Any) -> Candidates:
        """The candidates at an index array or mask."""
        return records.take(self, index)

    def sorted(self) -> Candidates:
        """Fastest first, then smallest, without layouts that equal the one before in both."""
        order = np.lexsort((self.serial, self.memory_bytes, self.step_time_s))
        step, memory = self.step_time_s[order], self.memory_bytes[order]
        new = np.ones(len(order), dtype=bool)
        new[1:] = (step[1:] != step[:-1]) | (memory[1:] != memory[:-1])
        return self.take(order[new])


class Shortlist:
    """The layouts that may matter among those of the grids that are added.

    capacity_bytes: one accelerator's. top: how many layouts will be shown; 0 keeps what may be the fastest by the
    closed form alone, if any fits. by_memory: least memory is best, not time.
    rivals: keep this many of the fastest that fit, and as many that need up to twice the memory. reach_s: if finite,
    keep only what fits and may have such a step.
    legal, fitting: layouts that were added, and those of them within the capacity. fits, over: those that were kept.
    """

    def __init__(
        self, capacity_bytes: float, top: int, *, by_memory: bool = False, rivals: int = 0, reach_s: float = np.inf
    ) -> None:
        self.capacity_bytes, self.by_memory, self.rivals, self.reach_s = capacity_bytes, by_memory, rivals, reach_s
        self.legal = self.fitting = 0
        self.fits: Candidates | None = None
        self.over: Candidates | None = None
        self._top, self._depth = top, max(top, 1) + ALTERED
        self._waiting: list[Candidates] = []
        self._ties = np.zeros((2, 0))
        self._slower = np.inf
        """Above it no step without its bubble makes a finalist."""
        self._limit = np.full(BINS * MULTIPLES, np.inf)
        """For each bin of memory the step above which a layout is dominated."""

    def out(self, bound: Bounds) -> Bools:
        """Rows of a grid whose layouts `add` would only count, boolean."""
        reach = np.maximum.accumulate(self._limit[::-1])[::-1]
        least, memory = bound.step_time_s, bound.memory_bytes
        if self.reach_s < np.inf:
            return (least > self.reach_s) | (memory > self.capacity_bytes)
        return least > reach[self._bin(memory)]

    def count(self, grid: Grid) -> None:
        """Count a grid's layouts that can't matter and don't fit."""
        self.legal += int(np.count_nonzero(grid.legal))

    def _bin(self, memory_bytes: Array) -> NDArray[np.intp]:
        """The bin of a size of memory; what just fits lies in the last bin of those that fit."""
        scaled = memory_bytes * (BINS * (1.0 - 1e-9) / self.capacity_bytes)
        return np.minimum(scaled, BINS * MULTIPLES - 1).astype(np.intp)

    def _may_matter(self, step: Array, least: Array, memory: Array, fits: Bools) -> Bools:
        """Whether a layout is not dominated, or fits and may be a finalist; by the limits so far."""
        return np.asarray((step <= self._limit[self._bin(memory)]) | ((least <= self._slower) & fits))

    def add(self, grid: Grid, totals: Totals) -> None:
        """Count a grid's layouts and keep those that may matter."""
        step, memory = totals.step_time_s, totals.memory_bytes
        fits = (memory <= self.capacity_bytes) & grid.legal
        self.legal += int(np.count_nonzero(grid.legal))
        self.fitting += int(np.count_nonzero(fits))
        least = step - np.where(exact_uneven(grid.layouts), 0.0, totals.bubble_s)
        if not self._top:
            self.reach_s = float(step[fits].min(initial=self.reach_s))
        hopeful = grid.legal & self._may_matter(step, least, memory, fits)
        if self.reach_s < np.inf:
            hopeful &= fits & (least <= self.reach_s)
        flat = np.flatnonzero(hopeful)
        if not len(flat):
            return
        rows = grid.legal.shape[-1]
        row, choice = flat % rows, flat // rows
        some = Candidates(
            serial=grid.numbers(choice, row),
            step_time_s=step.ravel()[flat],
            least_s=least.ravel()[flat],
            memory_bytes=memory.ravel()[flat],
            pipelined=grid.layouts.pp[row] > 1,
            layouts=flat,
        )
        while len(some) > MANY:
            # Of too many, some evenly spread ones first: what they rule out need not be sorted.
            seed = np.arange(len(some)) % (len(some) // SEED) == 0
            self._wait(grid, some.take(seed))
            self.sift()
            some = some.take(~seed)
            fit = some.memory_bytes <= self.capacity_bytes
            near = self._may_matter(some.step_time_s, some.least_s, some.memory_bytes, fit)
            if np.count_nonzero(near) > 0.5 * len(some):
                break
            some = some.take(near)
        self._wait(grid, some)
        if sum(map(len, self._waiting)) > MANY:
            self.sift()

    def _wait(self, grid: Grid, some: Candidates) -> None:
        layouts = grid.layouts.at(np.unravel_index(some.layouts, grid.legal.shape))
        self._waiting.append(replace(some, layouts=layouts))

    def sift(self) -> None:
        """Drop what can no longer matter, and tighten what is asked of the next."""
        if not self._waiting:
            return
        new = records.concatenate(self._waiting)
        self._waiting = []
        fit = new.memory_bytes <= self.capacity_bytes
        fits = [new.take(fit)] if self.fits is None else [self.fits, new.take(fit)]
        over = [new.take(~fit)] if self.over is None else [self.over, new.take(~fit)]
        self.fits, self.over = records.concatenate(fits).sorted(), records.concatenate(over).sorted()
        self._count_ties(self.fits)
        self.fits = self.fits.take(self._mattering(self.fits))
        self.over = self.over.take(self._mattering_over(self.over))
        self._tighten(self.fits, self.over)

    def _mattering(self, fits: Candidates) -> Bools:
        """Whether each sorted layout that fits may matter: the first, the finalists, the front, the rivals."""
        step, least = fits.step_time_s, fits.least_s
        keep = np.arange(len(step)) < max(self._depth, self.rivals) + 1
        slower = step[self._depth] if len(step) > self._depth else np.inf
        finalists = np.flatnonzero(fits.pipelined & (least <= slower))
        keep[finalists[_rarely_dominated(least[finalists], ALTERED)]] = True
        keep[_rarely_dominated(fits.memory_bytes, self._depth + 1)] = True
        return np.asarray(keep)

    def _mattering_over(self, over: Candidates) -> Bools:
        """Whether each sorted layout over memory may matter: the front, and the rivals in twice the memory."""
        keep = _rarely_dominated(over.memory_bytes, 1)
        if self.rivals:
            keep[np.flatnonzero(over.memory_bytes <= 2.0 * self.capacity_bytes)[: self.rivals + 1]] = True
        return keep

    def _tighten(self, fits: Candidates, over: Candidates) -> None:
        """The limits that the next layouts must keep, from those kept so far."""
        step, memory = fits.step_time_s, fits.memory_bytes
        self._slower = float(step[self._depth]) if len(step) > self._depth else np.inf
        rival = float(step[self.rivals]) if len(step) > self.rivals else np.inf
        edges = np.asarray(np.arange(BINS * MULTIPLES) * (self.capacity_bytes / BINS), dtype=np.float64)
        reach = max(self._slower * (1.0 + NEAR), rival)
        limit = self._limit
        limit[:BINS] = np.maximum(_staircase(fits, self._depth + 1, edges[:BINS]), reach)
        if self.by_memory and len(memory):
            limit[:BINS][edges[:BINS] <= (1.0 + NEAR) * memory.min()] = np.inf
        limit[BINS:] = _staircase(over, 1, edges[BINS:])
        if self.rivals:
            soon = over.step_time_s[over.memory_bytes <= 2.0 * self.capacity_bytes]
            rival = float(soon[self.rivals]) if len(soon) > self.rivals else np.inf
            limit[BINS : 2 * BINS] = np.maximum(limit[BINS : 2 * BINS], rival)

    def _count_ties(self, fits: Candidates) -> None:
        """Keep the step and memory of all that may be ties of the best."""
        steps, memory = (
            np.concatenate([old, new])
            for old, new in zip(self._ties, (fits.step_time_s, fits.memory_bytes), strict=True)
        )
        key, slower = (memory, np.inf) if self.by_memory else (steps, self._slower)
        best = float(key.min()) if len(key) else 0.0
        near = np.flatnonzero(key <= (1.0 + NEAR) * (best if self.by_memory else slower))
        order = near[np.lexsort((memory[near], steps[near]))]
        steps, memory = steps[order], memory[order]
        new = np.ones(len(order), dtype=bool)
        new[1:] = (steps[1:] != steps[:-1]) | (memory[1:] != memory[:-1])
        self._ties = np.stack([steps[new], memory[new]])
        if len(self._ties[0]) > MOST_TIES:
            first = np.argsort(self._ties[int(self.by_memory)], kind="stable")[:MOST_TIES]
            self._ties = self._ties[:, first]

    def ties(self, best: float) -> Array:
        """Step and memory of the fitting layouts within `NEAR` of the best, shape (2, n); `MOST_TIES` at most."""
        return np.asarray(self._ties[:, self._ties[int(self.by_memory)] <= (1.0 + NEAR) * best])


def _rarely_dominated(values: Array, times: int) -> Bools:
    """Whether fewer than `times` earlier values are as small, boolean; true for some others too.

    Compared in blocks, each with the smallest values of the blocks before it.
    """
    keep = np.ones(len(values), dtype=bool)
    smallest, block = values[:0], max(4 * times, 64)
    for start in range(0, len(values), block):
        here = values[start : start + block]
        if len(smallest) >= times:
            keep[start : start + block] = here < smallest[times - 1]
        smallest = np.sort(np.concatenate([smallest, here]))[:times]
    return keep


def _staircase(some: Candidates, times: int, edges: Array) -> Array:
    """Steps of the `times`-th fastest with clearly less memory than each edge; infinite where there are fewer.

    The candidates are sorted by their step.
    """
    order = np.argsort(some.memory_bytes, kind="stable")
    count = np.searchsorted(some.memory_bytes[order], edges * (1.0 - 1e-6), side="right")
    out = np.full(len(edges), np.inf)
    for i, n in enumerate(count):
        if n >= times:
            out[i] = some.step_time_s[np.partition(order[:n], times - 1)[times - 1]]
    return out
