"""The joint space of accelerators, batch and layout: families of layouts, each along replicas and micro-batches.

A family fixes all but the replicas dp and the micro-batches m; the accelerators are then dp tp pp cp and the batch
dp m micro_batch, legal by construction. First every family on a coarse grid, then those near the front on a fine one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError, UnknownNameError
from planner.hardware import Cluster
from planner.layouts import Attention, Layouts, Precision, Recompute, Split
from planner.legality import legal
from planner.models import Transformer, counts
from planner.schedules import get_schedule

__all__ = ["KINDS", "Families", "Space", "Strategy", "coarse", "families", "fine", "strategy"]

Ints = NDArray[np.int64]
KINDS: Mapping[str, tuple[bool, bool]] = {
    "data": (False, False),
    "data+tensor": (True, False),
    "data+pipeline": (False, True),
    "3d": (True, True),
}
"""What is combined with data parallelism: whether tensor ranks, whether pipeline stages."""
DEFAULT_SCHEDULES = ("1f1b", "interleaved", "breadth-first")
LEAST_TOKENS = 256  # of a sequence on a context-parallel rank
COLUMNS = (
    "tp", "pp", "cp", "ep", "virtual_stages", "schedule", "micro_batch", "zero", "recompute", "layer_split",
    "sequence_slices",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """What may be combined, and the schedules of a pipeline."""

    name: str
    tensor: bool
    pipeline: bool
    schedules: tuple[str, ...]


def strategy(text: str) -> Strategy:
    """A strategy from its name: a kind, or kind:schedule, such as 3d:modular.

    Raises:
        UnknownNameError: no such kind or schedule.
    """
    kind, _, schedule = text.partition(":")
    if kind not in KINDS:
        raise UnknownNameError("strategy", kind, KINDS)
    names = (get_schedule(schedule).name,) if schedule else DEFAULT_SCHEDULES
    tensor, pipeline = KINDS[kind]
    return Strategy(name=text, tensor=tensor, pipeline=pipeline, schedules=names)


@dataclass(frozen=True, kw_only=True)
class Space:
    """The bounds of a search: most accelerators, least and most sequences a batch, arithmetic and kernel."""

    max_gpus: int
    least_batch: float
    most_batch: float
    precision: Precision
    attention: Attention


@dataclass(frozen=True, kw_only=True)
class Families:
    """Families of layouts: an integer table with a row a family, columns as COLUMNS; `schedule` indexes the names."""

    schedule_names: tuple[str, ...]
    table: Ints

    def column(self, name: str) -> Ints:
        """One column, shape (families,)."""
        return np.asarray(self.table[:, COLUMNS.index(name)])


def divisors(n: int) -> list[int]:
    """The divisors of n, ascending."""
    small = [i for i in range(1, int(n**0.5) + 1) if n % i == 0]
    return sorted({*small, *(n // i for i in small)})


def octaves(low: float, high: float, per_octave: int) -> Ints:
    """Whole numbers from low to high, about `per_octave` an octave, powers of two among them."""
    if high < 1 or high < low:
        return np.array([], dtype=np.int64)
    exponents = np.arange(np.floor(np.log2(max(low, 1.0))) * per_octave, np.ceil(np.log2(high)) * per_octave + 1)
    values = np.unique(np.rint(2.0 ** (exponents / per_octave)).astype(np.int64))
    return values[(values >= low) & (values <= high)]


def _chunks(schedule: str, layers: int, pp: int) -> list[int]:
    """Virtual stages worth a look: one where the schedule has one, else the least, the most and one between."""
    rule = get_schedule(schedule)
    if rule.one_layer_chunks:
        return [layers // pp] if layers % pp == 0 else []
    if rule.chunks is not None:
        return [rule.chunks]
    ways = [v for v in divisors(layers // pp) if v > 1] if layers % pp == 0 else []
    return sorted({ways[0], ways[len(ways) // 2], ways[-1]}) if ways else []


def _pipelines(model: Transformer, plan: Strategy) -> list[tuple[int, int, int, int]]:
    """Stages, virtual stages, schedule and split: even where the layers divide, else balanced by cost."""
    layers = int(model.num_layers)
    none = "layered" if plan.schedules in (("modular",), ("layered",)) else "1f1b"
    out = [(1, layers if none == "layered" else 1, _names(plan).index(none), int(Split.EVEN))]
    if not plan.pipeline:
        return out
    sizes = {d for d in divisors(layers) if d > 1} | {2**a for a in range(1, 12) if 2**a <= layers}
    for pp, name in product(sorted(sizes), plan.schedules):
        if name == "layered":
            continue
        split = Split.EVEN if layers % pp == 0 else Split.BALANCED
        out += [(pp, v, _names(plan).index(name), int(split)) for v in _chunks(name, layers, pp)]
    return out


def _names(plan: Strategy) -> tuple[str, ...]:
    return tuple(dict.fromkeys(("1f1b", "layered", *plan.schedules)))


def families(model: Transformer, cluster: Cluster, plan: Strategy, space: Space) -> Families:
    """Every family of a strategy whose 16-bit weights and gradients can fit: 4 bytes a parameter where replicated."""
    heads, sequence = int(model.num_heads), int(model.seq_len)
    widest = max(cluster.gpus_per_node, 8) if plan.tensor else 1
    tensor = [d for d in divisors(heads) if d <= min(widest, 1024)]
    if len(tensor) > 12:  # a wide node: octaves suffice
        tensor = [d for d in tensor if d & (d - 1) == 0] or tensor[:8]
    context = [c for c in (1, 2, 4, 8) if c == 1 or (sequence % (2 * c) == 0 and sequence // c >= LEAST_TOKENS)]
    if space.attention < Attention.FLASH1:
        context = [1]
    experts = [e for e in divisors(int(model.num_experts)) if e <= 64] if model.num_experts else [1]
    experts = [e for e in experts if e & (e - 1) == 0]
    rules = [get_schedule(name) for name in _names(plan)]
    rows = []
    for (pp, v, code, split), tp, cp, ep, mb, mode in product(
        _pipelines(model, plan), tensor, context, experts, (1, 2, 4, 8), (Recompute.NONE, Recompute.FULL)
    ):
        slices = (2, 4, 8) if rules[code].sliced and cp == 1 else (1,)
        for zero, k in product((1, 3) if pp == 1 or rules[code].layer_at_a_time else (1,), slices):
            rows.append((tp, pp, cp, ep, v, code, mb, zero, int(mode), split, k))
    table = np.array(rows, dtype=np.int64)
    share = table[:, 0] * table[:, 1] * table[:, 3]
    replicated = table[:, 7] < 3
    fits = 4.0 * float(counts.total_params(model)) / share <= cluster.accelerator.memory_bytes
    smallest = table[:, 0] * table[:, 1] * table[:, 2]
    return Families(schedule_names=_names(plan), table=table[(fits | ~replicated) & (smallest <= space.max_gpus)])


def _layouts(fam: Families, index: Ints, dp: Ints, m: Ints, model: Transformer, space: Space) -> Layouts:
    """One layout for each (family, dp, m), arrays of one shape (n,)."""
    rows = fam.table[index]
    column = {name: rows[:, i] for i, name in enumerate(COLUMNS)}
    n = len(rows)
    tp, cp = column["tp"], column["cp"]
    sequence = (tp > 1) & (int(model.seq_len) % (tp * cp) == 0)
    return Layouts(
        schedule_names=fam.schedule_names, dp=dp, global_batch=dp * m * column["micro_batch"],
        attention=np.full(n, int(space.attention)), precision=np.full(n, int(space.precision)),
        sequence_parallel=sequence, etp=np.where(sequence & (int(model.num_experts) > 0), 1, tp),
        dp_replicate=np.ones(n, dtype=np.int64), fused_norm=np.ones(n, dtype=bool),
        offload_optimizer=np.zeros(n, dtype=bool), **column,
    )  # fmt: skip


def _legal(model: Transformer, cluster: Cluster, layouts: Layouts, space: Space) -> Layouts:
    """Those within the bounds and legal, on whole nodes."""
    node = cluster.gpus_per_node
    gpus, batch = layouts.gpus, layouts.global_batch
    whole = (gpus % node == 0) | (gpus < node)
    keep = (gpus <= space.max_gpus) & (batch >= space.least_batch) & (batch <= space.most_batch) & whole
    layouts = layouts.take(keep)
    return layouts.take(legal(model, cluster, layouts)) if len(layouts) else layouts


def _distinct(columns: Ints) -> Ints:
    """The distinct columns of three rows of numbers from 0, in order; sorted as one number each where that fits."""
    if not columns.shape[1]:
        return columns
    _, second, third = (int(row.max()) + 1 for row in columns)
    if (int(columns[0].max()) + 1) * second * third >= 2**63:
        return np.asarray(np.unique(columns, axis=1))
    key, last = np.divmod(np.unique((columns[0] * second + columns[1]) * third + columns[2]), third)
    return np.stack([*np.divmod(key, second), last])


def _whole_nodes(dp: Ints, size: Any, node: int) -> Ints:
    """Replicas of `size` accelerators each, to the nearest number that fills whole nodes; as they are within one."""
    unit = node // np.gcd(size, node)
    aligned = np.maximum(np.rint(dp / unit), 1).astype(np.int64) * unit
    return np.asarray(np.where(dp * size < node, dp, aligned))


def coarse(model: Transformer, cluster: Cluster, fam: Families, space: Space) -> Layouts:
    """Every family along replicas and micro-batches, powers of two; micro-batches in units of the stages."""
    replicas = octaves(1, space.max_gpus, 1)
    units = np.array([0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])
    pp = fam.column("pp")[:, None]
    m = np.unique(np.maximum(np.rint(units[None, :] * pp), 1).astype(np.int64), axis=1)
    size = fam.column("tp") * fam.column("pp") * fam.column("cp")
    f, d, k = np.meshgrid(np.arange(len(fam.table)), np.arange(len(replicas)), np.arange(m.shape[1]), indexing="ij")
    index = f.ravel()
    dp = _whole_nodes(replicas[d.ravel()], size[index], cluster.gpus_per_node)
    steps = m[index, k.ravel()]
    batch = dp * steps * fam.column("micro_batch")[index]
    ok = (dp * size[index] <= space.max_gpus) & (batch >= space.least_batch) & (batch <= space.most_batch)
    triples = _distinct(np.stack([index[ok], dp[ok], steps[ok]]))
    if not triples.shape[1]:
        raise InputError(
            f"no layout of {model.name} has at most {space.max_gpus} GPUs and a batch of {space.least_batch:,.0f} to "
            f"{space.most_batch:,.0f} sequences; give more GPUs or another batch"
        )
    return _legal(model, cluster, _layouts(fam, triples[0], triples[1], triples[2], model, space), space)


def _around(cluster: Cluster, layouts: Layouts, space: Space, batches: Any) -> Ints:
    """Rows of (layout's index, replicas, micro-batches) within an octave of each layout's, shape (3, n)."""
    node, pp = cluster.gpus_per_node, layouts.pp[:, None]
    size = (layouts.tp * layouts.pp * layouts.cp)[:, None]
    dp = np.maximum(np.rint(layouts.dp[:, None] * 2.0 ** np.linspace(-1, 1, 9)), 1).astype(np.int64)
    unit = node // np.gcd(size, node) if space.max_gpus >= node else 1
    most = np.maximum(space.max_gpus // (size * unit), 1) * unit
    dp = np.concatenate([_whole_nodes(dp, size, node), most], axis=1)
    index = np.broadcast_to(np.arange(len(layouts))[:, None], dp.shape)
    aims = [layouts.global_batch[:, None] * f + 0 * dp for f in (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)]
    aims += [np.full_like(dp, b, dtype=np.float64) for b in (*batches, space.most_batch)]
    tables = []
    for aim in aims:
        m = np.maximum(aim / (dp * layouts.micro_batch[:, None]), 1).astype(np.int64)
        for steps in (m, np.maximum(m // pp, 1) * pp):  # interleaving wants multiples of the stages
            tables.append(np.stack([index.ravel(), dp.ravel(), steps.ravel()]))
    return _distinct(np.concatenate(tables, axis=1))


def fine(model: Transformer, cluster: Cluster, layouts: Layouts, space: Space, batches: Any = ()) -> Layouts:
    """Layouts around given ones: other replicas and micro-batches, the sharding next to theirs, larger micro-batches.

    batches: further sequences a step to aim for, such as the critical batch.
    """
    index, replicas, steps = _around(cluster, layouts, space, batches)
    base = np.stack([getattr(layouts, c) for c in COLUMNS], axis=1)
    zero, micro, pipeline = (COLUMNS.index(name) for name in ("zero", "micro_batch", "pp"))
    sharded, alone = base[:, zero] == 3, base[:, pipeline] == 1
    # ZeRO 2 has no family of its own: it is tried from either side, from below where no pipeline forbids it.
    next_to = [~sharded, ~sharded, sharded | alone, sharded]
    out = []
    for stage, near in enumerate(next_to):
        for numerator in (2, 3):
            table = base.copy()
            table[:, zero] = stage
            table[:, micro] = base[:, micro] * numerator // 2
            fam = Families(schedule_names=layouts.schedule_names, table=table)
            k = (near if numerator == 2 else near & (table[:, micro] != base[:, micro]))[index]
            if k.any():
                some = _layouts(fam, index[k], replicas[k], steps[k], model, space)
                out.append(_legal(model, cluster, some, space))
    return Layouts.concatenate(out)
