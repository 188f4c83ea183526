"""Operations and their order on every rank: the schedule as data.

An operation prints and parses as a cell: ``2F0`` is stage 2's forward of micro-batch 0, ``2F0.1`` that of its
sequence slice 1, and a trailing ``&`` fuses it with the next cell of the row (DualPipe's overlapped F&B).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from planner.base.arrays import Bools, Ints, record
from planner.base.errors import ScheduleError, shown

KINDS = "FBIWSTUV"
"""Forward, backward, input gradient, weight gradient; B = I + W. A kind's code is its place here.

Of a head that all ranks share (`planner.schedules.vocabulary`), on each its part: S logits, T gradients; or U logits
and input gradient, V weight gradient; S + T = U + V.
"""

NAMES = dict(zip(KINDS, (
    "forward", "backward", "input gradient", "weight gradient",
    "head's logits", "head's gradients", "head's logits and input gradient", "head's weight gradient",
), strict=True))  # fmt: skip
"""In words."""

_CELL = re.compile(rf"(\d{{1,18}})([{KINDS}])(\d{{1,18}})(?:\.(\d{{1,18}}))?(&?)")


class Operation(NamedTuple):
    """One operation on a rank; `slice` is the part of the sequence where there are slices."""

    stage: int
    kind: str
    micro_batch: int
    slice: int = 0
    fused: bool = False

    def __str__(self) -> str:
        part = f".{self.slice}" if self.slice else ""
        return f"{self.stage}{self.kind}{self.micro_batch}{part}{'&' if self.fused else ''}"

    @staticmethod
    def parse(cell: str) -> Operation:
        """The operation that a cell such as ``2F0`` names. Raises ScheduleError if the cell is none."""
        match = _CELL.fullmatch(cell.strip())
        if match is None:
            raise ScheduleError(
                f"cell {shown(cell)} is no operation; write stage, kind (F, B, I or W) and micro-batch, such as 2F0"
            )
        stage, kind, micro_batch, part, fused = match.groups()
        return Operation(int(stage), kind, int(micro_batch), int(part or 0), bool(fused))


@record
class Order:
    """The operations of every rank, in order, flat: rank r's are at start[r]:start[r + 1].

    start: shape (p + 1,); stage, kind (code in KINDS), micro_batch, slice: int64 of shape (n,); fused: bool, (n,).
    """

    start: Ints
    stage: Ints
    kind: Ints
    micro_batch: Ints
    slice: Ints
    fused: Bools

    def __len__(self) -> int:
        return len(self.stage)

    @property
    def ranks(self) -> int:
        """Pipeline ranks."""
        return len(self.start) - 1

    @property
    def virtual_stages(self) -> int:
        """Model chunks per rank."""
        return max((int(self.stage.max()) + 1) // self.ranks, 1)

    @property
    def rank(self) -> Ints:
        """The rank of every operation, shape (n,)."""
        return np.repeat(np.arange(self.ranks), np.diff(self.start))

    def operation(self, index: int) -> Operation:
        """One operation by its flat index."""
        i = index
        kind = KINDS[self.kind[i]]
        return Operation(int(self.stage[i]), kind, int(self.micro_batch[i]), int(self.slice[i]), bool(self.fused[i]))

    def rows(self) -> list[list[Operation]]:
        """One list of operations a rank."""
        columns = (self.stage, self.kind, self.micro_batch, self.slice, self.fused)
        flat = [Operation(s, KINDS[k], m, j, f) for s, k, m, j, f in zip(*(c.tolist() for c in columns), strict=True)]
        bounds = self.start.tolist()
        return [flat[a:b] for a, b in pairwise(bounds)]

    @staticmethod
    def of_rows(rows: Sequence[Iterable[Operation]]) -> Order:
        """From one sequence of operations a rank."""
        lists = [list(row) for row in rows]
        flat = [op for row in lists for op in row]
        code = {kind: i for i, kind in enumerate(KINDS)}
        stage, kind, micro_batch, part, fused = zip(*flat, strict=True) if flat else ((),) * 5
        columns = (stage, [code[k] for k in kind], micro_batch, part, fused)
        table = np.stack([np.array(column, dtype=np.int64) for column in columns], axis=1)
        return Order.of_tables(np.split(table, np.cumsum([len(row) for row in lists])[:-1]))

    @staticmethod
    def of_tables(tables: Sequence[Ints]) -> Order:
        """From one table a rank, int64 of shape (operations, 4 or 5): stage, kind, micro-batch, slice[, fused]."""
        start = np.concatenate([[0], np.cumsum([len(t) for t in tables])]).astype(np.int64)
        flat = np.concatenate(tables) if len(tables) else np.zeros((0, 5), dtype=np.int64)
        fused = flat[:, 4].astype(bool) if flat.shape[1] > 4 else np.zeros(len(flat), dtype=bool)
        columns = [np.ascontiguousarray(flat[:, i]) for i in range(4)]
        return Order(
            start=start, stage=columns[0], kind=columns[1], micro_batch=columns[2], slice=columns[3], fused=fused
        )
