"""Options that several commands share."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from planner.hardware import Cluster, Framework
    from planner.layouts import Layouts
    from planner.models import Transformer

Model = Annotated[str, typer.Argument(help="A preset (planner models), a config.json or its folder, or a TOML file.")]
ClusterName = Annotated[str, typer.Option("--cluster", help="A cluster (planner clusters) or a TOML file.")]
Gpus = Annotated[int, typer.Option("--gpus", help="Accelerators to use.")]
GlobalBatch = Annotated[int, typer.Option("--global-batch", help="Sequences per optimizer step.")]
Network = Annotated[str | None, typer.Option("--network", help="Another network, such as ethernet-25g.")]
FrameworkName = Annotated[
    str | None, typer.Option("--framework", help="megatron-lm, megatron-core, fsdp or a TOML file.")
]
SeqLen = Annotated[int | None, typer.Option("--seq-len", help="Tokens a sequence, instead of the model's.")]
PrecisionName = Annotated[str | None, typer.Option("--precision", help="fp32, tf32, fp16, bf16 or fp8.")]
AttentionName = Annotated[str | None, typer.Option("--attention", help="unfused, fused, flash1, flash2 or flash3.")]
Dp = Annotated[int, typer.Option("--dp", help="Data-parallel replicas.")]
Tp = Annotated[int, typer.Option("--tp", help="Tensor-parallel ranks.")]
Pp = Annotated[int, typer.Option("--pp", help="Pipeline ranks.")]
Cp = Annotated[int, typer.Option("--cp", help="Context-parallel ranks.")]
Ep = Annotated[int, typer.Option("--ep", help="Expert-parallel ranks, inside dp x cp.")]
MicroBatch = Annotated[int, typer.Option("--micro-batch", help="Sequences a micro-batch.")]
VirtualStages = Annotated[int, typer.Option("--virtual-stages", help="Model chunks a pipeline rank.")]
SequenceSlices = Annotated[int, typer.Option("--sequence-slices", help="Slices of a sequence, for seq1f1b and kin.")]
ScheduleName = Annotated[str | None, typer.Option("--schedule", help="A pipeline schedule (planner schedule).")]
Zero = Annotated[int, typer.Option("--zero", help="ZeRO stage, 0 to 3.")]
RecomputeMode = Annotated[str, typer.Option("--recompute", help="none, selective or full.")]
LayerSplit = Annotated[str, typer.Option("--layer-split", help="even, or balanced by cost.")]
SequenceParallel = Annotated[bool, typer.Option("--sequence-parallel", help="Megatron's.")]
FusedNorm = Annotated[bool, typer.Option(help="A fused norm kernel.")]
Offload = Annotated[bool, typer.Option("--offload-optimizer", help="State in host memory.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON (docs/json.md) and nothing else.")]


def question(
    model: str, cluster: str, network: str | None, framework: str | None, seq_len: int | None
) -> tuple[Transformer, Cluster, Framework]:
    """The model, cluster and framework that the options name."""
    from planner.hardware import load_cluster, load_framework
    from planner.models import load_model, with_seq_len

    shape = load_model(model)
    if seq_len is not None:
        shape = with_seq_len(shape, seq_len)
    hardware = load_cluster(cluster, network=network)
    return shape, hardware, load_framework(framework or hardware.framework)


def numerics(cluster: Cluster, precision: str | None, attention: str | None) -> tuple[Any, Any]:
    """Precision and attention kernel, by name or by the accelerator's default."""
    from planner.errors import InputError
    from planner.layouts import Attention, Precision, choice
    from planner.search import default_attention, default_precision

    p = choice(Precision, precision) if precision else default_precision(cluster)
    if p.name.lower() not in cluster.accelerator.peak_flops:
        known = ", ".join(cluster.accelerator.peak_flops)
        raise InputError(f"--precision is {p.name.lower()}; {cluster.accelerator.name} has: {known}")
    return p, choice(Attention, attention) if attention else default_attention(cluster)


def one_layout(
    cluster: Cluster,
    *,
    schedule: str | None,
    recompute: str,
    layer_split: str,
    precision: str | None,
    attention: str | None,
    **choices: Any,
) -> Layouts:
    """The layout that a command's options name; whether it is legal is for the caller to check.

    Raises:
        InputError: a number out of range.
        UnknownNameError: no such schedule, recompute mode, split, precision or kernel.
    """
    from planner.errors import InputError
    from planner.layouts import Layouts, Recompute, Split, choice
    from planner.schedules import get_schedule

    numbers = ("global_batch", "dp", "tp", "pp", "cp", "ep", "micro_batch", "virtual_stages", "sequence_slices")
    for name in numbers:
        if not 1 <= choices[name] <= 10_000_000:
            option = name.replace("_", "-")
            raise InputError(f"--{option} is {choices[name]}; allowed: a whole number from 1 to 10000000")
    number, kernel = numerics(cluster, precision, attention)
    sliced, chunked = choices["sequence_slices"] > 1, choices["virtual_stages"] > 1
    default = ("seq1f1b-interleaved" if chunked else "seq1f1b") if sliced else "interleaved" if chunked else "1f1b"
    return Layouts.of(
        schedule=get_schedule(schedule or default).name, recompute=choice(Recompute, recompute),
        layer_split=choice(Split, layer_split), precision=number, attention=kernel, **choices,
    )  # fmt: skip


def print_json(record: dict[str, Any]) -> None:
    """A record on stdout."""
    import json

    typer.echo(json.dumps(record, indent=2, allow_nan=False))


def print_view(*views: Any) -> None:
    """Views on stdout: colour on a terminal only, at most 100 columns wide there, never folded in a pipe."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=120)
    for view in views:
        console.print(view)


def working(what: str) -> AbstractContextManager[Any]:
    """A spinner on stderr while something runs, on a terminal only."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.status(what) if console.is_terminal else nullcontext()


def finish(code: int) -> NoReturn:
    """Leave with an exit code."""
    raise typer.Exit(code)
