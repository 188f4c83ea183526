"""The bubble and peak of any order, for many durations at once: longest paths through its operations.

The end of a step is a longest path: the largest of sums a F + b I + c W with whole a, b, c, convex in F, I and W.
"""

import numpy as np

from planner.base.arrays import Array
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
        self._sequence = self._in_sequence()

    def _in_sequence(self) -> list[int]:
        left = [len(b) for b in self._before]
        after: list[list[int]] = [[] for _ in self._before]
        for i, waits in enumerate(self._before):
            for w in waits:
                after[w].append(i)
        out = [i for i, n in enumerate(left) if n == 0]
        for i in out:
            for j in after[i]:
                left[j] -= 1
                if left[j] == 0:
                    out.append(j)
        return out

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
    whole = np.array([1, -1, -1, 0])[kind]
    part = np.array([0, 0, 1, -1])[kind]
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
