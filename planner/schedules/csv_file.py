"""A user's own schedule from a CSV of cells, one row a rank: the form that PyTorch's pipeline runtime loads.

    0F0,0F1,,,0B0,0B1        a row is a rank; an empty cell is nothing
    ,1F0,1B0,1F1,1B1         (or with I and W for a B: 1I0,1W0)

A cell may also name a sequence slice (``2F0.1``), and two operations that run as one, as PyTorch writes them
(``(0F3;1B0)OVERLAP_F_B``) or as planner does (``0F3&,1B0``).
"""

import re
from pathlib import Path

from planner.base.errors import FileFormatError, ScheduleError, shown
from planner.base.files import read_csv
from planner.schedules.dependencies import dependencies
from planner.schedules.operations import Operation, Order

_OVERLAP = re.compile(r"\(([^()]*)\)OVERLAP_F_B")
_LOWERED = re.compile(r"\d+(SEND_[FB]|RECV_[FB]|UNSHARD|RESHARD|REDUCE_GRAD)\d*")
"""The operations that PyTorch adds itself: its compute_comms form."""

Place = tuple[int, int]
"""Row and cell, counted from 1."""


def read_schedule(path: Path) -> Order:
    """The schedule in a CSV file, complete: every stage runs every micro-batch forward and backward, once.

    That no rank waits for ever is for `planner.step.timeline.timeline.run` to say: it names the circle.

    Raises FileFormatError if the file can't be read, or a cell is no operation; ScheduleError if an operation is
    missing, doubled or on another rank than its forward. Both with path, row and cell.
    """
    rows = read_csv(path)
    while rows and not any(cell.strip() for cell in rows[-1]):
        rows.pop()
    if not rows:
        raise FileFormatError(f"{path}: has no operations; write one row per rank, cells such as 2F0")
    parsed = [_row(path, number, row) for number, row in enumerate(rows, 1)]
    _check_numbers(path, parsed)
    _check_places(path, parsed)
    order = Order.of_rows([[operation for operation, _ in row] for row in parsed])
    try:
        dependencies(order)
    except ScheduleError as error:
        raise ScheduleError(f"{path}: {error}") from None
    return order


def _row(path: Path, number: int, cells: list[str]) -> list[tuple[Operation, Place]]:
    """The operations of one rank with their places."""
    out = []
    for column, cell in enumerate(cells, 1):
        if not cell.strip():
            continue
        try:
            out += [(operation, (number, column)) for operation in _operations(cell.strip())]
        except ScheduleError as error:
            raise FileFormatError(f"{path}: row {number}, cell {column}: {error}") from None
    if not out:
        raise FileFormatError(f"{path}: row {number} has no operation; a row is a rank")
    last, place = out[-1]
    if last.fused:
        raise FileFormatError(f"{path}: row {place[0]}, cell {place[1]}: {last} joins the next cell, but is the last")
    return out


def _operations(cell: str) -> list[Operation]:
    """The operations that a cell names: one, or several that run as one."""
    overlap = _OVERLAP.fullmatch(cell)
    if overlap is None:
        if _LOWERED.fullmatch(cell):
            raise ScheduleError(
                f"{shown(cell)} is communication; give the computation only, PyTorch's compute_only form"
            )
        return [Operation.parse(cell)]
    *first, last = (Operation.parse(part) for part in overlap[1].split(";"))
    if any(operation.fused for operation in (*first, last)):
        raise ScheduleError(f"{shown(cell)} has & inside OVERLAP_F_B; write one or the other")
    return [*(operation._replace(fused=True) for operation in first), last]


def _check_numbers(path: Path, rows: list[list[tuple[Operation, Place]]]) -> None:
    """No number is beyond what so few operations can fill: tables are sized by the largest."""
    count = sum(len(row) for row in rows)
    for operation, (row, column) in (cell for cells in rows for cell in cells):
        if max(operation.stage, operation.micro_batch, operation.slice) >= count:
            raise ScheduleError(
                f"{path}: row {row}, cell {column}: {operation} is numbered beyond the {count} operations of the file; "
                "stages, micro-batches and slices count from 0 without gaps"
            )
    units = [operation for cells in rows for operation, _ in cells]
    stages, micro_batches, slices = (
        1 + max(column) for column in zip(*((u.stage, u.micro_batch, u.slice) for u in units), strict=True)
    )
    need = 2 * stages * micro_batches * slices
    if need > 100 * count:
        raise ScheduleError(
            f"{path}: {stages} stages, {micro_batches} micro-batches and {slices} slices need at least {need} "
            f"operations; the file has {count}"
        )


def _check_places(path: Path, rows: list[list[tuple[Operation, Place]]]) -> None:
    """No operation is doubled, and each is on the rank that ran its forward and holds its activations."""
    seen: dict[tuple[int, str, int, int], tuple[Operation, Place]] = {}
    cells = [cell for row in rows for cell in row]
    for operation, place in cells:
        kind = "B" if operation.kind == "I" else operation.kind
        key = (operation.stage, kind, operation.micro_batch, operation.slice)
        if key in seen:
            other, (row, column) = seen[key]
            raise ScheduleError(
                f"{path}: row {place[0]}, cell {place[1]}: {operation} was done in row {row}, cell {column} ({other})"
            )
        seen[key] = operation, place
    for operation, place in cells:
        forward = seen.get((operation.stage, "F", operation.micro_batch, operation.slice))
        if forward is not None and forward[1][0] != place[0]:
            raise ScheduleError(
                f"{path}: row {place[0]}, cell {place[1]}: {operation} is on another rank than its forward, row "
                f"{forward[1][0]}, cell {forward[1][1]}"
            )
