"""Schedules that an algorithm generates: their closed forms are read from the longest paths of their own order.

Where a closed form is exact it is used. Elsewhere the bubble is that of the longest path, for all F, I and W. Beyond
3p + 4 micro-batches it grows evenly, by nothing or by what the steady state is uneven, and is extrapolated from two
sizes (tested against the timeline). So a size costs one order of at most 3p + 4 micro-batches, milliseconds for
eight ranks. The end of a step is a longest path: the largest of sums a F + b I + c W with whole a, b, c, convex in F, I
and W.
"""

from functools import lru_cache
from graphlib import TopologicalSorter
from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools
from planner.schedules.base import Pipeline, Schedule
from planner.schedules.dependencies import dependencies
from planner.schedules.operations import Order

_COUNTS = np.array([[1, 0, 0], [0, 1, 1], [0, 1, 0], [0, 0, 1], *[[0, 0, 0]] * 4])
"""How often F, I and W are in a kind's duration; a shared head's passes take none."""

_AT_ONCE = 512
"""Durations of one run."""


class LongestPaths:
    """An order's operations, none of them fused, in a sequence that respects what they wait for."""

    def __init__(self, order: Order) -> None:
        count = _COUNTS[order.kind]
        self._kinds, self._kind = np.unique(count, axis=0, return_inverse=True)
        self._work = count[: int(order.start[1])].sum(axis=0)
        self._first, self._last = order.start[:-1], order.start[1:] - 1
        heads = set(self._first.tolist())
        self._before = [
            sorted({*waits} - {-1} | ({i - 1} if i not in heads else set()))
            for i, waits in enumerate(dependencies(order).tolist())
        ]
        self._sequence = list(TopologicalSorter(dict(enumerate(self._before))).static_order())

    def bubble(self, seconds: Array, span: bool) -> Array:
        """Step less a rank's work, shape (durations,), for seconds (durations, 3) of one operation's F, I and W.

        span: from a rank's first operation to its last, the longest of any rank; else from the first of all on.
        """
        parts = np.array_split(seconds, max(-(-len(seconds) // _AT_ONCE), 1))
        return np.concatenate([self._bubble(part, span) for part in parts])

    def _bubble(self, seconds: Array, span: bool) -> Array:
        lasts = self._kinds @ seconds.T
        end = np.empty((len(self._before), len(seconds)))
        kind = self._kind.tolist()
        for i in self._sequence:
            before = self._before[i]
            if not before:
                end[i] = lasts[kind[i]]
                continue
            ready = end[before[0]]
            for b in before[1:]:
                ready = np.maximum(ready, end[b])
            np.add(ready, lasts[kind[i]], out=end[i])
        step = end[self._last]
        if span:
            step = step - (end[self._first] - lasts[self._kind[self._first]])
        return np.asarray(step.max(axis=0) - seconds @ self._work)


def held_at_peaks(order: Order, rank: int) -> Array:
    """Rows (n, k): the most a rank holds is the largest n + k kept, in activations of one forward."""
    at = slice(int(order.start[rank]), int(order.start[rank + 1]))
    kind = order.kind[at]
    whole = np.array([1, -1, -1, 0, 0, 0, 0, 0])[kind]
    part = np.array([0, 0, 1, -1, 0, 0, 0, 0])[kind]
    after = np.stack([np.cumsum(whole), np.cumsum(part)], axis=1)
    before = after - np.stack([whole, part], axis=1)
    held = np.where((kind == 0)[:, None], after, before)
    best: dict[int, int] = {}
    for n, k in held.tolist():
        best[k] = max(best.get(k, -1), n)
    return np.array([(n, k) for k, n in sorted(best.items())], dtype=np.float64)


def most_held(peaks: Array, kept: Array) -> Array:
    """The largest n + k kept over the rows (n, k) of `peaks`."""
    return np.asarray((peaks[:, 0] + np.multiply.outer(kept, peaks[:, 1])).max(axis=-1))


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
