"""What repeats is computed once: the layouts that differ in what a cost depends on, and the way back to all."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.layouts import Layouts
from planner.models import Transformer

__all__ = ["Distinct", "by_layer"]

Record = TypeVar("Record")
MOST = 2**62  # combinations of values that a number of 64 bits tells apart


@dataclass(frozen=True, kw_only=True)
class Distinct:
    """Layouts that differ in some columns, one of each; index: which of them each row of all layouts is."""

    layouts: Layouts
    index: NDArray[np.intp] | None

    def spread(self, record: Record) -> Record:
        """A record of arrays over the distinct layouts (a dataclass), over all."""
        if self.index is None:
            return record
        arrays = {f.name: getattr(record, f.name) for f in fields(record)}  # type: ignore[arg-type]
        spread = {name: self.spread_array(x) for name, x in arrays.items() if isinstance(x, np.ndarray)}
        return replace(record, **spread)  # type: ignore[type-var]

    def spread_array(self, x: NDArray[Any]) -> NDArray[Any]:
        """An array over the distinct layouts, over all."""
        if self.index is None or not x.ndim or x.shape[-1] != self.layouts.shape[-1]:
            return x
        return np.asarray(x[..., self.index])

    def take(self, rows: Any) -> Distinct:
        """Of all layouts, those rows; all the distinct ones stay."""
        index = np.arange(self.layouts.shape[-1]) if self.index is None else self.index
        return replace(self, index=index[rows])


def by_layer(model: Transformer, layouts: Layouts) -> Distinct:
    """Layouts that differ in what one layer, embedding or head costs one rank for one micro-batch.

    That depends on how a layer is cut and run, not on the pipeline, the replicas or their sharding; and on the number
    of accelerators, for the slowest of them sets the pace.
    """
    x = layouts
    per_layout = any(isinstance(getattr(model, f.name), np.ndarray) for f in fields(model))
    if per_layout:
        return Distinct(layouts=layouts, index=None)
    return _distinct(
        layouts, x.gpus, x.tp, x.cp, x.ep, x.etp, x.micro_batch, x.sequence_slices, x.recompute, x.attention,
        x.precision, x.sequence_parallel, x.fused_norm,
    )  # fmt: skip


def _distinct(layouts: Layouts, *columns: Any) -> Distinct:
    """Layouts that differ in some columns; those that all rows share, and a grid's choices, are left as they are."""
    rows = layouts.shape[-1]
    key, size = None, 1
    for column in columns:
        if column.shape[-1] != rows or column.ndim != 1:
            continue
        least, most = int(column.min()), int(column.max())
        if least == most:
            continue
        size *= most - least + 1
        if size > MOST:
            return Distinct(layouts=layouts, index=None)
        key = column - least if key is None else key * (most - least + 1) + (column - least)
    if key is None:
        return Distinct(layouts=layouts.take(slice(0, 1)), index=np.zeros(rows, dtype=np.intp))
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    return Distinct(layouts=layouts.take(first), index=index)
