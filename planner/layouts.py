"""A table of layouts: each choice is an array with one element per candidate. One layout is a table of length one.

A table's arrays have shape (n,). A grid's broadcast together: rows along the last axis, and every choice that combines
with all the rows along an axis of its own before it, where its array has the choices and all others have one element.
Cost formulas are elementwise, so what does not depend on a choice is computed once for all of that axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np

from planner.base import records
from planner.base.arrays import Array, Bools, Ints, record
from planner.base.errors import InputError
from planner.choices.enumerations import (
    Attention,
    Dispatcher,
    GradDtype,
    MainDtype,
    Number,
    OptimizerKind,
    Precision,
    Recompute,
    Split,
    choice,
)
from planner.choices.table import CHOICES, TEXTS

__all__ = [
    "Attention", "Dispatcher", "GradDtype", "Layouts", "MainDtype", "OptimizerKind", "Precision", "Recompute", "Split",
    "choice",
]  # fmt: skip


# numpy asks the class of what it compares for this, and Python takes five times a comparison's time to say it has none.
Number.__array_ufunc__ = np.ndarray.__array_ufunc__  # type: ignore[attr-defined]

DTYPES: Mapping[type, Any] = {bool: np.bool_, float: np.float64}
"""Array types of the columns that aren't whole numbers."""


def usual_etp(dp: Any, tp: Any, cp: Any, ep: Any) -> Ints:
    """Tensor ranks over which an expert is cut where nothing says it: tp, Megatron-Core's default, or 1 where ep is
    more than dp * cp has ranks for."""
    return np.where(np.multiply(dp, cp) % np.maximum(ep, 1) == 0, tp, 1)


@record
class Layouts:
    """A table of layouts, every field but names an array of shape (n,); or a grid (see the module).

    The columns are those of `CHOICES`, in its order.
    dp, tp, pp, cp, ep: degrees of data, tensor, pipeline, context and expert parallelism; a layout uses
    dp*tp*pp*cp accelerators, expert parallelism lives inside tp*dp*cp.
    ulysses: context ranks, neighbours, that exchange heads for tokens in all-to-alls (DeepSpeed-Ulysses, Jacobs et al.
    2023, arXiv 2309.14509); keys and values pass around a ring of the cp / ulysses others: 1 a ring alone, cp none.
    inner_ring: of those, neighbours that pass keys and values around a ring of their own while they go on to the next
    such ring too (double ring attention, Gu et al. 2024, arXiv 2406.18485); 1 one ring of all.
    etp: tensor ranks over which an expert is cut: tp, and ep within dp*cp; or 1, whole experts on a rank, and ep may
    take tensor ranks in (parallel folding, Liu et al. 2025, arXiv 2504.14960). tp in a dense model.
    micro_batch: sequences per micro-batch and replica; global_batch: sequences per optimizer step.
    schedule, pipeline_layout: index into their names; pipeline_layout "" leaves the stages to `layer_split`.
    sequence_slices: parts of a sequence that pass the pipeline one by one.
    recompute_layers: with full recomputation, how many layers of each virtual stage are repeated, its first ones
    (Megatron-LM's --recompute-method block, arXiv 2205.05198); 0 all.
    cuda_graphs: the host launches a layer's pass at once, where the layer is not recomputed whole (`graphed`).
    offload_fraction: of the optimizer's state, where offload_optimizer keeps it in host memory; the host updates it.
    offload_parameters: where ZeRO 3 shards parameters, a rank's shard waits in host memory for every gather.
    offload_layers: of each virtual stage the first ones behind recompute_layers, whose activations wait in host memory
    for their backward pass.
    offload_modules: what waits there of every layer but a virtual stage's last (`planner.choices.offload`).
    zero: 0 replicated, 1 optimizer state, 2 gradients too, 3 parameters too. dp_replicate: copies of what ZeRO shards:
    1 spreads a state over all dp * cp ranks, n over dp * cp / n neighbours each (hybrid sharding: PyTorch's HSDP,
    Megatron-Core's distributed-optimizer instances, MiCS).
    train: all of the model, or adapters, as a number (`planner.choices.training`).
    """

    schedule_names: tuple[str, ...]
    pipeline_layout_names: tuple[str, ...] = ("",)
    schedule: Ints
    dp: Ints
    tp: Ints
    pp: Ints
    cp: Ints
    ulysses: Ints
    inner_ring: Ints
    ep: Ints
    etp: Ints
    virtual_stages: Ints
    sequence_slices: Ints
    micro_batch: Ints
    global_batch: Ints
    zero: Ints
    dp_replicate: Ints
    sequence_parallel: Bools
    recompute: Ints
    recompute_layers: Ints
    attention: Ints
    precision: Ints
    layer_split: Ints
    pipeline_layout: Ints
    fused_norm: Bools
    cuda_graphs: Bools
    offload_optimizer: Bools
    offload_fraction: Array
    offload_parameters: Bools
    offload_layers: Ints
    offload_modules: Ints
    grad_dtype: Ints
    grad_reduce_dtype: Ints
    main_dtype: Ints
    optimizer: Ints
    dispatcher: Ints
    expert_imbalance: Array
    capacity_factor: Array
    train: Ints

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the table, (n,), or of the grid."""
        return np.broadcast_shapes(*(getattr(self, name).shape for name in CHOICES))

    def __len__(self) -> int:
        return prod(self.shape)

    @cached_property
    def rows_of_schedules(self) -> dict[int, Any]:
        """The rows of each schedule that there is: a slice where they lie together, else their indices."""
        out: dict[int, Any] = {}
        for i in np.flatnonzero(np.bincount(self.schedule)).tolist():
            rows = np.flatnonzero(self.schedule == i)
            start, end = int(rows[0]), int(rows[-1]) + 1
            out[i] = slice(start, end) if end - start == len(rows) else rows
        return out

    @cached_property
    def gpus(self) -> Ints:
        """Accelerators that each layout uses, shape (n,)."""
        return self.dp * self.tp * self.pp * self.cp

    @cached_property
    def shards(self) -> Ints:
        """Ranks over which ZeRO shards a state that all replicas share, shape (n,)."""
        return np.asarray(np.maximum(self.dp * self.cp // self.dp_replicate, 1))

    @cached_property
    def expert_replicas(self) -> Ints:
        """Replicas of an expert: of the ranks that share the layers, those that do not hold other experts or parts."""
        return np.asarray(np.maximum(self.tp * self.dp * self.cp // np.maximum(self.etp * self.ep, 1), 1))

    @cached_property
    def expert_shards(self) -> Ints:
        """Ranks over which ZeRO shards an expert's state, shape (n,)."""
        return np.asarray(np.maximum(self.expert_replicas // self.dp_replicate, 1))

    @cached_property
    def state_shards(self) -> dict[int, tuple[Ints, Ints]]:
        """Ranks that share a state, and an expert's state, by the ZeRO stage that first shards it; shape (n,)."""
        whole = {stage: self.zero < stage for stage in (1, 2, 3)}
        return {
            stage: (np.where(one, 1, self.shards), np.where(one, 1, self.expert_shards)) for stage, one in whole.items()
        }

    @cached_property
    def all_in_bf16(self) -> Bools:
        """Whether weights, gradients and moments are in bf16 alone, boolean of shape (n,)."""
        return np.asarray(self.main_dtype == MainDtype.BF16)

    @cached_property
    def micro_batches(self) -> Ints:
        """Micro-batches per step and replica, shape (n,)."""
        return self.global_batch // (self.micro_batch * self.dp)

    @cached_property
    def host_share(self) -> Array:
        """The share of the optimizer's state that host memory keeps, shape (n,)."""
        return np.asarray(np.where(self.offload_optimizer, self.offload_fraction, 0.0))

    def take(self, index: Any) -> Layouts:
        """The layouts at an index array, mask or slice; of a grid, its rows there."""
        return records.take(self, index, self.shape[-1])

    def framework_dispatched(self) -> Layouts:
        """The same layouts, whose tokens get to their experts as the framework sends them."""
        return replace(self, dispatcher=np.full_like(self.dispatcher, Dispatcher.FRAMEWORK))

    def at(self, index: tuple[Any, ...]) -> Layouts:
        """A table of a grid's layouts at index arrays, one for each axis, such as `np.nonzero` gives."""
        return records.mapped(self, lambda x: np.broadcast_to(x, self.shape)[index])

    def row(self, i: int) -> dict[str, Any]:
        """One layout as plain values with names for the enumerations: what JSON and tables show."""
        plain = {name: choice.plain(getattr(self, name)[i].item()) for name, choice in CHOICES.items()}
        return plain | {name: getattr(self, f"{name}_names")[plain[name]] for name in TEXTS}

    @staticmethod
    def concatenate(tables: Sequence[Layouts]) -> Layouts:
        """Tables one after the other, of the schedules and pipeline layouts of all of them.

        Raises InputError if there is no table.
        """
        if not tables:
            raise InputError("there must be a table of layouts to join")
        return records.concatenate(Layouts.alike(tables))

    @staticmethod
    def alike(tables: Sequence[Layouts]) -> list[Layouts]:
        """The tables with the same names, those of all of them."""
        out = list(tables)
        for text in TEXTS:
            names = tuple(dict.fromkeys(name for table in tables for name in getattr(table, f"{text}_names")))
            out = [table._renumbered(text, names) for table in out]
        return out

    def _renumbered(self, text: str, names: tuple[str, ...]) -> Layouts:
        """The same layouts with other names of a choice, which hold all of the layouts' own."""
        own: tuple[str, ...] = getattr(self, f"{text}_names")
        if names == own:
            return self
        number = np.array([names.index(name) for name in own], dtype=np.int64)
        changed: dict[str, Any] = {f"{text}_names": names, text: number[getattr(self, text)]}
        return replace(self, **changed)

    @staticmethod
    def of(*, global_batch: Any, etp: Any = None, **choices: Any) -> Layouts:
        """A table from scalars and arrays, broadcast together.

        choices: other columns; those that aren't given have their defaults. schedule and pipeline_layout are a text or
        one per layout.
        etp: None is tp where ep divides dp * cp, else 1 (see `usual_etp`).
        """
        columns = {name: choice.default for name, choice in CHOICES.items()}
        if unknown := sorted(set(choices) - set(columns)):
            raise TypeError(f"{unknown[0]} is no choice of a layout; there are {', '.join(columns)}")
        columns |= choices | {"global_batch": global_batch}
        names: dict[str, Any] = {}
        for text in TEXTS:
            per_layout = [columns[text]] if isinstance(columns[text], str) else list(columns[text])
            known = names[f"{text}_names"] = tuple(dict.fromkeys(per_layout))
            columns[text] = [known.index(name) for name in per_layout]
        usual = usual_etp(columns["dp"], columns["tp"], columns["cp"], columns["ep"])
        columns["etp"] = usual if etp is None else etp
        arrays = [np.asarray(x, dtype=DTYPES.get(CHOICES[name].kind, np.int64)) for name, x in columns.items()]
        out = [np.atleast_1d(a) for a in np.broadcast_arrays(*arrays)]
        names |= dict(zip(columns, out, strict=True))
        return Layouts(**names)

    @staticmethod
    def of_rows(rows: Sequence[Mapping[str, Any]]) -> Layouts:
        """A table from records of the same choices, such as `row` gives.

        Raises InputError if a value is of another kind or out of range, UnknownNameError for a name that an enumeration
        has not.
        """
        return Layouts.of(**{name: _coded(name, [row[name] for row in rows]) for name in rows[0]})


def _coded(name: str, values: list[Any]) -> list[Any]:
    """A choice's values as arrays hold them; each that occurs is read once."""
    read = CHOICES[name].coded
    try:
        known = lru_cache(None, typed=True)(read)  # True is no 1, nor is 1.0
        return [known(value) for value in values]
    except TypeError:  # a list or a table, which has no hash: `read` says what is allowed
        return [read(value) for value in values]
