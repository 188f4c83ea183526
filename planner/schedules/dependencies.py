"""Dependencies of operations: the pipeline's data flow, and whether an order is complete.

F of stage s needs F of stage s - 1; B (or I) of stage s needs its own F and B (or I) of stage s + 1; W needs its own I.
With sequence slices F of slice j needs F of slice j - 1 (keys and values) and B of slice j that of slice j + 1.
Where all ranks share the head, S (or U) needs F of the last stage, T every rank's S (V every U), and B (or I) of the
last stage every rank's T (or U).
"""

from __future__ import annotations

import numpy as np

from planner.base.arrays import Bools, Ints
from planner.base.errors import ScheduleError
from planner.schedules.operations import KINDS, Order

F, B, I, W, S, T, U, V = range(len(KINDS))


def dependencies(order: Order) -> Ints:
    """Flat indices of what each operation waits for, int64 of shape (n, 3), -1 for nothing.

    Columns: the neighbouring stage; the same stage (F before B, I before W); the neighbouring slice. Where ranks share
    the head, one more for each rank, whose part of it must be done (the first: the last stage's F).

    Raises ScheduleError if an operation is missing or doubled.
    """
    place = _Places(order)
    s, j = order.stage, order.slice
    stages, _, slices = place.shape
    next_stage = place.forward.size // stages
    out = np.full((len(order), 3), -1, dtype=np.int64)
    forward, back, weight = place.rows
    unit, stage = place.unit[forward], s[forward]
    out[forward, 0] = np.where(stage > 0, place.forward[unit - next_stage], -1)
    if slices > 1:
        out[forward, 2] = np.where(j[forward] > 0, place.forward[unit - 1], -1)
    unit, stage = place.unit[back], s[back]
    out[back, 0] = np.where(stage < stages - 1, place.backward[(unit + next_stage) % place.forward.size], -1)
    out[back, 1] = place.forward[unit]
    if slices > 1:
        out[back, 2] = np.where(j[back] < slices - 1, place.backward[(unit + 1) % place.forward.size], -1)
    out[weight, 1] = place.backward[place.unit[weight]]
    return np.concatenate([out, _of_head(order, place)], axis=1) if np.any(order.kind > W) else out


def _of_head(order: Order, place: _Places) -> Ints:
    """The waits of operations on a head that all ranks share, shape (n, p)."""
    kind, i, last = order.kind, order.micro_batch, place.shape[0] - 1
    out = np.full((len(order), order.ranks), -1, dtype=np.int64)
    part = np.full((len(KINDS), place.shape[1], order.ranks), -1, dtype=np.int64)
    part[kind, i, order.rank] = np.arange(len(order))
    for name, among in (("S or U", [S, U]), ("T or V", [T, V])):
        missing = np.argwhere(part[among].max(axis=0) < 0)
        if len(missing):
            raise ScheduleError(f"micro-batch {missing[0, 0]} has no {name} on rank {missing[0, 1]}")
    logits = np.flatnonzero((kind == S) | (kind == U))
    out[logits, 0] = place.forward.reshape(place.shape)[last, i[logits], 0]
    back, made = (order.stage == last) & ((kind == B) | (kind == I)), U if np.any(kind == U) else T
    for before, at in ((S, kind == T), (U, kind == V), (made, back)):
        out[at] = part[before, i[at]]
    return out


class _Places:
    """Places of all forwards and backwards: flat indices by unit, which counts stages, then micro-batches, then slices.

    unit: that of each operation. rows: flat indices of forwards, backwards (B or I) and weight gradients.
    """

    def __init__(self, order: Order) -> None:
        if not len(order):
            raise ScheduleError("the schedule has no operations")
        self.shape = tuple(int(c.max()) + 1 for c in (order.stage, order.micro_batch, order.slice))
        if np.prod(self.shape) > len(order):
            self._explain(order)
        _, m, k = self.shape
        self.unit = (order.stage * m + order.micro_batch) * k + order.slice
        split, kind = order.kind == I, order.kind
        self.rows = np.flatnonzero(kind == F), np.flatnonzero((kind == B) | split), np.flatnonzero(kind == W)
        self.forward = self._table(self.rows[0], "F")
        self.backward = self._table(self.rows[1], "B or I")
        if not len(self.rows[2]) and not split.any():
            return
        weight = self._table(self.rows[2], "W", required=False) >= 0
        splits = np.zeros(len(weight), dtype=bool)
        splits[self.unit[split]] = True
        for wrong, text in ((splits & ~weight, "I but no W"), (~splits & weight, "W but no I")):
            if wrong.any():
                raise ScheduleError(f"{self._name(wrong)} has {text}")

    def _table(self, at: Ints, kinds: str, required: bool = True) -> Ints:
        unit, size = self.unit[at], int(np.prod(self.shape))
        count = np.bincount(unit, minlength=size)
        for wrong, text in ((count > 1, "more than one"), ((count == 0) & required, "no")):
            if wrong.any():
                raise ScheduleError(f"{self._name(wrong)} has {text} {kinds}")
        table = np.full(size, -1, dtype=np.int64)
        table[unit] = at
        return table

    def _name(self, wrong: Bools) -> str:
        """The first unit of some."""
        stage, micro_batch, part = np.unravel_index(int(np.argmax(wrong)), self.shape)
        return f"stage {stage}, micro-batch {micro_batch}" + (f", slice {part}" if self.shape[2] > 1 else "")

    def _explain(self, order: Order) -> None:
        """A number far beyond the others would ask for a table that memory can't hold: name it."""
        for name, column in (("stage", order.stage), ("micro-batch", order.micro_batch), ("slice", order.slice)):
            known = np.unique(column)
            gaps = np.flatnonzero(np.diff(known, prepend=-1) > 1)
            if len(gaps):
                missing = int(known[gaps[0]]) - 1
                raise ScheduleError(f"{name} {missing} has no operation, though {name} {int(known[gaps[0]])} has")
