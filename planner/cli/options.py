"""Options that several commands share."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from planner.cli import completion as complete

if TYPE_CHECKING:
    from pathlib import Path

    from planner.hardware import Cluster, Framework
    from planner.layouts import Attention, Layouts, Precision
    from planner.models import Transformer

UNFOLDED = 100_000  # columns of a pipe
Model = Annotated[
    str,
    typer.Argument(
        help="A preset (planner models), a config.json or its folder, or a TOML file.", autocompletion=complete.models
    ),
]
ClusterName = Annotated[
    str,
    typer.Option("--cluster", help="A cluster (planner clusters) or a TOML file.", autocompletion=complete.clusters),
]
Gpus = Annotated[int, typer.Option("--gpus", help="Accelerators to use.")]
GlobalBatch = Annotated[int, typer.Option("--global-batch", help="Sequences per optimizer step.")]
Network = Annotated[
    str | None, typer.Option("--network", help="Another network, such as ethernet-25g.", autocompletion=complete.links)
]
FrameworkName = Annotated[
    str | None,
    typer.Option(
        "--framework", help="megatron-lm, megatron-core, nemo, fsdp or a TOML file.", autocompletion=complete.frameworks
    ),
]
SeqLen = Annotated[int | None, typer.Option("--seq-len", help="Tokens a sequence, instead of the model's.")]
PrecisionName = Annotated[
    str | None, typer.Option("--precision", help="fp32, tf32, fp16, bf16 or fp8.", autocompletion=complete.precision)
]
AttentionName = Annotated[
    str | None,
    typer.Option("--attention", help="unfused, fused, flash1, flash2 or flash3.", autocompletion=complete.attention),
]
Dp = Annotated[int, typer.Option("--dp", help="Data-parallel replicas.")]
Tp = Annotated[int, typer.Option("--tp", help="Tensor-parallel ranks.")]
Pp = Annotated[int, typer.Option("--pp", help="Pipeline ranks.")]
Cp = Annotated[int, typer.Option("--cp", help="Context-parallel ranks.")]
Ep = Annotated[
    int, typer.Option("--ep", help="Expert-parallel ranks, inside dp x cp, or with whole experts tp x dp x cp.")
]
Etp = Annotated[
    int | None,
    typer.Option("--etp", help="Tensor ranks over which an expert is cut: tp, or 1. Default: tp, 1 where ep needs it."),
]
MicroBatch = Annotated[int, typer.Option("--micro-batch", help="Sequences a micro-batch.")]
VirtualStages = Annotated[int, typer.Option("--virtual-stages", help="Model chunks a pipeline rank.")]
SequenceSlices = Annotated[int, typer.Option("--sequence-slices", help="Slices of a sequence, for seq1f1b and kin.")]
ScheduleName = Annotated[
    str | None,
    typer.Option("--schedule", help="A pipeline schedule (planner schedule).", autocompletion=complete.schedules),
]
Zero = Annotated[int, typer.Option("--zero", help="ZeRO stage, 0 to 3.")]
DpReplicate = Annotated[
    int, typer.Option("--dp-replicate", help="Copies of what ZeRO shards, each on neighbours: hybrid sharding.")
]
RecomputeMode = Annotated[
    str, typer.Option("--recompute", help="none, selective, fine or full.", autocompletion=complete.recompute)
]
LayerSplit = Annotated[
    str | None,
    typer.Option(
        "--layer-split",
        help="even, balanced (by cost), parameters, products; ends: embedding and head are a layer each; "
        "last: short last stage. Default: the framework's own.",
        autocompletion=complete.splits,
    ),
]
SequenceParallel = Annotated[bool, typer.Option("--sequence-parallel", help="Megatron's.")]
FusedNorm = Annotated[bool, typer.Option(help="A fused norm kernel.")]
Offload = Annotated[bool, typer.Option("--offload-optimizer", help="State in host memory.")]
Svg = Annotated[Path | None, typer.Option(help="Write a picture as SVG.")]
Png = Annotated[Path | None, typer.Option(help="Write a picture as PNG.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON (docs/json.md) and nothing else.")]


def question(
    model: str, cluster: str, network: str | None, framework: str | None, seq_len: int | None
) -> tuple[Transformer, Cluster, Framework]:
    """The model, cluster and framework that the options name."""
    from planner.question import question

    asked = question(model, cluster, network=network, framework=framework, seq_len=seq_len)
    return asked.model, asked.cluster, asked.framework


def numerics(cluster: Cluster, precision: str | None, attention: str | None) -> tuple[Precision, Attention]:
    """Precision and attention kernel, by name or by the accelerator's default."""
    from planner.question import numerics

    return numerics(cluster, precision, attention)


def one_layout(cluster: Cluster, **choices: Any) -> Layouts:
    """The layout that a command's options name (`planner.question.one_layout`); its legality is for the caller."""
    from planner.question import one_layout

    return one_layout(cluster, **choices)


def check_finite(**values: float) -> None:
    """Nothing, if these options' values are finite; a range of the option parser lets nan pass.

    Raises:
        InputError: one is nan or infinite.
    """
    import math

    from planner.errors import InputError

    for name, value in values.items():
        if not math.isfinite(value):
            raise InputError(f"--{name.replace('_', '-')} is {value}; allowed: a finite number")


def check_pictures(svg: Path | None, png: Path | None) -> None:
    """Nothing, if the paths of pictures end as their kind."""
    from planner.errors import InputError

    for suffix, path in ((".svg", svg), (".png", png)):
        if path is not None and path.suffix != suffix:
            raise InputError(f"{suffix.replace('.', '--')} is {path}; allowed: a path that ends in {suffix}")


def print_json(record: dict[str, Any]) -> None:
    """A record on stdout."""
    import json

    typer.echo(json.dumps(record, indent=2, allow_nan=False))


def save_json(path: Path, record: dict[str, Any]) -> None:
    """A record in a file: the whole of it or nothing."""
    import json

    from planner.files import write_text

    write_text(path, json.dumps(record, indent=2, allow_nan=False) + "\n")


def print_view(*views: Any) -> None:
    """Views on stdout: on a terminal in colour and as wide as it is; in a pipe plain, a row a line, nothing folded.

    Text is shown as it is: a name from a file may hold what rich would take for markup. A pipe is folded only where
    COLUMNS asks for it. NO_COLOR is rich's.
    """
    import io
    import os

    from rich.console import Console

    from planner.report.plain_table import stacked

    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    console = Console(**plain)
    if console.is_terminal:
        console.print(stacked(*views))
        return
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and 20 <= int(columns) < UNFOLDED else UNFOLDED
    text = io.StringIO()
    Console(**plain, file=text, width=width, color_system=None).print(stacked(*views))
    # Not typer.echo: it writes UTF-8 to a stream that says it is ASCII.
    print("\n".join(line.rstrip() for line in text.getvalue().split("\n")), end="")


def working(what: str) -> AbstractContextManager[Any]:
    """A spinner on stderr while something runs, on a terminal only."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.status(what) if console.is_terminal else nullcontext()


def finish(code: int) -> NoReturn:
    """Leave with an exit code."""
    raise typer.Exit(code)
