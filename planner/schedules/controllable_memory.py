"""Pipelines of controllable memory: V-Half and V-Min (Qi et al. 2024, arXiv 2405.15362).

On the V (rank r holds stages r and 2p - 1 - r) one micro-batch's operations are a building block of unit slots, and
the block repeats every six. How far a block's backwards lie from its forwards sets the peak of activations. Where the
pipeline fills and drains, operations then move to earlier idle slots, as long as the peak does not grow; the weight
gradients take what is idle.
"""

from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools
from planner.schedules.base import Order, Pipeline
from planner.schedules.generated import Generated
from planner.schedules.one_f_one_b_rows import F0, F1, I0, I1, W1, counted_on_v

PERIOD = 6
"""Slots after which a block repeats."""

Slots = list[list[list[int]]]
"""Slots by rank, by what is done (`F0` to `W0`) and by micro-batch."""


def place_weight_gradients(row: list[list[int]], split: bool) -> None:
    """Append to a rank's row the slots of its weight gradients: each the first idle one after its input gradient.

    split: one list for the deep stage, then one for the shallow; else both in one.
    """
    busy = {t: what for what in range(4) for t in row[what]}
    out: list[list[int]] = [[], []]
    pending = [0, 0]
    t = 0
    last = max(busy)
    while t <= last or any(pending):
        what = busy.get(t)
        if what is None:
            for k in range(2):
                if pending[k]:
                    out[k].append(t)
                    pending[k] -= 1
                    break
        elif what >= I1:
            pending[what - I1 if split else 0] += 1
        t += 1
    row.extend(out if split else out[:1])


def squeeze(slots: Slots) -> list[list[tuple[int, int]]]:
    """Run the rows in order, every operation one slot long and as early as it can; each row's (what, micro-batch)."""
    p = len(slots)
    todo = sorted((t, r, w, i) for r in range(p) for w, ts in enumerate(slots[r]) for i, t in enumerate(ts))
    clock = [0] * p
    rows: list[list[tuple[int, int]]] = [[] for _ in range(p)]
    for _, r, what, i in todo:
        begin = max(clock[r], _after(slots, r, what, i))
        slots[r][what][i] = begin
        clock[r] = begin + 1
        rows[r].append((what, i))
    return rows


def _after(slots: Slots, r: int, what: int, i: int) -> int:
    """The first slot after what an operation waits for in other stages of its micro-batch."""
    begin = 0
    if what in (F0, I1) and r > 0:
        begin = slots[r - 1][what][i] + 1
    if what in (F1, I0) and r + 1 < len(slots):
        begin = slots[r + 1][what][i] + 1
    if what in (F1, I1, I0):
        begin = max(begin, slots[r][what - 1][i] + 1)
    return begin


class _Row:
    """A rank's memory by slot: +1 at a forward, -1 at a weight gradient."""

    def __init__(self, row: list[list[int]], size: int) -> None:
        self.what = [-1] * size
        for what, ts in enumerate(row):
            for t in ts:
                self.what[t] = what
        self.given = len(row) > 4
        """The weight gradients have slots; else every idle slot takes one that waits."""
        self.last = max(ts[-1] for ts in row)
        self.held = [0] * size
        self.waiting = [0] * size
        self.refresh(0, self.last)

    def refresh(self, since: int, changed: int, limit: int | None = None) -> bool:
        """Sum up again from a slot on, past the last one changed as far as it makes a difference.

        False as soon as a slot holds more than the limit.
        """
        held, waiting = (self.held[since - 1], self.waiting[since - 1]) if since else (0, 0)
        for t in range(since, self.last + 1):
            what = self.what[t]
            if what in (F0, F1):
                held += 1
            elif what == W1:
                held -= 1
            elif what in (I1, I0):
                waiting += 1
            elif not self.given and waiting:
                held, waiting = held - 1, waiting - 1
            if limit is not None and held > limit:
                return False
            if t > changed and held == self.held[t] and waiting == self.waiting[t]:
                return True
            self.held[t], self.waiting[t] = held, waiting
        return True

    def move(self, origin: int, first: int, limit: int) -> int:
        """Move the operation at `origin` to the first idle slot from `first` on that keeps the limit; its slot."""
        what = self.what[origin]
        for t in range(first, origin):
            if self.what[t] >= 0:
                continue
            self.what[t], self.what[origin] = what, -1
            if self.refresh(t, origin, limit):
                return t
            self.what[t], self.what[origin] = -1, what
            self.refresh(t, origin)
        return origin


def pull_forward(slots: Slots, with_weight: bool) -> None:
    """Move operations earlier within the peak memory, where the pipeline fills (with_weight only) and drains."""
    if with_weight:
        for row in slots:
            place_weight_gradients(row, split=False)
    p = len(slots)
    todo = sorted((t, r, w, i) for r in range(p) for w, ts in enumerate(slots[r]) for i, t in enumerate(ts))
    size = todo[-1][0] + 1
    table = [_Row(row, size) for row in slots]
    limit = max(max(row.held) for row in table)
    last = len(slots[0][F0]) - 1
    phase = 0
    for origin, r, what, i in todo:
        if phase == 0 and (r, what) == (0, I0):
            phase = 1
        if phase == 1 and what == F0 and i == last:
            phase = 2
            continue
        if phase == 1 or (phase == 0 and not with_weight):
            continue
        first = _after(slots, r, what, i)
        if what == W1:
            first = sorted(slots[r][I1] + slots[r][I0])[i] + 1
        if i:
            first = max(first, slots[r][what][i - 1] + 1)
        slots[r][what][i] = table[r].move(origin, first, limit)
    if not with_weight:
        for row in slots:
            place_weight_gradients(row, split=False)
    squeeze(slots)
    for row in slots:
        del row[4:]


class VHalf(Generated):
    """About half of 1F1B's activations and, where F, I and W are equal, half of its bubble."""

    name = "v-half"
    source = "Qi et al. 2024, arXiv 2405.15362; order derived from the rules of its repository, oracles reproduced"
    splits_backward = True
    unsynchronised_end = True
    looped_placement = False
    chunks = 2

    def closed_form(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> tuple[Array, Bools]:
        """The bubble if F = I = W, p >= 3 and m >= 2p: (3p - 7) F / 2 for an even p, that of p + 1 for an odd one.

        As the paper counts. Where they differ the sums follow no law in p. Found by simulation.
        """
        p = np.asarray(pipe.p)
        equal = (F == I) & (I == W) & (p >= 3) & (np.asarray(pipe.m) >= 2 * p)
        return np.asarray(self.equal_slots(p) * F), np.asarray(equal)

    def equal_slots(self, p: Any) -> Array:
        """The bubble in units of F = I = W."""
        return np.asarray((3 * (p + p % 2) - 7) / 2)

    def block(self, p: int, r: int) -> list[int]:
        """Slots of F0, F1, I1, I0 of the first micro-batch on a rank."""
        gap = (3 if p % 2 == 0 else 0) + PERIOD * self.barriers
        return [2 * r, 3 * p - r - 2, 3 * p + gap + 2 * r - 1, 6 * p + gap - r - 2]

    def order(self, pipe: Pipeline) -> Order:
        """Repeat the block, fill and drain earlier with the weight gradients' slots and again without, place W."""
        slots = [[[t + PERIOD * i for i in range(pipe.m)] for t in self.block(pipe.p, r)] for r in range(pipe.p)]
        pull_forward(slots, with_weight=True)
        pull_forward(slots, with_weight=False)
        for row in slots:
            place_weight_gradients(row, split=True)
        tables = []
        for r, done in enumerate(squeeze(slots)):
            what, micro_batch = np.array(done, dtype=np.int64).T
            tables.append(counted_on_v(what, r, pipe.p, micro_batch))
        return Order.of_tables(tables)


class VMin(VHalf):
    """About a third of 1F1B's activations and, where F, I and W are equal, two thirds of its bubble."""

    name = "v-min"

    def equal_slots(self, p: Any) -> Array:
        """2p - 5/2, and one less where p is divisible by 3."""
        return np.asarray(2 * p - 2.5 - (p % 3 == 0))

    def block(self, p: int, r: int) -> list[int]:
        """Slots of F0, F1, I1, I0 of the first micro-batch on a rank."""
        gap = 2 if p % 3 == 0 else 0
        return [r, 2 * p - r - 1, 2 * p + gap + r, 4 * p + gap - r - 1]
