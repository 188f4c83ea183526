"""The space of layouts: every legal choice for a model on a number of accelerators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError, LayoutError
from planner.hardware import Cluster
from planner.layouts import Attention, Layouts, Precision, Recompute, Split
from planner.legality import legal
from planner.models import Transformer
from planner.schedules import SCHEDULES, get_schedule

__all__ = ["Fixed", "default_attention", "default_precision", "enumerate_layouts"]

LEAST_SLICE = 1024  # tokens: shorter sequence slices make products too small to be worth listing
LEAST_TOKENS = 256  # a context-parallel rank with fewer tokens of a sequence is never worth listing


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """What the user has settled: each a tuple of allowed values, or None for every legal one."""

    tp: tuple[int, ...] | None = None
    pp: tuple[int, ...] | None = None
    dp: tuple[int, ...] | None = None
    cp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    micro_batch: tuple[int, ...] | None = None
    virtual_stages: tuple[int, ...] | None = None
    zero: tuple[int, ...] | None = None
    recompute: tuple[Recompute, ...] | None = None
    schedule: tuple[str, ...] | None = None
    sequence_parallel: tuple[bool, ...] | None = None
    layer_split: tuple[Split, ...] | None = None
    offload: bool = False
    allow_async: bool = False


def default_precision(cluster: Cluster) -> Precision:
    """bf16 where the accelerator has it, else fp16, else fp32."""
    for p in (Precision.BF16, Precision.FP16):
        if p.name.lower() in cluster.accelerator.peak_flops:
            return p
    return Precision.FP32


def default_attention(cluster: Cluster) -> Attention:
    """flash3 where the accelerator runs it faster than flash2, else flash2."""
    e = cluster.accelerator.efficiency
    faster = e.flash_forward.get("flash3", 0.0) > e.flash_forward.get("flash2", 0.0)
    return Attention.FLASH3 if faster else Attention.FLASH2


def divisors(n: int) -> list[int]:
    """The divisors of n, ascending."""
    small = [i for i in range(1, int(n**0.5) + 1) if n % i == 0]
    return sorted({*small, *(n // i for i in small)})


def _allowed(values: list[int], fixed: tuple[int, ...] | None) -> list[int]:
    return values if fixed is None else [v for v in values if v in fixed]


def degrees(model: Transformer, gpus: int, global_batch: int, fixed: Fixed) -> list[tuple[int, int, int, int, int]]:
    """Every (dp, tp, pp, cp, ep) whose product is the number of accelerators and that divides what it must."""
    out = []
    ways = divisors(gpus)
    longest = model.seq_len // LEAST_TOKENS
    for tp in _allowed([d for d in ways if model.num_heads % d == 0], fixed.tp):
        for pp in _allowed([d for d in ways if d <= model.num_layers and gpus % (tp * d) == 0], fixed.pp):
            rest = gpus // (tp * pp)
            for cp in _allowed([d for d in divisors(rest) if d == 1 or d <= longest], fixed.cp):
                dp = rest // cp
                if global_batch % dp or (fixed.dp is not None and dp not in fixed.dp):
                    continue
                if cp > 1 and model.seq_len % (2 * cp):
                    continue
                experts = [e for e in divisors(dp * cp) if model.num_experts % e == 0] if model.num_experts else [1]
                out += [(dp, tp, pp, cp, ep) for ep in _allowed(experts, fixed.ep)]
    return out


def default_schedules(allow_async: bool = False) -> tuple[str, ...]:
    """What is searched unless schedules are named: all whose closed form is quick; asynchronous ones where allowed."""
    return tuple(name for name, s in SCHEDULES.items() if s.quick and (s.synchronous or allow_async))


def _runs(model: Transformer, pp: int, names: tuple[str, ...], fixed: Fixed) -> list[tuple[int, int, int]]:
    """(schedule's number, virtual stages, sequence slices) of a pipeline: what each schedule may have."""
    number = list(range(len(names)))
    if pp == 1:
        # Without a pipeline only the order of layers and micro-batches is left to choose.
        number = [names.index(n) for n in ("1f1b", "layered") if n in names] or [0]
    layers = model.num_layers // pp if model.num_layers % pp == 0 else 1
    out = []
    for i in number:
        schedule = get_schedule(names[i])
        chunks = [1] if pp == 1 and not schedule.one_layer_chunks else divisors(layers)
        if schedule.one_layer_chunks:
            chunks = [layers] if layers * pp == model.num_layers else []
        elif schedule.chunks is not None:
            chunks = [schedule.chunks] if layers % schedule.chunks == 0 else []
        slices = [1]
        if schedule.sliced:
            slices = [k for k in (2, 4, 8, 16) if model.seq_len % k == 0 and model.seq_len // k >= LEAST_SLICE]
        out += [(i, v, k) for v in _allowed(chunks, fixed.virtual_stages) for k in slices]
    return out


def _choices(
    model: Transformer,
    attention: Attention,
    global_batch: int,
    degree: tuple[int, int, int, int, int],
    fixed: Fixed,
    names: tuple[str, ...],
) -> list[NDArray[np.int64]]:
    """Rows of the remaining choices of one set of degrees, in the order that `_from_grid` unpacks."""
    dp, tp, pp, cp, _ = degree
    micro = _allowed(divisors(global_batch // dp), fixed.micro_batch)
    modes = [Recompute.NONE, Recompute.FULL]
    if attention < Attention.FLASH1:
        modes.insert(1, Recompute.SELECTIVE)
    if fixed.recompute is not None:
        modes = list(fixed.recompute)
    sequence = [False, True] if tp > 1 else [False]
    if fixed.sequence_parallel is not None:
        sequence = [s for s in sequence if s in fixed.sequence_parallel or tp == 1]
    offload = [False, True] if fixed.offload else [False]
    rows: list[NDArray[np.int64]] = []
    for i, v, k in _runs(model, pp, names, fixed):
        schedule = get_schedule(names[i])
        sharded = pp == 1 or schedule.layer_at_a_time
        sharding = _allowed([0] if dp * cp == 1 else ([0, 1, 2, 3] if sharded else [0, 1]), fixed.zero)
        splits = [Split.EVEN] if pp == 1 or v > 1 else [Split.EVEN, Split.BALANCED]
        if fixed.layer_split is not None:
            splits = [s for s in splits if s in fixed.layer_split or pp == 1]
        kept = [mode for mode in modes if not (schedule.splits_backward and mode == Recompute.FULL)]
        columns = ([i], [v], [k], micro, kept, sharding, sequence, splits, offload)
        grid = np.meshgrid(*(np.array(c, dtype=np.int64) for c in columns), indexing="ij")
        rows.append(np.stack(grid, axis=-1).reshape(-1, len(columns)))
    return rows


def enumerate_layouts(
    model: Transformer,
    cluster: Cluster,
    *,
    gpus: int,
    global_batch: int,
    precision: Precision,
    attention: Attention,
    fixed: Fixed,
) -> Layouts:
    """Every legal layout, within what is fixed. Without a pipeline the schedule is called 1f1b.

    Raises:
        InputError: numbers out of range.
        LayoutError: no layout is legal, with a number of accelerators near by that has one.
    """
    for name, value in (("gpus", gpus), ("global_batch", global_batch)):
        if not 1 <= value <= 10_000_000:
            raise InputError(f"{name} is {value}; allowed: a whole number from 1 to 10000000")
    if cluster.max_gpus is not None and gpus > cluster.max_gpus:
        raise InputError(f"gpus is {gpus}; allowed: up to the {cluster.max_gpus} of cluster {cluster.name}")
    schedules = tuple(fixed.schedule or default_schedules(fixed.allow_async))
    tables = []
    for degree in degrees(model, gpus, global_batch, fixed):
        rows = _choices(model, attention, global_batch, degree, fixed, schedules)
        if rows:
            grid = np.concatenate(rows)
            tables.append(np.hstack([np.tile(np.array(degree), (len(grid), 1)), grid]))
    if tables:
        layouts = _from_grid(np.vstack(tables), schedules, global_batch, precision, attention)
        layouts = layouts.take(legal(model, cluster, layouts))
        if len(layouts):
            return layouts
    near = _nearby(model, cluster, gpus, global_batch, fixed)
    hint = f"a legal number near by is {near}" if near else "give a batch with more divisors, or fix less"
    raise LayoutError(
        f"no legal layout of {model.name} on gpus {gpus} with global_batch {global_batch}"
        f"{' and what is fixed' if fixed != Fixed() else ''}; {hint}"
    )


def _from_grid(
    grid: Any, schedules: tuple[str, ...], global_batch: int, precision: Precision, attention: Attention
) -> Layouts:
    """A table of layouts from rows of degrees, schedule code and choices."""
    dp, tp, pp, cp, ep, code, chunks, slices, micro, mode, zero, sequence, split, offload = grid.T
    n = len(grid)
    return Layouts(
        schedule_names=schedules, schedule=code, dp=dp, tp=tp, pp=pp, cp=cp, ep=ep,
        virtual_stages=chunks, sequence_slices=slices, micro_batch=micro,
        global_batch=np.full(n, global_batch), zero=zero,
        recompute=mode, attention=np.full(n, int(attention)), precision=np.full(n, int(precision)),
        layer_split=split, sequence_parallel=sequence.astype(bool), fused_norm=np.ones(n, dtype=bool),
        offload_optimizer=offload.astype(bool),
    )  # fmt: skip


def _nearby(model: Transformer, cluster: Cluster, gpus: int, global_batch: int, fixed: Fixed) -> int | None:
    """A number of accelerators close to the one asked for that has legal degrees."""
    for step in range(1, 257):
        for n in (gpus - step, gpus + step):
            if 1 <= n <= (cluster.max_gpus or n) and degrees(model, n, global_batch, fixed):
                return n
    return None
