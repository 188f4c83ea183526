"""ZB-V fitted to its durations (Qi et al. 2023, arXiv 2401.10241, section 6): the list behind its published rates.

A greedy list on the V, under a limit of memory: the V fills with forwards, then every round does an input gradient on
every rank and a forward, and weight gradients where the rank would wait or its memory is full. Whether a weight
gradient may overrun a wait is open; the lists are made again with the idle time of the last try allowed, as long as
that helps, and the best one is taken. The order by hand, for F = I = W, is in zero_bubble_v.
"""

from itertools import product

from planner.schedules.base import Order
from planner.schedules.one_f_one_b_rows import counted
from planner.schedules.zero_bubble_fitted import SLACK, Greedy

_F0, _F1, _I1, _I0 = range(4)
"""The operations of a rank on a micro-batch, by dependency: 0 is its shallow stage, 1 its deep one."""


class _GreedyV(Greedy):
    """Every rank's row of the V's two stages."""

    kind = (0, 0, 1, 1, 2, 2)
    from_before = (_F0, _I1)

    def sent(self, r: int, what: int) -> bool:
        other = self.source(r, what)
        return other is None or self.done(other, what) > self.done(r, what)


def _warm_up(at: _GreedyV) -> None:
    """The V filled: shallow forwards while the first micro-batch comes back, then ranks level out."""
    p, m = at.p, at.m
    for r in range(p):
        at.put(r, _F0)
    for r in range(p - 1, -1, -1):
        if r < p - 1:
            back = at.end[r + 1][_F1][0] + at.transfer
            while (
                at.held[r] + 2 + 2 * r <= at.limit + SLACK
                and at.clock[r] + at.seconds[0][r] <= back
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
        at.make_room(r, 1)
        ready = at.done(r, _I0) < at.done(r, _I1) and (at.sent(r, _I0) or at.done(r, _I1) >= at.m)
        (shallow if ready else deep).append(r)
    for r in reversed(shallow):
        at.fill(r, _I0)
        at.put(r, _I0)
    for r in deep:
        at.fill(r, _I1, ever=eager)
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
        at.make_room(r, 0)
        at.fill(r, what, ever=eager)
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
            at.weights()
            if best is None or max(at.idle) < max(best.idle):
                best = at
            if 0.0 <= max(allowed) <= max(at.idle):
                break
            allowed = at.idle
    assert best is not None
    tables = []
    for r, row in enumerate(best.rows):
        shallow, deep = r, 2 * p - 1 - r
        tables.append(counted(row, (shallow, deep, deep, shallow, deep, shallow), "FFIIWW"))
    return Order.of_tables(tables)
