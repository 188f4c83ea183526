"""Schedules that an algorithm generates: their closed forms are read from the longest paths of their own order.

Where a closed form is exact it is used. Elsewhere the bubble is that of the longest path, for all F, I and W. Beyond
3p + 4 micro-batches it grows evenly, by nothing or by what the steady state is uneven, and is extrapolated from two
sizes (tested against the timeline). So a size costs one order of at most 3p + 4 micro-batches, milliseconds for
eight ranks.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools
from planner.schedules.base import Order, Pipeline, Schedule
from planner.schedules.longest_paths import LongestPaths, held_at_peaks, most_held


class Generated(Schedule):
    """Bubble and peak from the order itself, for all F, I and W."""

    quick = False
    settles = True
    """Whether the bubble grows evenly from 3p + 4 micro-batches on."""

    def closed_form(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> tuple[Array, Bools]:
        """Nowhere, unless the schedule says so."""
        return np.zeros(()), np.zeros((), dtype=bool)

    def bubble_s(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> Array:
        """The closed form; where it isn't exact, the longest path through the order less a rank's work."""
        sizes, closed = (pipe.p, pipe.m, pipe.v, pipe.k, F, I, W), self.closed_form(pipe, F, I, W)
        *arrays, closed_s, exact = np.broadcast_arrays(*map(np.asarray, (*sizes, *closed)))
        size = np.stack([a.ravel() for a in arrays[:4]], axis=1).astype(np.int64)
        x = np.stack([a.ravel() for a in arrays[4:]], axis=1).astype(np.float64)
        out, left = closed_s.astype(np.float64).ravel(), ~exact.ravel()
        for one in np.unique(size[left], axis=0):
            rows = left & (size == one).all(axis=1)
            p, m, v, k = one.tolist()
            top = self._made(p, m)
            here = _bubble(self, p, top, v, k, x[rows])
            if m > top:
                here = here + (m - top) * (here - _bubble(self, p, top - 1, v, k, x[rows]))
            out[rows] = here / (v * k)
        return np.asarray(out.reshape(arrays[0].shape))

    def in_flight(self, pipe: Pipeline, rank: Any, kept: Any = 0.0) -> Array:
        """The most that the order holds; beyond 3p + 4 micro-batches it stays."""
        arrays = np.broadcast_arrays(*map(np.asarray, (pipe.p, pipe.m, pipe.v, pipe.k, rank, kept)))
        size = np.stack([a.ravel() for a in arrays[:5]], axis=1).astype(np.int64)
        share = arrays[5].ravel().astype(np.float64)
        out = np.zeros(len(size))
        for one in np.unique(size, axis=0):
            rows = (size == one).all(axis=1)
            p, m, v, k, r = one.tolist()
            peaks = _peaks(self, p, self._made(p, m), v, k)[r]
            out[rows] = most_held(peaks, share[rows]) / (v * k)
        return np.asarray(out.reshape(arrays[0].shape))

    def _made(self, p: int, m: int) -> int:
        """Micro-batches of the order that is made."""
        return min(m, 3 * p + 4) if self.settles else m


def _bubble(schedule: Generated, p: int, m: int, v: int, k: int, x: Array) -> Array:
    return _paths(schedule, p, m, v, k).bubble(x, schedule.unsynchronised_end)


@lru_cache(maxsize=64)
def _paths(schedule: Generated, p: int, m: int, v: int, k: int) -> LongestPaths:
    return LongestPaths(_order(schedule, p, m, v, k))


@lru_cache(maxsize=4096)
def _peaks(schedule: Generated, p: int, m: int, v: int, k: int) -> list[Array]:
    order = _order(schedule, p, m, v, k)
    return [held_at_peaks(order, r) for r in range(p)]


@lru_cache(maxsize=8)
def _order(schedule: Generated, p: int, m: int, v: int, k: int) -> Order:
    return schedule.order(Pipeline(p=p, m=m, v=v, k=k))
