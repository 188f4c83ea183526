"""Zero bubble on the V: ZB-V (Qi et al. 2023, arXiv 2401.10241, section 6; PyTorch's ScheduleZBVZeroBubble).

Rank r holds stages r and 2p - 1 - r, so that the last stage lies on rank 0 and its input gradients start at once.

rank 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2     (p = 2, m = 3)
rank 1  1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2

That is the order by hand, for F = I = W. Fitted to durations it is a greedy list under a limit of memory, the list
behind its published rates: the V fills with forwards, then every round does an input gradient on every rank and a
forward, and weight gradients where the rank would wait or its memory is full. Whether a weight gradient may overrun a
wait is open; the lists are made again with the idle time of the last try allowed, as long as that helps, and the best
one is taken.
"""

from itertools import product
from typing import Any

import numpy as np

from planner.base.arrays import Array, Ints
from planner.schedules.base import Order, Passes, Pipeline, Schedule, largest_sum
from planner.schedules.one_f_one_b_rows import F0, F1, I0, I1, W0, W1, counted_on_v
from planner.schedules.zero_bubble_fitted import SLACK, Greedy


class _GreedyV(Greedy):
    """Every rank's row of the V's two stages."""

    kind = (0, 0, 1, 1, 2, 2)
    from_before = (F0, I1)

    def sent(self, r: int, what: int) -> bool:
        other = self.source(r, what)
        return other is None or self.done(other, what) > self.done(r, what)


def _warm_up(at: _GreedyV) -> None:
    """The V filled: shallow forwards while the first micro-batch comes back, then ranks level out."""
    p, m = at.p, at.m
    for r in range(p):
        at.put(r, F0)
    for r in range(p - 1, -1, -1):
        if r < p - 1:
            back = at.end[r + 1][F1][0] + at.transfer
            while (
                at.held[r] + 2 + 2 * r <= at.limit + SLACK
                and at.clock[r] + at.seconds[0][r] <= back
                and at.done(r, F0) < m - r
            ):
                for ahead in range(r + 1):
                    at.put(ahead, F0)
        at.put(r, F1)
    what = F0
    for r in range(1, p):
        while (
            at.done(r, F0) + at.done(r, F1) < at.done(r - 1, F0) + at.done(r - 1, F1)
            or at.done(r, F1) <= at.done(r - 1, F1) < m
        ):
            for other in range(p - 1, r - 1, -1):
                if at.done(other, what) < m:
                    at.put(other, what)
            what = F0 + F1 - what


def _gradients(at: _GreedyV, eager: bool) -> None:
    """An input gradient on every rank, the shallow stages' first, from the last rank on."""
    shallow: list[int] = []
    deep: list[int] = []
    for r in range(at.p):
        at.make_room(r, 1)
        ready = at.done(r, I0) < at.done(r, I1) and (at.sent(r, I0) or at.done(r, I1) >= at.m)
        (shallow if ready else deep).append(r)
    for r in reversed(shallow):
        at.fill(r, I0)
        at.put(r, I0)
    for r in deep:
        at.fill(r, I1, ever=eager)
        at.put(r, I1)


def _forwards(at: _GreedyV, eager: bool) -> None:
    """A forward on every rank, the deep stage's if its input is there."""
    for r in range(at.p):
        if at.done(r, F1) >= at.m:
            continue
        if at.done(r, F1) >= at.done(r, F0):
            what = F0
        elif at.sent(r, F1):
            what = F1
        elif at.done(r, F0) < at.m and at.sent(r, F0):
            what = F0
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
    return Order.of_tables([counted_on_v(row, r, p) for r, row in enumerate(best.rows)])


class ZeroBubbleV(Schedule):
    """No bubble where F, I and W are equal, for 1F1B's activations and twice its messages."""

    name = "zb-v"
    source = "Qi et al. 2023, arXiv 2401.10241, section 6; order read in PyTorch's ScheduleZBVZeroBubble"
    splits_backward = True
    unsynchronised_end = True
    looped_placement = False
    chunks = 2

    def row(self, pipe: Pipeline, r: int) -> Ints:
        """2(p - r) - 1 F0; r (F1, F0); p - r (F1, I1, W1); (F0, I0, W0, F1, I1, W1); r (I0, I1); p - r (I0, W0).

        0 and 1 are the rank's shallow and deep stage; the remaining W come last. The order is that of at least 2p - 1
        micro-batches, less those that are not there.
        """
        p, m = pipe.p, pipe.m
        n = max(2 * p - 1, m)
        row = [F0] * (2 * (p - r) - 1) + [F1, F0] * r + [F1, I1, W1] * (p - r)
        shallow, deep = 2 * p - r - 1, p
        while deep < shallow or shallow < n:
            if shallow < n:
                row.append(F0)
                shallow += 1
            row += (I0, W0, F1, I1, W1)
            deep += 1
        row += [I0, I1] * r + [I0, W0] * (p - r)
        row += [W1] * n + [W0] * n
        table = counted_on_v(row, r, p)
        there: Ints = table[table[:, 2] < m]
        return there

    def fitted(self, pipe: Pipeline, seconds: Passes, transfer_s: float = 0.0, kept: float = 1.0) -> Order:
        """The paper's list for these durations of one stage's operations, within the same activations."""
        f, i, w = (float(x) for x in seconds)
        return fitted_v_order(pipe.p, pipe.m, (f, i, w), transfer_s, limit=pipe.p, kept=kept)

    def own_rules(self, pipe: Pipeline) -> list[tuple[str, Any]]:
        """The warm-up of rank 0 must not run out of micro-batches."""
        return [("needs at least 2 pp - 1 micro-batches", pipe.m < 2 * pipe.p - 1)]

    def bubble_s(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> Array:
        """The largest of nine sums, none where F = I = W; from a rank's first operation to its last, for all F, I, W.

        The sums grow with q = p - 1, whatever m; found by simulation.
        """
        q = np.asarray(pipe.p) - 1
        sums = largest_sum(
            (F, I, W),
            (2 * q, 0, -2 * q - 1),
            (2 * q - 1, 1, -2 * q),
            (2 * q, -q, -q),
            (q - 1, 1 - q, 0),
            (0, 2 * q, -2 * q),
            (-q, q, 0),
            (-q, 1, q - 1),
            (1 - q, 0, q - 1),
        )
        return np.asarray(np.where(q > 0, sums / 2, 0.0))

    def in_flight(self, pipe: Pipeline, rank: Any, kept: Any = 0.0) -> Array:
        """p on every rank."""
        return np.asarray(1.0 * pipe.p + 0.0 * (np.asarray(rank) + pipe.m))
