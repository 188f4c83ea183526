"""The joint space of accelerators, batch and layout: families of layouts, each along replicas and micro-batches.

A family fixes all but the replicas dp and the micro-batches m; the accelerators are then dp tp pp cp and the batch
dp m micro_batch, legal by construction. What a family may choose is what `planner.search.space` allows; few of each
choice are tried, for they only have to find the accelerators and batches that are worth a search of every choice.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, product
from typing import Any

import numpy as np

from planner.base.arrays import Ints
from planner.base.errors import InputError, LayoutError, UnknownNameError
from planner.choices.table import AXES, CHOICES, NUMERICS
from planner.hardware import Cluster
from planner.layouts import DTYPES, Attention, Layouts, Recompute
from planner.models import Transformer, counts
from planner.schedules import get_schedule
from planner.search.grids import ROW, Axes
from planner.search.request import LEAST_TOKENS, Fixed, Request, divisors
from planner.search.space import allows, runs_of, sequence_choices
from planner.step.legality import legal

KINDS: Mapping[str, tuple[bool, bool]] = {
    "data": (False, False),
    "data+tensor": (True, False),
    "data+pipeline": (False, True),
    "3d": (True, True),
}
"""The kinds of parallelism beside data parallelism: whether tensor ranks, whether pipeline stages."""
TRIED_SCHEDULES = ("1f1b", "interleaved", "breadth-first")
MOST_TOKENS = 65_536  # of a micro-batch that is tried, where it has more than eight sequences
TRIED: Mapping[tuple[str, ...], tuple[tuple[int, ...], ...]] = {
    ("recompute",): ((Recompute.NONE,), (Recompute.FULL,)),
    ("zero", "dp_replicate"): ((1, 1), (2, 1), (3, 1)),
}
"""Values of some axes that are tried, where the question allows them."""
COLUMNS = (*(name for name in ROW if name != "dp"), *chain(*AXES))


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A named way to combine parallelism, with the choices that it settles."""

    name: str
    settles: Mapping[str, tuple[Any, ...]]

    def within(self, fixed: Fixed) -> Fixed:
        """The user's settled choices joined with the strategy's.

        Raises InputError if the user has settled one of them too.
        """
        for key, values in self.settles.items():
            if getattr(fixed, key) not in (None, values):
                raise InputError(f"{key} is given, and settled by strategy {self.name}; leave one of them out")
        settles: dict[str, Any] = dict(self.settles)
        return replace(fixed, **settles)


def strategy(text: str) -> Strategy:
    """A strategy from its name: a kind, or kind:schedule, such as 3d:modular.

    Raises UnknownNameError if there is no such kind or schedule.
    """
    kind, _, schedule = text.partition(":")
    if kind not in KINDS:
        raise UnknownNameError("strategy", kind, KINDS)
    settles: dict[str, tuple[Any, ...]] = {"schedule": (get_schedule(schedule).name,)} if schedule else {}
    for key, may in zip(("tp", "pp"), KINDS[kind], strict=True):
        settles |= {} if may else {key: (1,)}
    return Strategy(name=text, settles=settles)


@dataclass(frozen=True, kw_only=True)
class JobSizes:
    """The bounds of a search: most and least accelerators, least and most sequences a batch."""

    max_gpus: int
    least_gpus: int
    least_batch: float
    most_batch: float


@dataclass(frozen=True, kw_only=True)
class Families:
    """Families of layouts: an integer table with a row a family, columns as COLUMNS; `schedule` indexes the names."""

    schedule_names: tuple[str, ...]
    table: Ints

    def column(self, name: str) -> Ints:
        """One column, shape (families,)."""
        return np.asarray(self.table[:, COLUMNS.index(name)])


def octaves(low: float, high: float, per_octave: int) -> Ints:
    """Whole numbers from low to high, about `per_octave` an octave, powers of two among them."""
    if high < 1 or high < low:
        return np.array([], dtype=np.int64)
    exponents = np.arange(np.floor(np.log2(max(low, 1.0))) * per_octave, np.ceil(np.log2(high)) * per_octave + 1)
    values = np.unique(np.rint(2.0 ** (exponents / per_octave)).astype(np.int64))
    return values[(values >= low) & (values <= high)]


def _few_runs(runs: Ints) -> Ints:
    """Runs with the least, the most and one number of virtual stages between, two or more where a schedule can."""
    kept = []
    for schedule, slices in sorted({(int(s), int(k)) for s, _, k in runs}):
        rows = runs[(runs[:, 0] == schedule) & (runs[:, 2] == slices)]
        rows = rows[1:] if len(rows) > 1 and rows[0, 1] == 1 else rows
        kept.append(rows[sorted({0, len(rows) // 2, len(rows) - 1})])
    return np.concatenate(kept)


def _degrees(
    model: Transformer, cluster: Cluster, request: Request, max_gpus: int
) -> Iterator[tuple[int, int, int, int, int]]:
    """tp, pp, cp, ep and etp worth a look."""
    fixed, heads, sequence, layers = request.fixed, int(model.num_heads), int(model.seq_len), int(model.num_layers)
    tensor = [d for d in divisors(heads) if d <= min(max(cluster.gpus_per_node, 8), 1024)]
    if len(tensor) > 12:  # a wide node: octaves suffice
        tensor = [d for d in tensor if d & (d - 1) == 0] or tensor[:8]
    context = [c for c in (1, 2, 4, 8) if c == 1 or (sequence % (2 * c) == 0 and sequence // c >= LEAST_TOKENS)]
    if request.attention < Attention.FLASH1:
        context = [1]
    experts = [e for e in (1, 4, 16, 64) if int(model.num_experts) % e == 0] if model.num_experts else [1]
    stages = sorted({*divisors(layers), *(2**a for a in range(12) if 2**a <= layers)})
    stages = [n for n in stages if n > fixed.pipelined]
    for tp, pp, cp in product(fixed.tp or tensor, fixed.pp or stages, fixed.cp or context):
        cuts = [1] if model.num_experts and sequence % (tp * cp) == 0 else [tp]
        if tp * pp * cp <= max_gpus:
            yield from ((tp, pp, cp, ep, etp) for ep, etp in product(fixed.ep or experts, fixed.etp or cuts))


def families(model: Transformer, cluster: Cluster, request: Request, sizes: JobSizes) -> Families:
    """Families within what is settled whose 16-bit weights and gradients can fit: 4 bytes per parameter, replicated.

    request: its accelerators and batch don't matter.
    """
    names, layers = request.fixed.schedule or TRIED_SCHEDULES, int(model.num_layers)
    micro = request.fixed.micro_batch or octaves(1, max(MOST_TOKENS // int(model.seq_len), 8), 1).tolist()

    @cache
    def runs(pp: int, sequence: tuple[int, ...]) -> list[tuple[Ints, Axes]]:
        out = []
        for axes, rows in runs_of(model, request, names, pp, sequence).items():
            tried = [tuple(x for x in axis.values if x in TRIED.get(axis.names, axis.values)) for axis in axes]
            few = [axis._replace(values=some or axis.values) for axis, some in zip(axes, tried, strict=True)]
            split = slice(1) if layers % pp == 0 else slice(-1, None)
            even = [a._replace(values=a.values[split]) if a.names == ("layer_split",) else a for a in few]
            out.append((_few_runs(rows), tuple(even)))
        return out

    rows = []
    for tp, pp, cp, ep, etp in _degrees(model, cluster, request, sizes.max_gpus):
        allowed = sequence_choices(tp, etp, request.fixed)
        sequence = tuple(s for s in allowed if not s or int(model.seq_len) % (tp * cp) == 0)[-1:]
        for some, axes in runs(pp, sequence) if sequence else ():
            for run, mb, *values in product(some, micro, *(axis.values for axis in axes)):
                rows.append((tp, pp, cp, ep, etp, *run, mb, *chain(*values)))
    table = np.array(rows, dtype=np.int64).reshape(-1, len(COLUMNS))
    found = Families(schedule_names=names, table=table)
    share = found.column("tp") * found.column("pp") * found.column("ep")
    fits = 4.0 * float(counts.total_params(model)) / share <= cluster.accelerator.memory_bytes
    return replace(found, table=table[fits | (found.column("zero") == 3)])


def _layouts(fam: Families, index: Ints, dp: Ints, m: Ints, request: Request) -> Layouts:
    """One layout for each (family, dp, m), arrays of shape (n,), or of one element where all have the same."""
    columns: dict[str, Any] = {"dp": dp, "global_batch": dp * m * fam.column("micro_batch")[index]}
    same = {name: getattr(request, name) for name in NUMERICS} | dict(request.fixed.shared)
    for name, choice in CHOICES.items():
        if name in COLUMNS:
            own = fam.column(name).astype(DTYPES.get(choice.kind, np.int64))
            columns[name] = own[index] if name in ROW or np.any(own != own[0]) else own[:1]
        elif name not in columns:
            columns[name] = np.array([same.get(name, 0 if choice.kind is str else choice.default)])
    return Layouts(schedule_names=fam.schedule_names, **columns)


def _legal(model: Transformer, cluster: Cluster, layouts: Layouts, request: Request, sizes: JobSizes) -> Layouts:
    """The layouts that are legal, on whole nodes, and within the bounds and what is settled."""
    node = cluster.gpus_per_node
    gpus, batch = layouts.gpus, layouts.global_batch
    whole = (gpus % node == 0) | (gpus < node)
    keep = (
        (gpus <= sizes.max_gpus)
        & (gpus >= sizes.least_gpus)
        & (batch >= sizes.least_batch)
        & (batch <= sizes.most_batch)
        & whole
    )
    return layouts.take(np.flatnonzero(keep & allows(request.fixed, layouts) & legal(model, cluster, layouts)))


def _distinct(columns: Ints) -> Ints:
    """The distinct columns of three rows of numbers from 0, in order; sorted as one number each where that fits."""
    if not columns.shape[1]:
        return columns
    _, second, third = (int(row.max()) + 1 for row in columns)
    if (int(columns[0].max()) + 1) * second * third >= 2**63:
        return np.asarray(np.unique(columns, axis=1))
    keys = np.sort((columns[0] * second + columns[1]) * third + columns[2])  # np.unique hashes, which takes longer
    key, last = np.divmod(keys[np.r_[True, keys[1:] != keys[:-1]]], third)
    return np.stack([*np.divmod(key, second), last])


def _whole_nodes(dp: Ints, size: Any, node: int) -> Ints:
    """Replicas of `size` accelerators each, to the nearest number that fills whole nodes; as they are within one."""
    unit = node // np.gcd(size, node)
    aligned = np.maximum(np.rint(dp / unit), 1).astype(np.int64) * unit
    return np.asarray(np.where(dp * size < node, dp, aligned))


def coarse(model: Transformer, cluster: Cluster, fam: Families, request: Request, sizes: JobSizes) -> Layouts:
    """Every family along replicas and micro-batches, powers of two; micro-batches in units of the stages."""
    replicas = octaves(1, sizes.max_gpus, 1)
    units = np.array([0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])
    pp = fam.column("pp")[:, None]
    m = np.maximum(np.rint(units[None, :] * pp), 1).astype(np.int64)
    size = fam.column("tp") * fam.column("pp") * fam.column("cp")
    index, replica = (axis.ravel() for axis in np.indices((len(size), len(replicas))))
    dp = _whole_nodes(replicas[replica], size[index], cluster.gpus_per_node)
    gpus = dp * size[index]
    within = np.flatnonzero((gpus <= sizes.max_gpus) & (gpus >= sizes.least_gpus))
    index, dp = (np.repeat(rows[within], m.shape[1]) for rows in (index, dp))
    steps = m[index[:: m.shape[1]]].ravel()
    batch = dp * steps * fam.column("micro_batch")[index]
    ok = (batch >= sizes.least_batch) & (batch <= sizes.most_batch)
    triples = _distinct(np.stack([index[ok], dp[ok], steps[ok]]))
    if not triples.shape[1]:
        raise LayoutError(
            f"no layout of {model.name} has at most {sizes.max_gpus} GPUs and a batch of {sizes.least_batch:,.0f} to "
            f"{sizes.most_batch:,.0f} sequences; give more GPUs or another batch"
        )
    return _legal(model, cluster, _layouts(fam, triples[0], triples[1], triples[2], request), request, sizes)


def _around(cluster: Cluster, layouts: Layouts, sizes: JobSizes, batches: Any) -> Ints:
    """Rows of (layout's index, replicas, micro-batches) within an octave of each layout's, shape (3, n)."""
    node, pp = cluster.gpus_per_node, layouts.pp[:, None]
    size = (layouts.tp * layouts.pp * layouts.cp)[:, None]
    dp = np.maximum(np.rint(layouts.dp[:, None] * 2.0 ** np.linspace(-1, 1, 9)), 1).astype(np.int64)
    unit = node // np.gcd(size, node) if sizes.max_gpus >= node else 1
    most = np.maximum(sizes.max_gpus // (size * unit), 1) * unit
    dp = np.concatenate([_whole_nodes(dp, size, node), most], axis=1)
    index = np.broadcast_to(np.arange(len(layouts))[:, None], dp.shape)
    aims = [layouts.global_batch[:, None] * f + 0 * dp for f in (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)]
    aims += [np.full_like(dp, b, dtype=np.float64) for b in (*batches, sizes.most_batch)]
    tables = []
    for aim in aims:
        m = np.maximum(aim / (dp * layouts.micro_batch[:, None]), 1).astype(np.int64)
        for steps in (m, np.maximum(m // pp, 1) * pp):  # interleaving wants multiples of the stages
            tables.append(np.stack([index.ravel(), dp.ravel(), steps.ravel()]))
    return _distinct(np.concatenate(tables, axis=1))


def fine(
    model: Transformer, cluster: Cluster, layouts: Layouts, request: Request, sizes: JobSizes, batches: Any = ()
) -> Layouts:
    """Layouts around given ones: other replicas and micro-batches.

    batches: further sequences per step to aim for, such as the critical batch.
    """
    index, replicas, steps = _around(cluster, layouts, sizes, batches)
    table = np.stack([getattr(layouts, name).astype(np.int64) for name in COLUMNS], axis=1)
    fam = Families(schedule_names=layouts.schedule_names, table=table)
    return _legal(model, cluster, _layouts(fam, index, replicas, steps, request), request, sizes)
