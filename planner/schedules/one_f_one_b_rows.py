"""Rows of the 1F1B kind: warm up with forwards, then a forward and a backward in turn, then the rest.

A row is a table, int64 of shape (operations, 4): stage, kind, micro-batch, slice.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.base.arrays import Ints
from planner.schedules.operations import KINDS

Table = Ints


def units(stage: Any, kind: str, micro_batch: Any, part: Any = 0) -> Table:
    """Operations of one kind from arrays of stage, micro-batch and slice, broadcast together."""
    out = np.empty((np.broadcast(stage, micro_batch, part).size, 4), dtype=np.int64)
    for column, values in enumerate((stage, KINDS.index(kind), micro_batch, part)):
        out[:, column] = values
    return out


def one_in_one_out(forward: Table, backward: Table, warmup: int) -> Table:
    """`warmup` forwards, then (F, B) in turn while there are forwards, then the remaining backwards."""
    n = len(forward)
    w = min(warmup, n)
    out = np.empty((2 * n, 4), dtype=np.int64)
    out[:w] = forward[:w]
    out[w : w + 2 * (n - w) : 2] = forward[w:]
    out[w + 1 : w + 2 * (n - w) : 2] = backward[: n - w]
    out[w + 2 * (n - w) :] = backward[n - w :]
    return out


def counted(what: Any, stages: Sequence[int], kinds: str, micro_batch: Any = None) -> Table:
    """A rank's operations from what it does, each an index into stages and kinds, shape (operations,).

    micro_batch: of each, shape (operations,); None: those of one kind and stage follow one another.
    """
    code = np.asarray(what, dtype=np.int64)
    if micro_batch is None:
        micro_batch = np.zeros_like(code)
        for one in range(len(kinds)):
            micro_batch[code == one] = np.arange(np.count_nonzero(code == one))
    kind = np.array([KINDS.index(k) for k in kinds])[code]
    return np.stack([np.asarray(stages)[code], kind, micro_batch, np.zeros_like(code)], axis=1)


F0, F1, I1, I0, W1, W0 = range(6)
"""What a rank of a V does with a micro-batch, by dependency: 0 is its shallow stage, 1 its deep one."""


def counted_on_v(what: Any, r: int, p: int, micro_batch: Any = None) -> Table:
    """`counted` of rank r of a V, for what it does as numbered above."""
    shallow, deep = r, 2 * p - 1 - r
    return counted(what, (shallow, deep, deep, shallow, deep, shallow), "FFIIWW", micro_batch)


def by_slot(tables: list[Table], slots: list[Any]) -> Table:
    """Operations in the order of the slots in which they start; of equal slots in the order of the tables."""
    return np.concatenate(tables)[np.argsort(np.concatenate(slots), kind="stable")]
