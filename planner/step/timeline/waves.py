"""The engine on many lanes at once: in each wave every lane whose next operation may start runs it, as arrays.

The same times as the engine's, bit for bit, for the order in which operations are looked at changes none. A wave costs
some twenty numpy calls whatever its width, so this pays for wide tables: long pipelines, or many steps side by side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


def run_waves(
    lane_start: Ints, waits: Ints, lag: Array, duration: Array, fused: NDArray[np.bool_]
) -> tuple[Array, Array, Ints]:
    """Start and end of every operation, shape (n,), end -1 where never done; where each lane stopped.

    Arguments are those of `planner.step.timeline.engine.run_lanes`.
    """
    n = len(duration)
    group = _groups(fused)
    before, lags, lasts, starts = _fused(group, lane_start, waits, lag, duration)
    units = len(lasts[0])
    # Not done: endless; nothing to wait for: long over.
    end = np.full(units + 1, np.inf)
    end[units] = -np.inf
    start = np.zeros(units)
    head, stop = starts[:-1].copy(), starts[1:]
    clock = np.zeros(len(head))
    lanes = np.flatnonzero(head < stop)
    while len(lanes):
        at = head[lanes]
        arrival = (end[before[at]] + lags[at]).max(axis=1)
        ready = arrival < np.inf
        some = lanes if ready.all() else lanes[ready]
        if not len(some):
            break
        if len(some) < len(lanes):
            at, arrival = at[ready], arrival[ready]
        begin = np.maximum(clock[some], arrival)
        finish = begin
        for last in lasts:
            finish = finish + last[at]
        start[at], end[at], clock[some] = begin, finish, finish
        at = at + 1
        head[some] = at
        if (at == stop[some]).any():
            lanes = lanes[head[lanes] < stop[lanes]]
    done = np.where(np.isinf(end[:units]), -1.0, end[:units])
    first = np.append(np.searchsorted(group, np.arange(units)), n)
    return start[group], done[group], first[head]


def _groups(fused: NDArray[np.bool_]) -> Ints:
    """The unit of each operation: those that run fused are one."""
    return np.cumsum(np.r_[True, ~fused[:-1]]) - 1 if len(fused) else np.zeros(0, dtype=np.int64)


def _fused(
    group: Ints, lane_start: Ints, waits: Ints, lag: Array, duration: Array
) -> tuple[Ints, Array, list[Array], Ints]:
    """Units in place of operations: what each waits for (units stands for nothing), lags, durations, lanes' starts.

    Durations are one array for each place in a fused unit, to be added one after the other.
    """
    n, width = waits.shape
    units = int(group[-1]) + 1 if n else 0
    first = np.searchsorted(group, np.arange(units))
    place = np.arange(n) - first[group]
    most = int(place.max()) + 1 if n else 1
    before = np.full((units, most * width), units, dtype=np.int64)
    lags = np.zeros((units, most * width))
    lasts = [np.zeros(units) for _ in range(most)]
    target = np.where(waits >= 0, np.append(group, units)[waits], units)
    for i in range(most):
        rows = np.flatnonzero(place == i)
        before[group[rows], i * width : (i + 1) * width] = target[rows]
        lags[group[rows], i * width : (i + 1) * width] = lag[rows]
        lasts[i][group[rows]] = duration[rows]
    starts: Any = np.append(group, units)[lane_start] if n else lane_start
    return before, lags, lasts, starts
