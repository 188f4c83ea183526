"""`planner estimate`: one layout in full."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli import options as o

MegatronArgs = Annotated[
    str | None, typer.Option("--megatron-args", help="A run's arguments for Megatron-LM, or @FILE with them.")
]
DeepSpeedFile = Annotated[Path | None, typer.Option("--deepspeed", help="A run's configuration for DeepSpeed.")]
OF_PYTHON = ("pp", "ep", "recompute")
"""What DeepSpeed's JSON can't say."""


def command(
    cluster: o.ClusterName,
    model: Annotated[
        str | None, typer.Argument(help="A preset, a config.json or its folder, or a TOML file.", show_default=False)
    ] = None,
    global_batch: Annotated[int | None, typer.Option("--global-batch", help="Sequences per optimizer step.")] = None,
    megatron_args: MegatronArgs = None,
    deepspeed: DeepSpeedFile = None,
    gpus: Annotated[int | None, typer.Option("--gpus", help="Of an existing run.", min=1)] = None,
    vocab: Annotated[int | None, typer.Option("--vocab", help="Of an existing run's tokenizer.", min=1)] = None,
    dp: o.Dp = 1,
    tp: o.Tp = 1,
    pp: o.Pp = 1,
    cp: o.Cp = 1,
    ep: o.Ep = 1,
    etp: o.Etp = None,
    micro_batch: o.MicroBatch = 1,
    virtual_stages: o.VirtualStages = 1,
    sequence_slices: o.SequenceSlices = 1,
    schedule: o.ScheduleName = None,
    zero: o.Zero = 1,
    dp_replicate: o.DpReplicate = 1,
    recompute: o.RecomputeMode = "none",
    layer_split: o.LayerSplit = None,
    sequence_parallel: o.SequenceParallel = False,
    fused_norm: o.FusedNorm = True,
    offload_optimizer: o.Offload = False,
    network: o.Network = None,
    framework: o.FrameworkName = None,
    seq_len: o.SeqLen = None,
    precision: o.PrecisionName = None,
    attention: o.AttentionName = None,
    json: o.Json = False,
) -> None:
    """Estimate one layout: seconds and bytes, broken down. Or an existing run: how good it is, what to change first.

    Example: planner estimate gpt3-175b --cluster selene --tp 8 --pp 12 --dp 4 --global-batch 1536

    Or: planner estimate --megatron-args @launch.sh --cluster selene --gpus 512
    """
    choices: dict[str, Any] = {
        "schedule": schedule, "dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": etp,
        "virtual_stages": virtual_stages, "sequence_slices": sequence_slices,
        "micro_batch": micro_batch, "global_batch": global_batch, "zero": zero, "dp_replicate": dp_replicate,
        "recompute": recompute, "layer_split": layer_split, "precision": precision, "attention": attention,
        "sequence_parallel": sequence_parallel, "fused_norm": fused_norm, "offload_optimizer": offload_optimizer,
    }  # fmt: skip
    if megatron_args is not None or deepspeed is not None:
        _existing(megatron_args, deepspeed, choices, {
            "model": model, "cluster": cluster, "network": network, "framework": framework, "gpus": gpus,
            "vocab": vocab, "seq_len": seq_len, "json": json,
        })  # fmt: skip
        return
    _one(choices, model, cluster, network, framework, seq_len, json, {"--gpus": gpus, "--vocab": vocab})


def _existing(arguments: str | None, file: Path | None, choices: dict[str, Any], asked: dict[str, Any]) -> None:
    """An existing run; a choice that its configuration makes can't be given beside it."""
    from planner.cli.imported import review_deepspeed, review_megatron
    from planner.errors import InputError

    if arguments is not None and file is not None:
        raise InputError("--megatron-args and --deepspeed are both given; allowed: one of them")
    free = {"attention", *(OF_PYTHON if file is not None else ())}
    usual = {"recompute": "none", "fused_norm": True, "zero": 1}
    for name, value in choices.items():
        default = usual.get(name, False if isinstance(value, bool) else 1 if isinstance(value, int) else None)
        if name not in free and value not in (None, default):
            raise InputError(
                f"--{name.replace('_', '-')} stands beside an existing run's configuration; change it there"
            )
    if file is not None:
        del asked["vocab"]
        python = {name: choices[name] for name in (*OF_PYTHON, "attention")}
        review_deepspeed(file, **asked, **python)
    elif arguments is not None:
        if asked.pop("seq_len") is not None:
            raise InputError("--seq-len stands beside an existing run's configuration; change --seq-length there")
        review_megatron(arguments, **asked, attention=choices["attention"])


def _one(
    choices: dict[str, Any], model: str | None, cluster: str, network: str | None, framework: str | None,
    seq_len: int | None, json: bool, of_runs: dict[str, Any],
) -> None:  # fmt: skip
    """One layout, from its choices."""
    from planner.errors import InputError
    from planner.estimate import estimate
    from planner.legality import check_legal
    from planner.report import records, tables
    from planner.validation import step_interval_s

    global_batch = choices["global_batch"]
    if model is None or global_batch is None:
        missing = "MODEL" if model is None else "--global-batch"
        raise InputError(f"{missing} is missing; give it, or an existing run with --megatron-args or --deepspeed")
    for name, value in of_runs.items():
        if value is not None:
            raise InputError(f"{name} is for an existing run, with --megatron-args or --deepspeed")
    shape, hardware, stack = o.question(model, cluster, network, framework, seq_len)
    layouts = o.one_layout(hardware, **choices, own_split=stack.layer_split)
    check_legal(shape, hardware, layouts)
    result = estimate(shape, hardware, stack, layouts)
    gpus = int(layouts.gpus[0])
    interval = step_interval_s(shape, hardware, result, 0)
    if json:
        asked = records.question_record(shape, hardware, stack, gpus) | {"global_batch": global_batch}
        o.print_json(asked | records.estimate_record(result, 0, hardware) | {"step_time_interval_s": interval})
    else:
        title = tables.question_title(shape, hardware, gpus, global_batch)
        o.print_view(title, "", tables.estimate_view(result, 0, shape, hardware, interval))
