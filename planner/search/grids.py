"""The space as grids: rows that no choice is left in but those that all of them share, which are a grid's axes.

A row is degrees, schedule, virtual stages, slices and micro-batch. What combines with every one of them (recomputation,
sharding, sequence parallelism, split of the layers, offload) is an axis, so that costs that don't depend on it are
computed once. Rows of the same choices come in chunks of bounded size, whatever the size of the space.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.base import records
from planner.choices.table import CHOICES, SHARED
from planner.costs.network.collectives import nodes_of
from planner.hardware import Cluster
from planner.layouts import Attention, Layouts, Precision
from planner.models import Transformer
from planner.step.legality import legal

Ints = NDArray[np.int64]
CHUNK = 65_536  # layouts estimated at once: few enough to stay in cache, enough to make numpy's calls cheap

Degree = tuple[int, int, int, int, int, int]
"""dp, tp, pp, cp, ep, etp."""

Axes = tuple[tuple[int, ...], ...]
"""Choices that combine with every row: recompute, `sharding`, sequence_parallel, layer_split, offload_optimizer."""

A_NODE_EACH = 0  # copies of what is sharded: as many as a data-parallel group has nodes
STAGES = 4


def sharding(zero: int, copies: int) -> int:
    """A ZeRO stage and its copies, a number or A_NODE_EACH, as one choice."""
    return zero + STAGES * copies


def sharded(choice: int) -> tuple[int, int]:
    """The ZeRO stage and the copies of a `sharding`."""
    return choice % STAGES, choice // STAGES


@dataclass(frozen=True, kw_only=True)
class Family:
    """Rows of the same degrees and axes: runs (schedule's number, virtual stages, slices) times micro-batches."""

    degree: Degree
    axes: Axes
    runs: Ints
    micro: Ints

    def __len__(self) -> int:
        return len(self.runs) * len(self.micro)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A grid of layouts, rows sorted by schedule, and which of them are legal; both of its shape.

    serial: of each row, a number of its own that depends on the space alone, shape (rows,).
    """

    layouts: Layouts
    legal: NDArray[np.bool_]
    serial: Ints

    def take(self, rows: Any) -> Grid:
        """Its rows at an index array or mask."""
        return records.take(self, rows, len(self.serial))

    def table(self) -> Layouts:
        """The legal layouts as a table."""
        return self.layouts.at(np.nonzero(self.legal))


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """What all layouts of a search share. excluded: choices, each with a value that none of them has.

    given: choices beyond those named here, each with its value; others have their default.
    """

    schedule_names: tuple[str, ...]
    global_batch: int
    precision: Precision
    attention: Attention
    excluded: tuple[tuple[str, int], ...] = ()
    given: tuple[tuple[str, int], ...] = ()

    def columns(self) -> dict[str, Any]:
        """A column of length one for each choice of `SHARED`."""
        given = dict(self.given)
        return {name: np.array([int(given.get(name, CHOICES[name].default))]) for name in SHARED}


@dataclass
class _Pending:
    """Families, each with its first row's serial, and then legal rows of one kind of axes that wait for a chunk."""

    families: list[tuple[int, Family]] = field(default_factory=list)
    size: int = 0
    rows: list[tuple[Ints, NDArray[np.bool_]]] = field(default_factory=list)
    legal: int = 0


def grids(
    model: Transformer, cluster: Cluster, families: Iterable[Family], shared: Numerics, chunk: int = CHUNK
) -> Iterator[Grid]:
    """The legal layouts of the families, each once, in grids of about `chunk` layouts."""
    pending: dict[Axes, _Pending] = {}
    serial = 0
    for one in families:
        waiting = pending.setdefault(one.axes, _Pending())
        waiting.families.append((serial, one))
        waiting.size += len(one)
        serial += len(one)
        if waiting.size * _size(one.axes) >= chunk:
            yield from _advance(model, cluster, one.axes, waiting, shared, chunk, False)
    for axes, waiting in pending.items():
        yield from _advance(model, cluster, axes, waiting, shared, chunk, True)


def _size(axes: Axes) -> int:
    return prod(len(choices) for choices in axes)


def _advance(
    model: Transformer, cluster: Cluster, axes: Axes, waiting: _Pending, shared: Numerics, chunk: int, last: bool
) -> Iterator[Grid]:
    """Expand the waiting families into legal rows, and yield full chunks of them; all of them, where they are last."""
    if waiting.families:
        table = _rows(waiting.families)
        waiting.families, waiting.size = [], 0
        grid = _grid(cluster, table, axes, shared)
        ok = legal(model, cluster, grid) & _distinct(grid, axes)
        for name, value in shared.excluded:
            ok = ok & (getattr(grid, name) != value)
        some = np.flatnonzero(ok.any(axis=tuple(range(ok.ndim - 1))))
        waiting.rows.append((table[:, some], ok[..., some]))
        waiting.legal += len(some)
    most = max(chunk // _size(axes), 1)
    if not waiting.legal or (waiting.legal < most and not last):
        return
    table = np.concatenate([rows for rows, _ in waiting.rows], axis=1)
    ok = np.concatenate([mask for _, mask in waiting.rows], axis=-1)
    start = 0
    while waiting.legal - start >= most or (last and start < waiting.legal):
        order = start + np.argsort(table[6, start : start + most], kind="stable")
        yield Grid(layouts=_grid(cluster, table[:, order], axes, shared), legal=ok[..., order], serial=table[-1, order])
        start += most
    start = min(start, waiting.legal)
    waiting.rows, waiting.legal = [(table[:, start:], ok[..., start:])], waiting.legal - start


def _rows(waiting: list[tuple[int, Family]]) -> Ints:
    """Columns of rows: six degrees, schedule, virtual stages, slices, micro-batch, serial; shape (11, rows)."""
    serial, families = np.array([n for n, _ in waiting]), [f for _, f in waiting]
    runs, micro = np.array([len(f.runs) for f in families]), np.array([len(f.micro) for f in families])
    counts = runs * micro
    family = np.repeat(np.arange(len(families)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    run = (np.cumsum(runs) - runs)[family] + within // micro[family]
    size = (np.cumsum(micro) - micro)[family] + within % micro[family]
    degrees = np.array([f.degree for f in families]).T[:, family]
    return np.concatenate([
        degrees, np.concatenate([f.runs for f in families]).T[:, run],
        np.concatenate([f.micro for f in families])[None, size], (serial[family] + within)[None],
    ])  # fmt: skip


def _distinct(layouts: Layouts, axes: Axes) -> Any:
    """Where a choice makes a difference: nothing to shard on one rank, no sequence parallelism without tensor ranks.

    Nor is a copy in each node another choice than one over all ranks, where there is one node.
    """
    x, (_, shards, _, _, _) = layouts, _axes(axes)
    sharded = (x.zero == 0) | (x.dp * x.cp > 1)
    copied = (shards // STAGES != A_NODE_EACH) | (x.dp_replicate > 1)
    return sharded & copied & (~x.sequence_parallel | (x.tp > 1))


def _axes(axes: Axes) -> list[Ints]:
    """Each axis's choices along an axis of their own, the rows' last."""
    return [
        np.array(choices, dtype=np.int64).reshape([-1 if i == j else 1 for j in range(len(axes) + 1)])
        for i, choices in enumerate(axes)
    ]


def _grid(cluster: Cluster, table: Ints, axes: Axes, shared: Numerics) -> Layouts:
    """Layouts from columns of rows and their axes."""
    dp, tp, pp, cp, ep, etp, schedule, chunks, slices, micro, _ = table
    recompute, shards, sequence, split, offload = _axes(axes)
    copies = shards // STAGES
    if np.all(copies == 1):
        copies = np.ones(1, dtype=np.int64)
    elif np.any(copies == A_NODE_EACH):
        copies = np.where(copies == A_NODE_EACH, nodes_of(cluster, dp * cp, tp, dp * cp * tp * pp), copies)
    return Layouts(
        schedule_names=shared.schedule_names, schedule=schedule, dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp,
        virtual_stages=chunks, sequence_slices=slices, micro_batch=micro,
        global_batch=np.array([shared.global_batch]), zero=shards % STAGES,
        dp_replicate=copies, recompute=recompute,
        attention=np.array([int(shared.attention)]), precision=np.array([int(shared.precision)]), layer_split=split,
        pipeline_layout=np.zeros(1, dtype=np.int64),
        sequence_parallel=sequence.astype(bool), fused_norm=np.array([True]), offload_optimizer=offload.astype(bool),
        **shared.columns(),
    )  # fmt: skip
