"""The engine: lanes of operations, each lane strictly in order, each operation after what it waits for.

A lane is one stream of one rank (compute, a network, the host link). One pass over the operations: a lane runs until
its next operation waits for one that is not done; when that is done, the lane goes on. The order of the passes does
not change any time, so the result is deterministic. Time and memory are linear in the operations.

The same function runs as Python, over lists, and compiled by numba, over arrays: small schedules don't pay for the
import of the compiler. Where there are many lanes they run in waves (`waves`), to the same result. What is likely to
be done first is taken.
"""

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools, Ints
from planner.step.timeline.waves import run_waves

PYTHON_S, COMPILED_S = 1.2e-6, 0.03e-6
"""Seconds of an operation, interpreted and compiled, from the order to its times."""
WAVE_S, WAVES_S = 10e-6, 0.06e-6
"""Seconds of a wave, and of an operation in it."""
IMPORT_S = 0.6
"""Until numba is imported."""


def _advance(
    lane_start: Any, waits: Any, width: int, lag: Any, duration: Any, fused: Any, release: Any,
    start: Any, end: Any, state: Any,
) -> int:  # fmt: skip
    """Run all lanes as far as they go; the number of operations done.

    waits, lag: flat, `width` per operation: index waited for (-1: none) and seconds after its end. fused: an
    operation that runs together with the next of its lane; both end when both are done. release: before which a lane
    starts nothing. state: scratch of four
    sections: position of each lane (where each stopped, on return), next lane in a queue of waiters, ready stack,
    and per operation the first lane that waits for it. end: -1 where not done.
    """
    lanes = len(lane_start) - 1
    position, next_waiter, stack, first_waiter = 0, lanes, 2 * lanes, 3 * lanes
    for lane in range(lanes):
        state[position + lane] = lane_start[lane]
        state[next_waiter + lane] = -1
        state[stack + lane] = lanes - 1 - lane
    for i in range(len(duration)):
        state[first_waiter + i], end[i] = -1, -1.0
    top, done = lanes, 0
    while top > 0:
        top -= 1
        lane = state[stack + top]
        i = state[position + lane]
        clock = end[i - 1] if i > lane_start[lane] else release[lane]
        while i < lane_start[lane + 1]:
            last = i
            while fused[last]:
                last += 1
            begin, blocked = clock, -1
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

    try:
        return njit(cache=True, nogil=True)(_advance)
    except RuntimeError:  # no folder to keep it in can be written
        return njit(nogil=True)(_advance)


def compile_engine() -> None:
    """Import and compile, so that small schedules too are run compiled from now on: for a process that lives long."""
    one = np.zeros(1)
    run_lanes(np.array([0, 1]), np.array([[-1]]), one[:, None], one, one > 0.0, compiled=True)


def run_lanes(
    lane_start: Ints,
    waits: Ints,
    lag: Array,
    duration: Array,
    fused: Bools,
    release: Array | None = None,
    *,
    compiled: bool | None = None,
) -> tuple[Array, Array, Ints]:
    """Start and end of every operation in seconds, shape (n,), end -1 where never done; where each lane stopped.

    lane_start: (lanes + 1,); waits, lag: (n, width); duration, fused: (n,); release: (lanes,), from 0, which is the
    default.
    """
    n, width = waits.shape
    lanes = len(lane_start) - 1
    release = np.zeros(lanes) if release is None else release
    if compiled is None:
        import_s = 0.0 if "numba" in sys.modules else IMPORT_S
        seconds = {True: import_s + COMPILED_S * n, False: PYTHON_S * n}
        longest = int(np.diff(lane_start).max(initial=0))
        if WAVE_S * longest + WAVES_S * n <= min(seconds.values()):
            return run_waves(lane_start, waits, lag, duration, fused, release)
        compiled = seconds[True] < seconds[False]
    start, end = np.zeros(n), np.zeros(n)
    state = np.zeros(3 * lanes + n, dtype=np.int64)
    arrays = (lane_start, np.ascontiguousarray(waits).ravel(), width, np.ascontiguousarray(lag).ravel(), duration)
    if compiled:
        _compiled()(*arrays, fused, release, start, end, state)
        return start, end, state[:lanes]
    lists = [a.tolist() if isinstance(a, np.ndarray) else a for a in (*arrays, fused, release, start, end, state)]
    _advance(*lists)
    return np.array(lists[7]), np.array(lists[8]), np.array(lists[9][:lanes], dtype=np.int64)


def needed(lane_start: Ints, waits: Ints, lag: Array, fused: Bools) -> tuple[Ints, Array]:
    """Waits of operations, and the lag after each, without those that an operation's own lane ensures anyway."""
    n = len(waits)
    lane = np.repeat(np.arange(len(lane_start) - 1), np.diff(lane_start))
    first = np.arange(n)
    if fused.any():
        first = np.maximum.accumulate(np.where(np.roll(fused, 1), 0, first))
    keep = [
        np.flatnonzero((before >= 0) & ((lane[before] != lane) | (before >= first) | (after_s > 0.0)))
        for before, after_s in zip(waits.T, lag.T, strict=True)
    ]
    count = np.zeros(n, dtype=np.int64)
    for rows in keep:
        count[rows] += 1
    few = np.full((n, max(int(count.max(initial=0)), 1)), -1)
    seconds = np.zeros(few.shape) if lag.any() else np.broadcast_to(0.0, few.shape)
    for rows, before, after_s in zip(keep, waits.T, lag.T, strict=True):
        count[rows] -= 1
        few[rows, count[rows]] = before[rows]
        if seconds.flags.writeable:
            seconds[rows, count[rows]] = after_s[rows]
    return few, seconds
