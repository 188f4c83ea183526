"""A search's question besides model and cluster: accelerators, batch, numerics, and what the user has settled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from math import prod
from typing import Any, TypeVar

from planner.base.errors import InputError
from planner.choices.table import DEGREES, SETTLED
from planner.hardware import Cluster, Framework
from planner.hardware.declared import FLASH
from planner.layouts import Attention, Precision, Split, choice

Value = TypeVar("Value", bound=int)
Broken = tuple[tuple[str, Callable[[Any], Any]], ...]
MIXED: Broken = (
    ("no framework here offloads some layers and recomputes others (--any-framework searches it, without an export)",
     lambda x: (x.offload_layers > 0) & (x.recompute_layers > 0)),
)  # fmt: skip
"""Whole layers of both kinds, which Megatron-LM refuses (transformer_config.py): no search recommends it unasked."""
LEAST_TOKENS = 256  # a context-parallel rank with fewer tokens of a sequence is never worth listing


@dataclass(frozen=True, kw_only=True, init=False)
class Fixed:
    """Choices that the user has settled: each a tuple of allowed values, or None for every legal one.

    settled: the tuples by name, a choice of `SETTLED` each; `Fixed(tp=(2, 4)).tp` is one of them.
    excluded: choices, each with a value that it may not have. never: rules of a framework's own, each with the function
    that says where a table of layouts breaks it. shared: choices, each with the value that all layouts
    have. pipelined: two stages or more, for a schedule was named. offload, allow_async: states and activations in host
    memory, and asynchronous schedules, may be searched too.
    """

    settled: Mapping[str, tuple[Any, ...]]
    excluded: tuple[tuple[str, int], ...]
    never: Broken
    shared: tuple[tuple[str, Any], ...]
    pipelined: bool
    offload: bool
    allow_async: bool

    def __init__(
        self, *, settled: Mapping[str, tuple[Any, ...]] | None = None, excluded: tuple[tuple[str, int], ...] = (),
        never: Broken = (), shared: tuple[tuple[str, Any], ...] = (), pipelined: bool = False, offload: bool = False,
        allow_async: bool = False, **choices: tuple[Any, ...] | None,
    ) -> None:  # fmt: skip
        """choices: by the names of `SETTLED`, in place of those that are `settled` already.

        Raises TypeError if there is no such choice.
        """
        if unknown := [name for name in choices if name not in SETTLED]:
            raise TypeError(f"{unknown[0]} is no choice that can be settled; there are {', '.join(SETTLED)}")
        both = {**(settled or {}), **choices}
        vars(self).update(
            settled={name: both[name] for name in SETTLED if both.get(name) is not None},
            excluded=excluded, never=never, shared=shared, pipelined=pipelined, offload=offload,
            allow_async=allow_async,
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        if name in SETTLED:
            return self.settled.get(name)
        raise AttributeError(f"{type(self).__name__} has no {name}")

    def without(self, *never: tuple[str, Callable[[Any], Any]]) -> Fixed:
        """The same, held to more of a framework's own rules."""
        return replace(self, never=(*self.never, *never))

    @property
    def train(self) -> int:
        """What is trained: everything (0), or adapters, as of `planner.choices.training`."""
        return int(dict(self.shared).get("train", 0))

    def among(self, name: str, values: Iterable[Value]) -> list[Value]:
        """The settled ones among a choice's values; all where none is settled."""
        settled = self.settled.get(name)
        return list(values) if settled is None else [v for v in values if v in settled]


BROUGHT = {"by": "framework"}
"""Marks the fields of a request that the framework brings."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A search's question besides model and cluster: accelerators, sequences per step, numerics, what is settled.

    gpus, global_batch: 1 where they are what is looked for (`sized`). fine_recompute, hybrid_sharding: the framework
    has it. zero2_by_layer: it scatters gradients in every backward pass without a pipeline, so stage 1 of ZeRO is 2
    there. offloads_parameters: sharded ones can wait in host memory. own_split: how it alone splits layers over stages,
    where its user has no say.
    """

    gpus: int = 1
    global_batch: int = 1
    precision: Precision
    attention: Attention
    fixed: Fixed = Fixed()
    fine_recompute: bool = field(default=False, metadata=BROUGHT)
    hybrid_sharding: bool = field(default=False, metadata=BROUGHT)
    zero2_by_layer: bool = field(default=False, metadata=BROUGHT)
    offloads_parameters: bool = field(default=False, metadata=BROUGHT)
    own_split: Split | None = field(default=None, metadata=BROUGHT)

    @staticmethod
    def of(framework: Framework, **question: Any) -> Request:
        """The question under a framework, which brings what it has; question: the other fields."""
        return Request(
            **question, fine_recompute=framework.fine_recompute, hybrid_sharding=framework.hybrid_sharding,
            zero2_by_layer=framework.zero2_by_layer, offloads_parameters=framework.offloads_parameters,
            own_split=None if framework.layer_split == "even" else choice(Split, framework.layer_split),
        )  # fmt: skip

    def sized(self, gpus: int, global_batch: int) -> Request:
        """The same of so many accelerators and sequences."""
        return replace(self, gpus=gpus, global_batch=global_batch)

    def held(self, **choices: Any) -> Request:
        """The same with more settled of the layout."""
        return replace(self, fixed=replace(self.fixed, **choices))

    @property
    def no_zero_1(self) -> bool:
        """Whether ZeRO 1 is ZeRO 2 without a pipeline, and is not all that the user allows."""
        return self.zero2_by_layer and self.fixed.zero != (1,)

    @property
    def question(self) -> dict[str, Any]:
        """The arguments of `planner.search.recommend`."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.metadata != BROUGHT}


def divisors(n: int) -> list[int]:
    """The divisors of n, ascending."""
    small = [i for i in range(1, int(n**0.5) + 1) if n % i == 0]
    return sorted({*small, *(n // i for i in small)})


def degrees_left(gpus: int, given: Mapping[str, Any]) -> list[dict[str, int]]:
    """Every way to share the accelerators that the given degrees leave out over the others; none if they can't be."""
    rest, uneven = divmod(gpus, prod(given.get(name, 1) for name in DEGREES))
    free = [name for name in DEGREES if name not in given]
    if uneven or (not free and rest > 1):
        return []
    others = [some for some in product(*(divisors(rest) for _ in free[1:])) if rest % prod(some) == 0]
    return [dict(zip(free, (rest // prod(some), *some), strict=bool(free))) for some in others]


def default_precision(cluster: Cluster) -> Precision:
    """bf16 where the accelerator has it, else fp16, else fp32."""
    for p in (Precision.BF16, Precision.FP16):
        if p.name.lower() in cluster.accelerator.peak_flops:
            return p
    return Precision.FP32


def attention_kernels(cluster: Cluster) -> tuple[Attention, ...]:
    """The kernels that the accelerator's architecture runs, oldest first; flash kernels where it states their rate.

    Raises InputError if there is none.
    """
    e = cluster.accelerator.efficiency
    runs = [name for name in e.attention_kernels if name not in FLASH or name in e.flash_forward]
    if not runs:
        raise InputError(f"{e.name}'s attention_kernels are {', '.join(e.attention_kernels)}; flash_forward has none")
    return tuple(sorted(choice(Attention, name) for name in runs))


def default_attention(cluster: Cluster) -> Attention:
    """flash3 where the accelerator runs it, and faster than flash2; else flash2; the fused softmax before Turing."""
    kernels = attention_kernels(cluster)
    rate = cluster.accelerator.efficiency.flash_forward
    if Attention.FLASH3 in kernels and rate.get("flash3", 0.0) > rate.get("flash2", 0.0):
        return Attention.FLASH3
    return min(kernels[-1], Attention.FLASH2)
