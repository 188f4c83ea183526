"""The search space as grids. A row fixes degrees, schedule, virtual stages, slices and micro-batch.

Every choice that combines with all rows is an axis: recomputation, sharding, sequence parallelism, split of the layers,
offload. Costs that don't depend on an axis are computed once for all of it. Rows with the same axes come in chunks of
bounded size, whatever the size of the space.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from planner.base import records
from planner.base.arrays import Bools, Ints, record
from planner.choices.table import CHOICES, DEGREES
from planner.costs.network.groups import nodes_of
from planner.hardware import Cluster
from planner.layouts import DTYPES, Layouts
from planner.models import Transformer
from planner.search.request import Broken
from planner.step.legality import legal

A_GRID = 32_768  # layouts whose arithmetic takes as long as a grid's calls
KINDS = 4_096  # more than there are kinds of axes: layouts of two of them never share a number
CHUNK = 131_072  # layouts estimated at once: enough to make numpy's calls cheap

A_NODE_EACH = 0  # dp_replicate of a grid: as many copies as a data-parallel group has nodes


class Degrees(NamedTuple):
    """Degrees of parallelism, as in a layout."""

    dp: int
    tp: int
    pp: int
    cp: int
    ep: int
    etp: int


class Run(NamedTuple):
    """A schedule in a pipeline. schedule: its number among those that are searched."""

    schedule: int
    virtual_stages: int
    sequence_slices: int


class GridAxis(NamedTuple):
    """Choices that combine with every row. values: one value for each name, in every combination that is tried."""

    names: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]


Axes = tuple[GridAxis, ...]
ROW = (*Degrees._fields, *Run._fields, "micro_batch")
"""The choices that a row of a grid fixes."""
SCHEDULE = ROW.index("schedule")


@record
class Family:
    """Rows of the same degrees and axes: runs (rows of a `Run` each) times micro-batches."""

    degrees: Degrees
    axes: Axes
    runs: Ints
    micro: Ints

    def __len__(self) -> int:
        return len(self.runs) * len(self.micro)


@record
class Grid:
    """A grid of layouts, rows sorted by schedule, and which of them are legal; both of its shape.

    serial: a number for each row, shape (rows,); of_choice: what each choice adds to it, shape (choices, rows or 1).
    Their sum is a layout's own number, which depends on the space alone.
    """

    layouts: Layouts
    legal: Bools
    serial: Ints
    of_choice: Ints

    def numbers(self, choice: Ints, row: Ints) -> Ints:
        """Serial numbers of layouts, given each one's choice (of all axes together) and row."""
        return self.serial[row] + np.broadcast_to(self.of_choice, (len(self.of_choice), len(self.serial)))[choice, row]

    def take(self, rows: Any) -> Grid:
        """The grid's rows at an index array or mask."""
        return records.take(self, rows, len(self.serial))

    def table(self) -> Layouts:
        """The legal layouts as a table."""
        return self.layouts.at(np.nonzero(self.legal))


@dataclass(frozen=True, kw_only=True)
class Searched:
    """The part that all layouts of a search share: schedules' names, and the question's other choices by name.

    excluded: choices, each with a value that none of them has. never: as of `Fixed`.
    """

    schedule_names: tuple[str, ...]
    choices: Mapping[str, Any]
    excluded: tuple[tuple[str, int], ...] = ()
    never: Broken = ()


@dataclass
class _Pending:
    """Families with the same axes, then their legal rows, that wait for a chunk.

    each: layouts in a row. kind: the number of these axes. families: each with the serial of its first row.
    size: rows of the families. rows: columns of rows that are legal somewhere, and where. legal: number of such rows.
    """

    each: int
    kind: int
    families: list[tuple[int, Family]] = field(default_factory=list)
    size: int = 0
    rows: list[tuple[Ints, Bools]] = field(default_factory=list)
    legal: int = 0


def grids(
    model: Transformer, cluster: Cluster, families: Iterable[Family], shared: Searched, chunk: int = CHUNK
) -> Iterator[Grid]:
    """The legal layouts of the families, each once, in grids of about `chunk` layouts."""
    pending: dict[Axes, _Pending] = {}
    serial = 0
    for one in families:
        waiting = pending.get(one.axes)
        if waiting is None:
            waiting = pending[one.axes] = _Pending(_size(one.axes), len(pending))
        waiting.families.append((serial, one))
        waiting.size += len(one)
        serial += len(one)
        if waiting.size * waiting.each >= chunk:
            yield from _advance(model, cluster, one.axes, waiting, shared, chunk)
    left = []
    for axes, waiting in pending.items():
        yield from _advance(model, cluster, axes, waiting, shared, chunk)
        if waiting.legal:
            left.append(_Rows.of(axes, waiting))
    for rows in _joined(left):
        yield rows.grid(cluster, shared)


def _size(axes: Axes) -> int:
    return prod(_shape(axes))


def _shape(axes: Axes) -> tuple[int, ...]:
    return tuple(len(axis.values) for axis in axes)


@record
class _Rows:
    """Rows of one kind of axes: their columns, which layouts are legal, and what a choice adds to a row's serial."""

    axes: Axes
    table: Ints
    legal: Bools
    of_choice: Ints

    def __len__(self) -> int:
        return int(self.table.shape[1])

    @staticmethod
    def of(axes: Axes, waiting: _Pending) -> _Rows:
        """All pending rows, joined."""
        table = np.concatenate([rows for rows, _ in waiting.rows], axis=1)
        ok = np.concatenate([mask for _, mask in waiting.rows], axis=-1)
        return _Rows(axes=axes, table=table, legal=ok, of_choice=KINDS * np.arange(_size(axes))[:, None])

    def among(self, axes: Axes) -> _Rows:
        """The same rows under axes with more values; where a value is not theirs, no layout is legal."""
        rows = len(self)
        at = np.ix_(*([whole.values.index(v) for v in own.values] for own, whole in zip(self.axes, axes, strict=True)))
        legal, of_choice = (np.zeros((*_shape(axes), rows), dtype=kind) for kind in (bool, np.int64))
        legal[at] = self.legal
        of_choice[at] = self.of_choice.reshape(*_shape(self.axes), -1)
        return _Rows(axes=axes, table=self.table, legal=legal, of_choice=of_choice.reshape(-1, rows))

    def grid(self, cluster: Cluster, shared: Searched) -> Grid:
        """Their grid, sorted by schedule."""
        order = np.argsort(self.table[SCHEDULE], kind="stable")
        table, legal = self.table[:, order], self.legal.take(order, -1)
        own = self.of_choice if self.of_choice.shape[1] == 1 else self.of_choice[:, order]
        return Grid(layouts=_grid(cluster, table, self.axes, shared), legal=legal, serial=table[-1], of_choice=own)


def _joined(kinds: list[_Rows]) -> list[_Rows]:
    """Kinds of few rows joined, under axes that have the values of all of them: each grid costs calls besides."""
    groups = [([set(axis.values) for axis in kind.axes], [kind]) for kind in kinds]
    rows = [len(kind) for kind in kinds]

    def more(i: int, j: int) -> int:
        """Layouts that two groups have more when joined."""
        (one, _), (other, _) = groups[i], groups[j]
        both = prod([len(a | b) for a, b in zip(one, other, strict=True)]) * (rows[i] + rows[j])
        return both - prod(map(len, one)) * rows[i] - prod(map(len, other)) * rows[j]

    while len(groups) > 1:
        least, i, j = min((more(i, j), i, j) for j in range(len(groups)) for i in range(j))
        if least > A_GRID:
            break
        (one, kinds), (other, others) = groups[i], groups.pop(j)
        groups[i] = ([a | b for a, b in zip(one, other, strict=True)], kinds + others)
        rows[i] += rows.pop(j)
    return [kinds[0] if len(kinds) == 1 else _together(kinds, axes) for axes, kinds in groups]


def _together(kinds: list[_Rows], values: list[set[tuple[int, ...]]]) -> _Rows:
    axes = tuple(GridAxis(axis.names, tuple(sorted(own))) for axis, own in zip(kinds[0].axes, values, strict=True))
    every = [kind.among(axes) for kind in kinds]
    table, legal, own = (
        np.concatenate(parts, axis=-1) for parts in zip(*((e.table, e.legal, e.of_choice) for e in every), strict=True)
    )
    return _Rows(axes=axes, table=table, legal=legal, of_choice=own)


def _advance(
    model: Transformer, cluster: Cluster, axes: Axes, waiting: _Pending, shared: Searched, chunk: int
) -> Iterator[Grid]:
    """Expand the waiting families into legal rows, and yield full chunks of them."""
    if waiting.families:
        table = _rows(waiting.families)
        table[-1] = KINDS * waiting.each * table[-1] + waiting.kind
        waiting.families, waiting.size = [], 0
        grid = _grid(cluster, table, axes, shared)
        ok = legal(model, cluster, grid) & _makes_a_difference(grid, axes)
        for name, value in shared.excluded:
            ok = ok & (getattr(grid, name) != value)
        for _, broken in shared.never:
            ok = ok & ~broken(grid)
        some = np.flatnonzero(ok.any(axis=tuple(range(ok.ndim - 1))))
        waiting.rows.append((table[:, some], ok.take(some, -1)))
        waiting.legal += len(some)
    most = max(chunk // waiting.each, 1)
    whole = waiting.legal // most * most
    if not whole:
        return
    every = _Rows.of(axes, waiting)
    for start in range(0, whole, most):
        part = slice(start, start + most)
        yield replace(every, table=every.table[:, part], legal=every.legal[..., part]).grid(cluster, shared)
    waiting.rows, waiting.legal = [(every.table[:, whole:], every.legal[..., whole:])], waiting.legal - whole


def _rows(waiting: list[tuple[int, Family]]) -> Ints:
    """The columns of `ROW`, and the serial, of every row of the families; shape (columns, rows)."""
    serial, families = np.array([n for n, _ in waiting]), [f for _, f in waiting]
    runs, micro = np.array([len(f.runs) for f in families]), np.array([len(f.micro) for f in families])
    counts = runs * micro
    family = np.repeat(np.arange(len(families)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    run = (np.cumsum(runs) - runs)[family] + within // micro[family]
    size = (np.cumsum(micro) - micro)[family] + within % micro[family]
    degrees = np.array([f.degrees for f in families]).T[:, family]
    return np.concatenate([
        degrees, np.concatenate([f.runs for f in families]).T[:, run],
        np.concatenate([f.micro for f in families])[None, size], (serial[family] + within)[None],
    ])  # fmt: skip


def _makes_a_difference(layouts: Layouts, axes: Axes) -> Any:
    """Whether a layout's choices make a difference.

    One rank has nothing to shard but between itself and its host, and without tensor ranks there is no sequence
    parallelism. On one node a copy in each node is the same as one over all ranks.
    """
    x = layouts
    sharded = (x.zero == 0) | (x.dp * x.cp > 1) | x.offload_optimizer | x.offload_parameters
    copied = (_columns(axes)["dp_replicate"] != A_NODE_EACH) | (x.dp_replicate > 1)
    return sharded & copied & (~x.sequence_parallel | (x.tp > 1))


def _columns(axes: Axes) -> dict[str, Ints]:
    """Each axis's values along an array axis of their own, before the rows. A value that never varies stands once."""
    out = {}
    for i, axis in enumerate(axes):
        shape = [-1 if i == j else 1 for j in range(len(axes) + 1)]
        for name, *values in zip(axis.names, *axis.values, strict=True):
            varied = len(axis.names) == 1 or len(set(values)) > 1
            out[name] = np.array(values, dtype=np.int64).reshape(shape) if varied else np.array(values[:1])
    return out


def _grid(cluster: Cluster, table: Ints, axes: Axes, shared: Searched) -> Layouts:
    """Layouts from columns of rows and their axes. A choice in neither has the question's value, else its default."""
    columns = dict(zip(ROW, table, strict=False)) | _columns(axes)
    dp, tp, pp, cp = (columns[name] for name in DEGREES)
    copies = columns["dp_replicate"]
    if np.any(copies == A_NODE_EACH):
        columns["dp_replicate"] = np.where(
            copies == A_NODE_EACH, nodes_of(cluster, dp * cp, tp, dp * cp * tp * pp), copies
        )
    for name, choice in CHOICES.items():
        if name not in columns:
            default = 0 if choice.kind is str else choice.default
            columns[name] = np.array([shared.choices.get(name, default)], dtype=DTYPES.get(choice.kind, np.int64))
        if choice.kind is bool:
            columns[name] = columns[name].astype(bool)
    return Layouts(schedule_names=shared.schedule_names, **columns)
