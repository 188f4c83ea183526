"""The layouts that differ in what a cost depends on, so that each cost is computed once, and the way back to all."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.base import records
from planner.base.arrays import record
from planner.choices.table import CHOICES
from planner.layouts import Layouts
from planner.models import Transformer

Record = TypeVar("Record")
MOST = 2**62  # combinations of values that a number of 64 bits tells apart


@record
class Distinct:
    """Layouts that differ in some columns, one of each.

    index: which of them each row of all layouts is; first: a row that each of them is. None if they are all.
    """

    layouts: Layouts
    index: NDArray[np.intp] | None = None
    first: NDArray[np.intp] | None = None

    def spread(self, record: Record) -> Record:
        """An array, or a record of arrays, over the distinct layouts: over all."""
        return record if self.index is None else records.take(record, self.index, self.layouts.shape[-1])

    def of_each(self, record: Record) -> Record:
        """A record of arrays over all layouts: over the distinct ones."""
        return record if self.index is None else records.take(record, self.first, len(self.index))

    def take(self, rows: Any) -> Distinct:
        """The same for some rows of all layouts; all the distinct layouts stay."""
        index = np.arange(self.layouts.shape[-1]) if self.index is None else self.index
        return replace(self, index=index[rows])


def distinct_ranks(model: Transformer, layouts: Layouts) -> Distinct:
    """Layouts that differ in what a rank's parameters are and what moving them takes: of neighbours alike the first."""
    rows = layouts.shape[-1]
    if rows == 1 or _per_layout(model):
        return Distinct(layouts=layouts)
    columns = (getattr(layouts, name) for name, choice in CHOICES.items() if choice.of_rank)
    new = np.ones(rows, dtype=bool)
    new[1:] = False
    for column in columns:
        if column.shape == (rows,):
            new[1:] |= column[1:] != column[:-1]
    first = np.flatnonzero(new)
    if 2 * len(first) > rows:
        return Distinct(layouts=layouts)
    return Distinct(layouts=layouts.take(first), index=np.cumsum(new) - 1, first=first)


def distinct_for_one_layer(model: Transformer, layouts: Layouts) -> Distinct:
    """Layouts that differ in what one layer, embedding or head costs one rank for one micro-batch.

    That depends on how a layer is cut and run, not on the pipeline, the replicas or their sharding; and on the number
    of accelerators, for the slowest of them sets the pace.
    """
    x = layouts
    if _per_layout(model):
        return Distinct(layouts=layouts)
    return _distinct(layouts, x.gpus, *(getattr(x, name) for name, choice in CHOICES.items() if choice.of_layer))


def _per_layout(model: Transformer) -> bool:
    return any(isinstance(getattr(model, f.name), np.ndarray) for f in fields(model))


def _distinct(layouts: Layouts, *columns: Any) -> Distinct:
    """Layouts that differ in some columns; those that all rows share, and a grid's choices, are left as they are."""
    rows = layouts.shape[-1]
    key, size = None, 1
    for column in columns:
        if column.shape[-1] != rows or column.ndim != 1:
            continue
        if column.dtype.kind == "f":
            column = np.unique(column, return_inverse=True)[1]
        least, most = int(column.min()), int(column.max())
        if least == most:
            continue
        size *= most - least + 1
        if size > MOST:
            return Distinct(layouts=layouts)
        key = column - least if key is None else key * (most - least + 1) + (column - least)
    if key is None:
        return Distinct(layouts=layouts.take(slice(0, 1)), index=np.zeros(rows, dtype=np.intp))
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    return Distinct(layouts=layouts.take(first), index=index)
