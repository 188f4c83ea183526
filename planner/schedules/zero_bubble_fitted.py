"""Zero bubble fitted to its durations: ZB-1p and ZB-2p (Qi et al. 2023, arXiv 2401.10241, section 3.1).

A greedy list under a limit of memory (p or 2p micro-batches' activations): forwards fill the wait for the first input
gradient; then, round by round, a forward and an input gradient on every rank, and weight gradients W where the rank
would wait or its memory is full. Three choices are open, and the best of their eight combinations is taken. The paper
then improves the list by integer programming; its published rates are reproduced without.

rank 0  F0 F1 F2 I0 W0 I1 W1 I2 W2     (ZB-2p, p = 2, m = 3)
rank 1  .  F0 I0 F1 I1 F2 I2 W0 W1 W2
"""

from collections import deque
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools
from planner.schedules.base import Order, Passes, Pipeline, largest_sum
from planner.schedules.generated import Generated
from planner.schedules.one_f_one_b_rows import counted

SLACK = 1e-9
_F, _I, _W = range(3)


class Greedy:
    """Every rank's row as the list grows: what it has done, until when, and what it holds."""

    kind: tuple[int, ...] = (_F, _I, _W)
    """Whether each thing that a rank does with a micro-batch is a forward, an input gradient or a weight gradient."""
    from_before: tuple[int, ...] = (_F,)
    """Things that wait for the rank before; other forwards and input gradients wait for the rank behind."""

    def __init__(self, p: int, m: int, seconds: Sequence[Any], transfer: float, limit: float, kept: float) -> None:
        self.p, self.m, self.transfer, self.limit = p, m, transfer, limit
        self.seconds: list[list[float]] = [
            np.broadcast_to(np.asarray(x, dtype=np.float64), p).tolist() for x in seconds
        ]
        self.memory = (1.0, kept - 1.0, -kept)
        self.end: list[list[list[float]]] = [[[] for _ in self.kind] for _ in range(p)]
        self.clock, self.held, self.idle, self.allowed = ([0.0] * p for _ in range(4))
        self.rows: list[list[int]] = [[] for _ in range(p)]
        """What was done, in order; micro-batches of a thing follow one another."""
        self.pending: list[deque[int]] = [deque() for _ in range(p)]
        """Weight gradients whose input gradients are done."""
        self.decided = [False] * 3
        """Whether each open choice made a difference."""

    def done(self, r: int, what: int) -> int:
        """Micro-batches whose operation of this sort is done on one of the ranks."""
        return len(self.end[r][what])

    def source(self, r: int, what: int) -> int | None:
        """The rank that sends what the operation needs; none where it is the rank itself or nothing."""
        other = r - 1 if what in self.from_before else r + 1
        return other if 0 <= other < self.p else None

    def arrival(self, r: int, what: int) -> float:
        """When what the rank's next such operation needs of another rank is there."""
        other = self.source(r, what)
        return 0.0 if other is None else self.end[other][what][self.done(r, what)] + self.transfer

    def put(self, r: int, what: int) -> None:
        """The rank's next such operation, as soon as it can begin."""
        kind, begin = self.kind[what], self.clock[r]
        if kind != _W:
            begin = max(begin, self.arrival(r, what))
            if self.end[r][0]:
                self.idle[r] += begin - self.clock[r]
        self.rows[r].append(what)
        self.clock[r] = begin + self.seconds[kind][r]
        self.end[r][what].append(self.clock[r])
        self.held[r] += self.memory[kind]
        if kind == _I:
            self.pending[r].append(what + self.kind.count(_I))

    def weight(self, r: int) -> None:
        """The weight gradient that has waited longest."""
        self.put(r, self.pending[r].popleft())

    def weights(self) -> None:
        """All that wait, on every rank."""
        for r in range(self.p):
            while self.pending[r]:
                self.weight(r)

    def spare(self, r: int) -> float:
        """How much the rank may idle without being the one that idles most, or more than is allowed."""
        return max(*self.idle, max(self.allowed) - self.allowed[r], 0.0) - self.idle[r]

    def make_room(self, r: int, kind: int) -> None:
        """Weight gradients until an operation of a kind fits into the memory."""
        while self.held[r] > self.limit + SLACK - self.memory[kind] and self.pending[r]:
            self.weight(r)

    def fill(self, r: int, what: int, *, always: bool = False, ever: bool = True) -> None:
        """Weight gradients in the wait for the next operation; one that overruns it, where idling costs the step."""
        arrival = self.arrival(r, what)
        while self.pending[r] and self.clock[r] + self.seconds[_W][r] <= arrival:
            self.weight(r)
        wait = arrival - self.clock[r]
        if self.pending[r] and wait > 0.0:
            due = ever and wait > self.spare(r)
            self.decided[2] |= not due
            if always or due:
                self.weight(r)

    def span(self) -> float:
        """Seconds from a rank's first operation to its last, the longest of any rank."""
        first = [end[_F][0] - self.seconds[_F][r] for r, end in enumerate(self.end)]
        return max(clock - begin for clock, begin in zip(self.clock, first, strict=True))


def _ahead(at: Greedy, overrun: bool) -> list[int]:
    """Forwards after the first that fit on every rank before the first input gradient comes back."""
    p, m = at.p, at.m
    more = [0] * p
    returns = at.end[p - 1][_F][0] + at.seconds[_I][p - 1]
    for r in range(p - 2, -1, -1):
        held, clock, back = at.held[r], at.clock[r], returns + at.transfer
        while 1 + more[r] < m and held + 1.0 <= at.limit + SLACK:
            if clock + at.seconds[_F][r] > back if overrun else clock >= back:
                break
            held, clock, more[r] = held + 1.0, clock + at.seconds[_F][r], more[r] + 1
        returns = max(clock, back) + at.seconds[_I][r]
    # A rank can't be ahead of the one before it.
    for r in range(1, p):
        while more[r] and (more[r] > more[r - 1] or more[r] == more[r - 1] < m - 1):
            more[r] -= 1
    return more


def _warm_up(at: Greedy, overrun: bool) -> None:
    """The first forward and as many more as fit before the first input gradient comes back; and that."""
    p = at.p
    for r in range(p):
        at.put(r, _F)
    more = _ahead(at, overrun)
    at.decided[0] = more != _ahead(at, not overrun)
    for r in range(p):
        for _ in range(more[r]):
            at.put(r, _F)
    for r in range(p - 1, -1, -1):
        at.put(r, _I)


def _goes_on(at: Greedy, r: int) -> bool:
    """Whether a rank far ahead of the next one does its forward in this round, the input gradient being dearer."""
    nxt = r + 1
    due = at.clock[nxt] + at.seconds[_F][nxt] + at.seconds[_I][nxt] + at.transfer
    if at.clock[r] >= due:
        return False
    held, weights, left = at.held[r] + 1.0, 0.0, len(at.pending[r])
    while held > at.limit + SLACK and left:
        held, weights, left = held + at.memory[_W], weights + at.seconds[_W][r], left - 1
    if at.clock[r] + at.seconds[_F][r] + weights <= due:
        return True
    return due - at.clock[r] > at.spare(r)


def _list(at: Greedy, overrun: bool, gradients_first: bool, eager: bool) -> Greedy:
    p, m = at.p, at.m
    _warm_up(at, overrun)
    for _ in range(1, m):
        forward = [at.done(r, _F) < m for r in range(p)]
        for r in range(p - 1):
            if gradients_first and forward[r] and at.done(r, _F) >= at.done(r + 1, _F) + 2:
                forward[r] = _goes_on(at, r)
                at.decided[1] |= not forward[r]
        for r in range(p - 2, -1, -1):
            forward[r] = forward[r] and forward[r + 1]
        for r in range(p):
            if forward[r]:
                at.make_room(r, _F)
                at.fill(r, _F, always=eager)
                at.put(r, _F)
        for r in range(p - 1, -1, -1):
            at.make_room(r, _I)
            at.fill(r, _I, always=eager)
            while r == 0 and at.done(r, _F) == m and at.pending[r]:
                at.weight(r)
            at.put(r, _I)
    at.weights()
    return at


def fitted_order(
    p: int, m: int, seconds: Any = (1.0, 1.0, 1.0), transfer_s: float = 0.0, *, limit: float, kept: float = 1.0
) -> Order:
    """The best of the eight lists for seconds F, I and W, each a figure or one a rank.

    limit: activations that a rank may hold, in micro-batches. kept: the share that W still needs after I.
    """
    least = m * float(np.max(sum(np.asarray(x, dtype=np.float64) for x in seconds)))
    best: Greedy | None = None
    alike: set[tuple[bool, ...]] = set()
    for choice in product((True, False), repeat=3):
        if choice in alike:
            continue
        made = _list(Greedy(p, m, seconds, transfer_s, limit, kept), *choice)
        if best is None or made.span() < best.span():
            best = made
        alike.update(product(*((x, x and d) for x, d in zip(choice, made.decided, strict=True))))
        if best.span() <= least:
            break  # no rank idles
    assert best is not None
    return Order.of_tables([counted(kinds, [r] * 3, "FIW") for r, kinds in enumerate(best.rows)])


class ZeroBubble1p(Generated):
    """1F1B's memory; the order is fitted to F = I = W without transfers, `fitted` to others."""

    name = "zb-1p"
    source = "Qi et al. 2023, arXiv 2401.10241, section 3.1; list read in its repository, its rates reproduced"
    splits_backward = True
    unsynchronised_end = True
    depth = 1
    """The limit of memory, in p micro-batches' activations."""

    def order(self, pipe: Pipeline) -> Order:
        """The fitted list for F = I = W, under a limit that holds whatever share W keeps."""
        return fitted_order(pipe.p, pipe.m, limit=self.depth * pipe.p)

    def closed_form(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> tuple[Array, Bools]:
        """All pipelines. With q = p - 1, n = m - 1, and h and c the halves of n rounded down and up, for n <= depth q:

        max(q (F + I) - n W, (q - n) F + q I, (q - c) F + (q - h) I, (q - h) (F + I) - (c - h) W). With more
        micro-batches memory is full (`full_s`). Found by simulation.
        """
        q, n = np.asarray(pipe.p) - 1, np.asarray(pipe.m) - 1
        h, c = n // 2, n - n // 2
        short = largest_sum((F, I, W), (q, q, -n), (q - n, q, 0), (q - c, q - h, 0), (q - h, q - h, h - c))
        out = np.where(n <= self.depth * q, short, self.full_s(q, n, F, I, W))
        return np.where(q > 0, out, 0.0), np.ones((), dtype=bool)

    def full_s(self, q: Any, n: Any, F: Any, I: Any, W: Any) -> Array:
        """The bubble where memory is full: that of ZB-H1."""
        return largest_sum((F, I, W), (0, q, 0), (q, q, -q))

    def fitted(self, pipe: Pipeline, seconds: Passes, transfer_s: float = 0.0, kept: float = 1.0) -> Order:
        """The list for these durations, under the same limit of memory."""
        return fitted_order(pipe.p, pipe.m, seconds, transfer_s, limit=self.depth * pipe.p, kept=kept)


class ZeroBubble2p(ZeroBubble1p):
    """Twice 1F1B's memory, and no bubble where it is enough."""

    name = "zb-2p"
    depth = 2

    def full_s(self, q: Any, n: Any, F: Any, I: Any, W: Any) -> Array:
        """q (I - F), and what a W longer or shorter than the others leaves."""
        late = np.clip(n - 2 * q - 2, 0, q)
        wide, narrow = (q - 1, q - 1, 2 - 2 * q), (q, q, -2 * q - 1)
        return largest_sum((F, I, W), (-q, q, 0), (late - q, q, -late), wide, narrow)
