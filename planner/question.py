"""What is asked, from names and numbers: model, hardware, framework, numerics, one layout, or what a search may choose.

The command line and the Python API both come through here, so that a name or a number means the same in both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from planner.errors import InputError
from planner.hardware import Cluster, Framework, load_cluster, load_framework
from planner.layouts import Attention, Layouts, Precision, Recompute, Split, choice
from planner.models import Transformer, load_model, with_seq_len
from planner.schedules import get_schedule
from planner.search import Fixed, attention_kernels, default_attention, default_precision

__all__ = ["LARGEST", "Question", "numerics", "one_layout", "question", "what_is_fixed", "whole", "word"]

LARGEST = 10_000_000


@dataclass(frozen=True, kw_only=True)
class Question:
    """A model, the hardware, and the framework that it runs under."""

    model: Transformer
    cluster: Cluster
    framework: Framework


def question(
    model: Transformer | str,
    cluster: Cluster | str,
    *,
    network: str | None = None,
    framework: str | None = None,
    seq_len: int | None = None,
) -> Question:
    """The question that names ask: presets, profiles or files, or what was loaded from them already.

    Raises:
        UnknownNameError: no such model, cluster, network or framework.
        FileFormatError: a file that can't be read, parsed or validated.
        InputError: a sequence length out of range.
    """
    shape = load_model(model) if isinstance(model, str) else model
    hardware = load_cluster(cluster, network=network) if isinstance(cluster, str) else cluster
    return Question(
        model=shape if seq_len is None else with_seq_len(shape, seq_len),
        cluster=hardware,
        framework=load_framework(framework or hardware.framework),
    )


def numerics(cluster: Cluster, precision: str | None, attention: str | None) -> tuple[Precision, Attention]:
    """Precision and attention kernel, by name or by the accelerator's default.

    Raises:
        InputError: a precision or a kernel that the accelerator lacks.
        UnknownNameError: no such precision or kernel.
    """
    number = default_precision(cluster) if precision is None else choice(Precision, word("precision", precision))
    if number.name.lower() not in cluster.accelerator.peak_flops:
        known = ", ".join(cluster.accelerator.peak_flops)
        raise InputError(f"precision is {number.name.lower()}; {cluster.accelerator.name} has: {known}")
    if attention is None:
        return number, default_attention(cluster)
    kernel, kernels = choice(Attention, word("attention", attention)), attention_kernels(cluster)
    if kernel not in kernels:
        known = ", ".join(k.name.lower() for k in kernels)
        raise InputError(f"attention is {kernel.name.lower()}; {cluster.accelerator.name} has: {known}")
    return number, kernel


def one_layout(
    cluster: Cluster,
    *,
    global_batch: int,
    dp: int = 1,
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    micro_batch: int = 1,
    virtual_stages: int = 1,
    sequence_slices: int = 1,
    schedule: str | None = None,
    zero: int = 1,
    dp_replicate: int = 1,
    recompute: str = "none",
    layer_split: str | None = None,
    own_split: str = "even",
    precision: str | None = None,
    attention: str | None = None,
    sequence_parallel: bool = False,
    fused_norm: bool = True,
    offload_optimizer: bool = False,
) -> Layouts:
    """A table of one layout; whether it is legal is for the caller to check (`planner.legality`).

    schedule: None is 1f1b, interleaved with virtual stages, seq1f1b with sequence slices. etp: None is
    `planner.layouts.usual_etp`. layer_split: None is own_split, the framework's, over stages that are whole, else even.

    Raises:
        InputError: a number out of range.
        UnknownNameError: no such schedule, recompute mode, split, precision or kernel.
    """
    numbers: dict[str, Any] = {
        "global_batch": global_batch, "dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "micro_batch": micro_batch,
        "virtual_stages": virtual_stages, "sequence_slices": sequence_slices, "dp_replicate": dp_replicate,
    }  # fmt: skip
    if etp is not None:
        numbers["etp"] = etp
    for name, value in numbers.items():
        whole(name, value)
    flags = {"sequence_parallel": sequence_parallel, "fused_norm": fused_norm, "offload_optimizer": offload_optimizer}
    for name, flag in flags.items():
        _flag(name, flag)
    number, kernel = numerics(cluster, precision, attention)
    default = "interleaved" if virtual_stages > 1 else "1f1b"
    if sequence_slices > 1:
        default = "seq1f1b-interleaved" if virtual_stages > 1 else "seq1f1b"
    if layer_split is None:
        layer_split = own_split if pp > 1 and virtual_stages == 1 else "even"
    return Layouts.of(
        **numbers, **flags,
        schedule=get_schedule(default if schedule is None else word("schedule", schedule)).name,
        zero=whole("zero", zero, least=0, most=3),
        recompute=choice(Recompute, word("recompute", recompute)),
        layer_split=choice(Split, word("layer_split", layer_split)),
        precision=number, attention=kernel,
    )  # fmt: skip


def what_is_fixed(
    *,
    tp: Any = None,
    pp: Any = None,
    dp: Any = None,
    cp: Any = None,
    ep: Any = None,
    etp: Any = None,
    micro_batch: Any = None,
    virtual_stages: Any = None,
    zero: Any = None,
    dp_replicate: Any = None,
    recompute: Any = None,
    schedule: Any = None,
    layer_split: Any = None,
    sequence_parallel: bool | None = None,
    allow_offload: bool = False,
    allow_async: bool = False,
) -> Fixed:
    """What a search may choose from: each a value or several, None (or nothing) for every legal one.

    Raises:
        InputError: a value of the wrong kind or out of range.
        UnknownNameError: no such schedule, recompute mode or split.
    """

    def numbers(name: str, values: Any) -> tuple[int, ...] | None:
        least, most = (0, 3) if name == "zero" else (1, LARGEST)
        return tuple(whole(name, v, least=least, most=most) for v in _several(values)) or None

    def words(name: str, values: Any) -> list[str]:
        return [word(name, v) for v in _several(values)]

    for name, value in (("allow_offload", allow_offload), ("allow_async", allow_async)):
        _flag(name, value)
    if sequence_parallel is not None:
        _flag("sequence_parallel", sequence_parallel)
    names = [get_schedule(w).name for w in words("schedule", schedule)]
    return Fixed(
        tp=numbers("tp", tp),
        pp=numbers("pp", pp),
        dp=numbers("dp", dp),
        cp=numbers("cp", cp),
        ep=numbers("ep", ep),
        etp=numbers("etp", etp),
        micro_batch=numbers("micro_batch", micro_batch),
        virtual_stages=numbers("virtual_stages", virtual_stages),
        zero=numbers("zero", zero),
        dp_replicate=numbers("dp_replicate", dp_replicate),
        recompute=tuple(choice(Recompute, w) for w in words("recompute", recompute)) or None,
        schedule=tuple(dict.fromkeys(names)) or None,
        sequence_parallel=None if sequence_parallel is None else (sequence_parallel,),
        layer_split=tuple(choice(Split, w) for w in words("layer_split", layer_split)) or None,
        offload=allow_offload,
        allow_async=allow_async,
    )


def whole(name: str, value: Any, *, least: int = 1, most: int = LARGEST) -> int:
    """A whole number in range.

    Raises:
        InputError: it is not; names the field.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or not least <= value <= most:
        raise InputError(f"{name} is {value!r}; allowed: a whole number from {least} to {most}")
    return int(value)


def _several(values: Any) -> Iterable[Any]:
    """One value or several, as several."""
    if values is None:
        return ()
    return values if isinstance(values, (list, tuple, set, frozenset, range)) else (values,)


def word(name: str, value: Any) -> str:
    """A name as text, such as "1f1b".

    Raises:
        InputError: it is something else; names the field.
    """
    if not isinstance(value, str):
        raise InputError(f"{name} is {value!r}; allowed: a name in quotes")
    return value


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise InputError(f"{name} is {value!r}; allowed: True or False")
