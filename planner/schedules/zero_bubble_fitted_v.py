"""ZB-V fitted to its durations (Qi et al. 2023, arXiv 2401.10241, section 6): the list behind its published rates.

A greedy list on the V, under a limit of memory: the V fills with forwards, then every round does an input gradient on
every rank and a forward, and weight gradients where the rank would wait or its memory is full. Whether a weight
gradient may overrun a wait is open; the lists are made again with the idle time of the last try allowed, as long as
that helps, and the best one is taken. The order by hand, for F = I = W, is in zero_bubble_v.
"""

from __future__ import annotations

from collections import deque
from itertools import product

from planner.schedules.base import Operation, Order

_SLACK = 1e-9
_F0, _F1, _I1, _I0 = range(4)
"""What a rank does with a micro-batch, by dependency: 0 is its shallow stage, 1 its deep one."""


class _GreedyV:
    """Every rank's row of the V's two stages as the list grows: what it has done, until when, and what it holds."""

    def __init__(
        self, p: int, m: int, seconds: tuple[float, float, float], transfer: float, limit: float, kept: float
    ) -> None:
        self.p, self.m, self.seconds, self.transfer, self.limit, self.kept = p, m, seconds, transfer, limit, kept
        self.end: list[list[list[float]]] = [[[] for _ in range(4)] for _ in range(p)]
        self.clock = [0.0] * p
        self.held = [0.0] * p
        self.idle = [0.0] * p
        self.allowed = [-1.0] * p
        self.rows: list[list[Operation]] = [[] for _ in range(p)]
        self.pending: list[deque[tuple[int, int]]] = [deque() for _ in range(p)]

    def done(self, r: int, what: int) -> int:
        return len(self.end[r][what])

    def source(self, r: int, what: int) -> int | None:
        """The rank that sends what the operation needs; none where it is the rank itself or nothing."""
        other = r - 1 if what in (_F0, _I1) else r + 1
        return other if 0 <= other < self.p else None

    def arrival(self, r: int, what: int) -> float | None:
        """When what comes from another rank is there."""
        other = self.source(r, what)
        return None if other is None else self.end[other][what][self.done(r, what)] + self.transfer

    def sent(self, r: int, what: int) -> bool:
        other = self.source(r, what)
        return other is None or self.done(other, what) > self.done(r, what)

    def put(self, r: int, what: int) -> None:
        at = self.done(r, what)
        begin = max(self.clock[r], self.arrival(r, what) or 0.0)
        if self.done(r, _F0):
            self.idle[r] += begin - self.clock[r]
        forward = what in (_F0, _F1)
        stage = r if what in (_F0, _I0) else 2 * self.p - 1 - r
        self.clock[r] = begin + self.seconds[0 if forward else 1]
        self.end[r][what].append(self.clock[r])
        self.rows[r].append(Operation(stage, "F" if forward else "I", at))
        self.held[r] += 1.0 if forward else self.kept - 1.0
        if not forward:
            self.pending[r].append((stage, at))

    def weight(self, r: int) -> None:
        stage, micro_batch = self.pending[r].popleft()
        self.rows[r].append(Operation(stage, "W", micro_batch))
        self.clock[r] += self.seconds[2]
        self.held[r] -= self.kept

    def spare(self, r: int) -> float:
        """How much the rank may idle without being the one that idles most, or more than the last try allowed."""
        return max(*self.idle, max(self.allowed) - self.allowed[r], 0.0) - self.idle[r]

    def fill(self, r: int, what: int, eager: bool) -> None:
        """Weight gradients in the wait for the next operation; one that overruns it, where idling costs the step."""
        arrival = self.arrival(r, what)
        if arrival is None:
            return
        while self.pending[r] and arrival >= self.clock[r] + self.seconds[2]:
            self.weight(r)
        if self.pending[r] and eager and arrival - self.clock[r] > self.spare(r):
            self.weight(r)

    def make_room(self, r: int, change: float) -> None:
        while self.held[r] + change > self.limit + _SLACK and self.pending[r]:
            self.weight(r)


def _warm_up(at: _GreedyV) -> None:
    """The V filled: shallow forwards while the first micro-batch comes back, then ranks level out."""
    p, m = at.p, at.m
    for r in range(p):
        at.put(r, _F0)
    for r in range(p - 1, -1, -1):
        if r < p - 1:
            back = at.end[r + 1][_F1][0] + at.transfer
            while (
                at.held[r] + 2 + 2 * r <= at.limit + _SLACK
                and at.clock[r] + at.seconds[0] <= back
                and at.done(r, _F0) < m - r
            ):
                for ahead in range(r + 1):
                    at.put(ahead, _F0)
        at.put(r, _F1)
    what = _F0
    for r in range(1, p):
        while (
            at.done(r, _F0) + at.done(r, _F1) < at.done(r - 1, _F0) + at.done(r - 1, _F1)
            or at.done(r, _F1) <= at.done(r - 1, _F1) < m
        ):
            for other in range(p - 1, r - 1, -1):
                if at.done(other, what) < m:
                    at.put(other, what)
            what = _F0 + _F1 - what


def _gradients(at: _GreedyV, eager: bool) -> None:
    """An input gradient on every rank, the shallow stages' first, from the last rank on."""
    shallow: list[int] = []
    deep: list[int] = []
    for r in range(at.p):
        at.make_room(r, at.kept - 1.0)
        ready = at.done(r, _I0) < at.done(r, _I1) and (at.sent(r, _I0) or at.done(r, _I1) >= at.m)
        (shallow if ready else deep).append(r)
    for r in reversed(shallow):
        at.fill(r, _I0, eager=True)
        at.put(r, _I0)
    for r in deep:
        at.fill(r, _I1, eager)
        at.put(r, _I1)


def _forwards(at: _GreedyV, eager: bool) -> None:
    """A forward on every rank, the deep stage's if its input is there."""
    for r in range(at.p):
        if at.done(r, _F1) >= at.m:
            continue
        if at.done(r, _F1) >= at.done(r, _F0):
            what = _F0
        elif at.sent(r, _F1):
            what = _F1
        elif at.done(r, _F0) < at.m and at.sent(r, _F0):
            what = _F0
        else:
            continue
        at.make_room(r, 1.0)
        at.fill(r, what, eager)
        at.put(r, what)


def fitted_v_order(
    p: int, m: int, seconds: tuple[float, float, float], transfer_s: float = 0.0, *, limit: float, kept: float = 1.0
) -> Order:
    """The best list for seconds F, I and W of one stage, two stages a rank.

    limit: activations that a rank may hold, in micro-batches of all its layers. kept: the share that W needs after I.
    """
    best: _GreedyV | None = None
    for eager_gradient, eager_forward in product((True, False), repeat=2):
        allowed = [-1.0] * p
        while True:
            at = _GreedyV(p, m, seconds, transfer_s, 2 * limit, kept)
            at.allowed = allowed
            _warm_up(at)
            for _ in range(2 * m):
                _gradients(at, eager_gradient)
                _forwards(at, eager_forward)
            for r in range(p):
                while at.pending[r]:
                    at.weight(r)
            if best is None or max(at.idle) < max(best.idle):
                best = at
            if 0.0 <= max(allowed) <= max(at.idle):
                break
            allowed = at.idle
    assert best is not None
    return Order.of_rows(best.rows)
