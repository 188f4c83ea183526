"""The engine: lanes of operations, each lane strictly in order, each operation after what it waits for.

A lane is one stream of one rank (compute, a network, the host link). One pass over the operations: a lane runs until
its next operation waits for one that is not done; when that is done, the lane goes on. The order of the passes does
not change any time, so the result is deterministic. Time and memory are linear in the operations.

The same function runs as Python, over lists, and compiled by numba, over arrays: small schedules don't pay for the
import of the compiler. Where there are many lanes they run in waves (`waves`), to the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.step.timeline.waves import run_waves

SMALL = 60_000
"""Below so many operations Python is done before numba is imported."""
WIDE = 48
"""From so many lanes on, waves are faster than Python."""
LONG = 20_000
"""From so many operations a lane on, waves take longer than importing the compiler."""


def _advance(
    lane_start: Any, waits: Any, width: int, lag: Any, duration: Any, fused: Any, start: Any, end: Any, state: Any
) -> int:
    """Run all lanes as far as they go; the number of operations done.

    waits, lag: flat, `width` per operation: index waited for (-1: none) and seconds after its end. fused: an
    operation that runs together with the next of its lane; both end when both are done. state: scratch of four
    sections: position of each lane (where each stopped, on return), next lane in a queue of waiters, ready stack,
    and per operation the first lane that waits for it. end: -1 where not done.
    """
    lanes = len(lane_start) - 1
    n = len(duration)
    position, next_waiter, stack, first_waiter = 0, lanes, 2 * lanes, 3 * lanes
    for lane in range(lanes):
        state[position + lane] = lane_start[lane]
        state[next_waiter + lane] = -1
        state[stack + lane] = lanes - 1 - lane
    for i in range(n):
        state[first_waiter + i] = -1
        end[i] = -1.0
    top = lanes
    done = 0
    while top > 0:
        top -= 1
        lane = state[stack + top]
        i = state[position + lane]
        clock = 0.0
        if i > lane_start[lane]:
            clock = end[i - 1]
        while i < lane_start[lane + 1]:
            last = i
            while fused[last]:
                last += 1
            begin = clock
            blocked = -1
            for k in range(i * width, (last + 1) * width):
                before = waits[k]
                if before < 0:
                    continue
                if end[before] < 0.0:
                    blocked = before
                    break
                at = end[before] + lag[k]
                if at > begin:
                    begin = at
            if blocked >= 0:
                state[next_waiter + lane] = state[first_waiter + blocked]
                state[first_waiter + blocked] = lane
                break
            clock = begin
            for k in range(i, last + 1):
                clock += duration[k]
            for k in range(i, last + 1):
                start[k] = begin
                end[k] = clock
                done += 1
                waiter = state[first_waiter + k]
                while waiter >= 0:
                    state[stack + top] = waiter
                    top += 1
                    waiter = state[next_waiter + waiter]
            i = last + 1
        state[position + lane] = i
    return done


@cache
def _compiled() -> Callable[..., int]:
    from numba import njit

    return njit(cache=True, nogil=True)(_advance)


def run_lanes(
    lane_start: NDArray[np.int64],
    waits: NDArray[np.int64],
    lag: NDArray[np.float64],
    duration: NDArray[np.float64],
    fused: NDArray[np.bool_],
    *,
    compiled: bool | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Start and end of every operation in seconds, shape (n,), end -1 where never done; where each lane stopped.

    lane_start: (lanes + 1,); waits, lag: (n, width); duration, fused: (n,).
    """
    n, width = waits.shape
    lanes = len(lane_start) - 1
    if compiled is None and lanes >= WIDE and n < LONG * lanes:
        return run_waves(lane_start, waits, lag, duration, fused)
    start, end = np.zeros(n), np.zeros(n)
    state = np.zeros(3 * lanes + n, dtype=np.int64)
    arrays = (lane_start, np.ascontiguousarray(waits).ravel(), width, np.ascontiguousarray(lag).ravel(), duration)
    if compiled if compiled is not None else n >= SMALL:
        _compiled()(*arrays, fused, start, end, state)
        return start, end, state[:lanes]
    lists = [a.tolist() if isinstance(a, np.ndarray) else a for a in (*arrays, fused, start, end, state)]
    _advance(*lists)
    return np.array(lists[6]), np.array(lists[7]), np.array(lists[8][:lanes], dtype=np.int64)
