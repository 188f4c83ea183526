"""The engine on many lanes at once: in each wave every lane whose next operation may start runs it, as arrays.

The same times as the engine's, bit for bit, for the order in which operations are looked at changes none. A wave costs
some ten numpy calls whatever its width, so this pays for wide tables: long pipelines, or many steps side by side.
"""

import numpy as np

from planner.base.arrays import Array, Bools, Ints, record


@record
class _Units:
    """Units that lanes run one after another: operations, or those fused as one; arrays of shape (units,).

    first: the first operation of each. before, lag_s: in columns, what each waits for (`units` stands for nothing) and
    seconds after its end. lasts_s: an array for each place in a fused unit, to be added one after the other.
    """

    first: Ints
    before: list[Ints]
    lag_s: list[Array]
    lasts_s: list[Array]

    def __len__(self) -> int:
        return len(self.first)

    def arrival_s(self, end_s: Array, at: Ints) -> Array:
        """When all is done that some units wait for."""
        out = end_s.take(self.before[0].take(at))
        if self.lag_s:
            out += self.lag_s[0].take(at)
        for i, before in enumerate(self.before[1:], 1):
            other = end_s.take(before.take(at))
            out = np.maximum(out, other + self.lag_s[i].take(at) if self.lag_s else other)
        return out


def run_waves(
    lane_start: Ints, waits: Ints, lag: Array, duration: Array, fused: Bools, release: Array
) -> tuple[Array, Array, Ints]:
    """Start and end of every operation, shape (n,), end -1 where never done; where each lane stopped.

    Arguments are those of `planner.step.timeline.engine.run_lanes`.
    """
    first = np.flatnonzero(np.concatenate([[True], ~fused])[:-1])
    units = _units(first, waits, lag, duration)
    starts = np.searchsorted(first, lane_start)
    # Not done: endless; nothing to wait for: long over.
    end = np.append(np.full(len(units), np.inf), -np.inf)
    head = starts[:-1].copy()
    lanes = np.flatnonzero(head < starts[1:])
    at, clock, stop, every = head[lanes], release[lanes], starts[1:][lanes], np.ones(len(lanes), dtype=bool)
    while len(lanes):
        ready = every[: len(lanes)]
        for _ in range(int((stop - at).min())):
            arrival = units.arrival_s(end, at)
            if np.maximum.reduce(arrival) < np.inf:
                clock = np.maximum(clock, arrival)
                for last in units.lasts_s:
                    clock = clock + last.take(at)
                end[at] = clock
                at = at + 1
                continue
            ready = arrival < np.inf
            some = np.flatnonzero(ready)
            if not len(some):
                break
            here, now = at[some], np.maximum(clock[some], arrival[some])
            for last in units.lasts_s:
                now = now + last.take(here)
            end[here] = clock[some] = now
            at[some] = here + 1
        head[lanes] = at
        if not ready.any():
            break
        going = at < stop
        lanes, at, clock, stop = lanes[going], at[going], clock[going], stop[going]
    return (*_times(units, end, starts, release, len(duration)), np.append(first, len(duration))[head])


def _times(units: _Units, end: Array, starts: Ints, release: Array, n: int) -> tuple[Array, Array]:
    """Start and end of every operation from its unit's end: each started when it could."""
    done = end[:-1]
    ready = np.concatenate([[0.0], done[:-1]])[: len(done)]
    busy = np.flatnonzero(starts[:-1] < starts[1:])
    ready[starts[:-1][busy]] = release[busy]
    begin = np.maximum(ready, units.arrival_s(end, np.arange(len(units))))
    unfinished = np.isinf(done)
    begin[unfinished], done[unfinished] = 0.0, -1.0
    if len(units) == n:
        return begin, done
    size = np.diff(np.append(units.first, n))
    return np.repeat(begin, size), np.repeat(done, size)


def _units(first: Ints, waits: Ints, lag: Array, duration: Array) -> _Units:
    """Units in place of operations."""
    n, count = len(duration), len(first)
    lags = list(lag.T) if lag.any() else []
    if count == n:
        return _Units(first=first, before=[np.where(w < 0, n, w) for w in waits.T], lag_s=lags, lasts_s=[duration])
    size = np.diff(np.append(first, n))
    unit_of = np.append(np.repeat(np.arange(count), size), count)
    before: list[Ints] = []
    lag_s: list[Array] = []
    lasts: list[Array] = []
    for place in range(int(size.max())):
        # Of shorter units the places beyond them wait for nothing and last nothing.
        has = place < size
        operation = np.minimum(first + place, n - 1)
        lasts.append(np.where(has, duration[operation], 0.0))
        before += [unit_of[np.where(has, column[operation], -1)] for column in waits.T]
        lag_s += [column[operation] for column in lags]
    return _Units(first=first, before=before, lag_s=lag_s, lasts_s=lasts)
