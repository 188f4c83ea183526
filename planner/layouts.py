"""What can be chosen: a table of layouts, one array element a candidate. One layout is a table of length one.

A table's arrays have shape (n,). A grid's broadcast together: rows along the last axis, and every choice that combines
with all the rows along an axis of its own before it, where its array has the choices and all others have one element.
Cost formulas are elementwise, so what does not depend on a choice is computed once for all of that axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError, UnknownNameError

__all__ = ["ENUMS", "Attention", "Layouts", "Precision", "Recompute", "Split", "choice"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Recompute(IntEnum):
    """Activations recomputed in the backward pass: none, the attention core, or every layer from its input.

    FINE: what is cheap in mixtures and latent attention: norms, the experts' activation function and the products up
    from the latents (Megatron-Core's layernorm, moe_act and mla_up_proj; NVIDIA 2026, arXiv 2603.07685, 4.1.4).
    """

    NONE = 0
    SELECTIVE = 1
    FULL = 2
    FINE = 3


class Attention(IntEnum):
    """The attention kernel; `fused` is a fused scale-mask-softmax that still keeps O(s^2) activations."""

    UNFUSED = 0
    FUSED = 1
    FLASH1 = 2
    FLASH2 = 3
    FLASH3 = 4


class Precision(IntEnum):
    """Number format of the matrix products."""

    FP32 = 0
    TF32 = 1
    FP16 = 2
    BF16 = 3
    FP8 = 4


class Split(IntEnum):
    """How layers go to pipeline stages: an even count, or with embedding and head balanced by cost or by parameters.

    ENDS: embedding and head count as a layer each, so that first and last stage have one fewer (Megatron-LM's
    --account-for-embedding-in-pipeline-split and its like for the loss); with virtual stages too, and with multi-token
    prediction each of its modules one more (DeepSeek-V3's 61 layers as 1, 30 times 2 and none). LAST: the same count,
    rounded up, and on the last virtual stage what is left (DeepSeek-V3's 61 layers as 15 times 4 and 1). PRODUCTS: a
    stage takes layers until those up to it have more than its share of the layers' and the head's products (nanotron).
    """

    EVEN = 0
    BALANCED = 1
    PARAMETERS = 2
    ENDS = 3
    LAST = 4
    PRODUCTS = 5


def usual_etp(dp: Any, tp: Any, cp: Any, ep: Any) -> Ints:
    """Tensor ranks over which an expert is cut where nothing says it: tp, Megatron-Core's default, or 1 where ep is
    more than dp * cp has ranks for."""
    return np.where(np.multiply(dp, cp) % np.maximum(ep, 1) == 0, tp, 1)


E = TypeVar("E", bound=IntEnum)


def choice(kind: type[E], name: str) -> E:
    """The member of an enumeration by its lower-case name.

    Raises:
        UnknownNameError: no member has that name.
    """
    try:
        return kind[name.upper()]
    except KeyError:
        raise UnknownNameError(kind.__name__.lower(), name, [m.name.lower() for m in kind]) from None


ENUMS: Mapping[str, type[IntEnum]] = {
    "recompute": Recompute,
    "attention": Attention,
    "precision": Precision,
    "layer_split": Split,
}


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """A table of layouts, every field but `schedule_names` an array of shape (n,); or a grid (see the module).

    dp, tp, pp, cp, ep: degrees of data, tensor, pipeline, context and expert parallelism; a layout uses
    dp*tp*pp*cp accelerators, expert parallelism lives inside tp*dp*cp.
    etp: tensor ranks over which an expert is cut: tp, and ep within dp*cp; or 1, whole experts on a rank, and ep may
    take tensor ranks in (parallel folding, Liu et al. 2025, arXiv 2504.14960). tp in a dense model.
    micro_batch: sequences per micro-batch and replica; global_batch: sequences per optimizer step.
    schedule: index into `schedule_names`. sequence_slices: parts of a sequence that pass the pipeline one by one.
    zero: 0 replicated, 1 optimizer state, 2 gradients too, 3 parameters too. dp_replicate: copies of what ZeRO shards:
    1 spreads a state over all dp * cp ranks, n over dp * cp / n neighbours each (hybrid sharding: PyTorch's HSDP,
    Megatron-Core's distributed-optimizer instances, MiCS).
    """

    schedule_names: tuple[str, ...]
    schedule: Ints
    dp: Ints
    tp: Ints
    pp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    virtual_stages: Ints
    sequence_slices: Ints
    micro_batch: Ints
    global_batch: Ints
    zero: Ints
    dp_replicate: Ints
    recompute: Ints
    attention: Ints
    precision: Ints
    layer_split: Ints
    sequence_parallel: Bools
    fused_norm: Bools
    offload_optimizer: Bools

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the table, (n,), or of the grid."""
        return np.broadcast_shapes(*(getattr(self, f.name).shape for f in fields(self) if f.name != "schedule_names"))

    def __len__(self) -> int:
        return prod(self.shape)

    @property
    def gpus(self) -> Ints:
        """Accelerators that each layout uses, shape (n,)."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def shards(self) -> Ints:
        """Ranks over which ZeRO shards a state that all replicas share, shape (n,)."""
        return self.dp * self.cp // self.dp_replicate

    @property
    def micro_batches(self) -> Ints:
        """Micro-batches per step and replica, shape (n,)."""
        return self.global_batch // (self.micro_batch * self.dp)

    def take(self, index: Any) -> Layouts:
        """The layouts at an index array, mask or slice; of a grid, its rows there."""
        rows = self.shape[-1]
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "schedule_names"}
        return replace(self, **{name: x[..., index] if x.shape[-1] == rows else x for name, x in columns.items()})

    def at(self, index: tuple[Any, ...]) -> Layouts:
        """A table of a grid's layouts at index arrays, one for each axis, such as `np.nonzero` gives."""
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "schedule_names"}
        return replace(self, **{name: np.broadcast_to(x, self.shape)[index] for name, x in columns.items()})

    def row(self, i: int) -> dict[str, Any]:
        """One layout as plain values with names for the enumerations: what JSON and tables show."""
        out: dict[str, Any] = {}
        for f in fields(self):
            if f.name == "schedule_names":
                continue
            value = getattr(self, f.name)[i].item()
            if f.name == "schedule":
                value = self.schedule_names[value]
            elif f.name in ENUMS:
                value = ENUMS[f.name](value).name.lower()
            out[f.name] = value
        return out

    @staticmethod
    def concatenate(tables: Sequence[Layouts]) -> Layouts:
        """Tables one after the other; all must share `schedule_names`.

        Raises:
            InputError: no table, or tables of different schedule names.
        """
        if not tables or any(t.schedule_names != tables[0].schedule_names for t in tables):
            raise InputError("tables of layouts to join must exist and share their schedule names")
        names = [f.name for f in fields(Layouts) if f.name != "schedule_names"]
        arrays: dict[str, Any] = {n: np.concatenate([getattr(t, n) for t in tables]) for n in names}
        return replace(tables[0], **arrays)

    @staticmethod
    def of(
        *,
        schedule: str | Sequence[str] = "1f1b",
        dp: Any = 1,
        tp: Any = 1,
        pp: Any = 1,
        cp: Any = 1,
        ep: Any = 1,
        etp: Any = None,
        virtual_stages: Any = 1,
        sequence_slices: Any = 1,
        micro_batch: Any = 1,
        global_batch: Any,
        zero: Any = 1,
        dp_replicate: Any = 1,
        recompute: Any = Recompute.NONE,
        attention: Any = Attention.FLASH2,
        precision: Any = Precision.BF16,
        layer_split: Any = Split.EVEN,
        sequence_parallel: Any = False,
        fused_norm: Any = True,
        offload_optimizer: Any = False,
    ) -> Layouts:
        """A table from scalars and arrays, broadcast together; `schedule` is a name or one name a layout.

        etp: None is tp where ep divides dp * cp, else 1 (see `usual_etp`).
        """
        per_layout = [schedule] if isinstance(schedule, str) else list(schedule)
        names = tuple(dict.fromkeys(per_layout))
        code = np.array([names.index(s) for s in per_layout], dtype=np.int64)
        etp = usual_etp(dp, tp, cp, ep) if etp is None else etp
        ints = (dp, tp, pp, cp, ep, etp, virtual_stages, sequence_slices, micro_batch, global_batch, zero,
                dp_replicate)  # fmt: skip
        enums = (recompute, attention, precision, layer_split)
        flags = (sequence_parallel, fused_norm, offload_optimizer)
        arrays = [code, *(np.asarray(x, dtype=np.int64) for x in (*ints, *enums))]
        arrays += [np.asarray(x, dtype=np.bool_) for x in flags]
        out = [np.atleast_1d(a) for a in np.broadcast_arrays(*arrays)]
        keys = [f.name for f in fields(Layouts) if f.name != "schedule_names"]
        return Layouts(schedule_names=names, **dict(zip(keys, out, strict=True)))
