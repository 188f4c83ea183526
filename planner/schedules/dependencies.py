"""What must be done before an operation: the pipeline's data flow, and whether an order is complete.

F of stage s needs F of stage s - 1; B (or I) of stage s needs its own F and B (or I) of stage s + 1; W needs its own I.
With sequence slices F of slice j needs F of slice j - 1 (keys and values) and B of slice j that of slice j + 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.base.errors import ScheduleError
from planner.schedules.operations import KINDS, Order

F, B, I, W = range(len(KINDS))
Ints = NDArray[np.int64]


def dependencies(order: Order) -> Ints:
    """Flat indices of what each operation waits for, int64 of shape (n, 3), -1 for nothing.

    Columns: the neighbouring stage; the same stage (F before B, I before W); the neighbouring slice.

    Raises:
        ScheduleError: an operation is missing or doubled.
    """
    place = _Places(order)
    s, i, j = order.stage, order.micro_batch, order.slice
    stages, _, slices = place.shape
    out = np.full((len(order), 3), -1, dtype=np.int64)
    forward = order.kind == F
    back = (order.kind == B) | (order.kind == I)
    weight = order.kind == W
    for rows, table, ds, dj, column in (
        (forward & (s > 0), place.forward, -1, 0, 0),
        (back & (s < stages - 1), place.backward, 1, 0, 0),
        (back, place.forward, 0, 0, 1),
        (weight, place.backward, 0, 0, 1),
        (forward & (j > 0), place.forward, 0, -1, 2),
        (back & (j < slices - 1), place.backward, 0, 1, 2),
    ):
        out[rows, column] = table[s[rows] + ds, i[rows], j[rows] + dj]
    return out


class _Places:
    """Where each forward and backward is: flat index by (stage, micro-batch, slice)."""

    def __init__(self, order: Order) -> None:
        if not len(order):
            raise ScheduleError("the schedule has no operations")
        self.shape = tuple(int(c.max()) + 1 for c in (order.stage, order.micro_batch, order.slice))
        if np.prod(self.shape) > len(order):
            self._explain(order)
        self.forward = self._table(order, order.kind == F, "F")
        self.backward = self._table(order, (order.kind == B) | (order.kind == I), "B or I")
        weight = self._table(order, order.kind == W, "W", required=False)
        split = np.zeros(self.shape, dtype=bool)
        at = order.kind == I
        split[order.stage[at], order.micro_batch[at], order.slice[at]] = True
        for wrong, text in ((split & (weight < 0), "I but no W"), (~split & (weight >= 0), "W but no I")):
            if wrong.any():
                raise ScheduleError(f"{self._unit(np.argwhere(wrong)[0])} has {text}")

    def _table(self, order: Order, rows: NDArray[np.bool_], kinds: str, required: bool = True) -> Ints:
        at = np.flatnonzero(rows)
        unit = np.ravel_multi_index((order.stage[at], order.micro_batch[at], order.slice[at]), self.shape)
        count = np.bincount(unit, minlength=int(np.prod(self.shape)))
        for wrong, text in ((count > 1, "more than one"), ((count == 0) & required, "no")):
            if wrong.any():
                first = np.unravel_index(int(np.flatnonzero(wrong)[0]), self.shape)
                raise ScheduleError(f"{self._unit(np.array(first))} has {text} {kinds}")
        table = np.full(int(np.prod(self.shape)), -1, dtype=np.int64)
        table[unit] = at
        return table.reshape(self.shape)

    def _unit(self, index: Ints) -> str:
        part = f", slice {index[2]}" if self.shape[2] > 1 else ""
        return f"stage {index[0]}, micro-batch {index[1]}{part}"

    def _explain(self, order: Order) -> None:
        """A number far beyond the others would ask for a table that memory can't hold: name it."""
        for name, column in (("stage", order.stage), ("micro-batch", order.micro_batch), ("slice", order.slice)):
            known = np.unique(column)
            gaps = np.flatnonzero(np.diff(known, prepend=-1) > 1)
            if len(gaps):
                missing = int(known[gaps[0]]) - 1
                raise ScheduleError(f"{name} {missing} has no operation, though {name} {int(known[gaps[0]])} has")
