"""Contiguous layers to pipeline stages: the split whose slowest stage is fastest, exactly, by dynamic programming."""

from collections.abc import Callable
from typing import Any

import numpy as np

from planner.base.arrays import Array, Ints
from planner.base.errors import LayoutError


def partition(
    seconds: Any,
    stages: int,
    *,
    size_bytes: Callable[[int], Any] | None = None,
    cap_bytes: Callable[[int], float] | None = None,
) -> Ints:
    """Items per stage, int64 of shape (stages,), each at least 1, whose largest sum of seconds is least.

    seconds: cost of each item (embedding, layers, head), shape (n,), or on each stage, (stages, n). size_bytes: what
    each item holds on a stage, by the stage's number (with more micro-batches in flight it is more), shape (n,);
    cap_bytes: what the stage may hold.
    T[s, i] = min over j of max(T[s - 1, j], seconds[j:i]); O(stages n^2). Of equal splits the one with fewest items
    on the last stages.

    Raises LayoutError for more stages than items, or if no split keeps the caps.
    """
    cost = np.atleast_2d(np.asarray(seconds, dtype=np.float64))
    n = cost.shape[-1]
    if not 1 <= stages <= n:
        raise LayoutError(f"{n} items can't make {stages} stages; allowed: 1 to {n}")
    loads = [_between(row) for row in cost]
    best = np.full(n + 1, np.inf)
    best[0] = 0.0
    cut = np.zeros((stages, n + 1), dtype=np.int64)
    for s in range(stages):
        step = loads[s % len(loads)]
        if size_bytes is not None and cap_bytes is not None:
            held = _between(np.asarray(size_bytes(s), dtype=np.float64))
            step = np.where(held <= cap_bytes(s), step, np.inf)
        reach = np.maximum(best[:, None], step)
        cut[s] = np.argmin(reach, axis=0)
        best = np.min(reach, axis=0)
    if not np.isfinite(best[n]):
        raise LayoutError(f"no split of {n} items over {stages} stages keeps every stage's memory")
    sizes, end = np.zeros(stages, dtype=np.int64), n
    for s in reversed(range(stages)):
        begin = int(cut[s, end])
        sizes[s], end = end - begin, begin
    return sizes


def _between(items: Array) -> Array:
    """Sums of items j to i - 1, at [j, i]; infinite where there are none."""
    before = np.concatenate([[0.0], np.cumsum(items)])
    some = np.arange(len(before))[:, None] < np.arange(len(before))[None, :]
    return np.where(some, before[None, :] - before[:, None], np.inf)
