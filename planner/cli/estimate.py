"""`planner estimate`: one layout in full."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli import options as o


def command(
    model: o.Model,
    cluster: o.ClusterName,
    global_batch: o.GlobalBatch,
    dp: Annotated[int, typer.Option(help="Data-parallel replicas.")] = 1,
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline ranks.")] = 1,
    cp: Annotated[int, typer.Option(help="Context-parallel ranks.")] = 1,
    ep: Annotated[int, typer.Option(help="Expert-parallel ranks, inside dp x cp.")] = 1,
    micro_batch: Annotated[int, typer.Option(help="Sequences a micro-batch.")] = 1,
    virtual_stages: Annotated[int, typer.Option(help="Model chunks a pipeline rank.")] = 1,
    schedule: Annotated[str | None, typer.Option(help="gpipe, 1f1b, interleaved.")] = None,
    zero: Annotated[int, typer.Option(help="ZeRO stage, 0 to 3.")] = 1,
    recompute: Annotated[str, typer.Option(help="none, selective or full.")] = "none",
    layer_split: Annotated[str, typer.Option(help="even, or balanced by cost.")] = "even",
    sequence_parallel: Annotated[bool, typer.Option("--sequence-parallel", help="Megatron's.")] = False,
    fused_norm: Annotated[bool, typer.Option(help="A fused norm kernel.")] = True,
    offload_optimizer: Annotated[bool, typer.Option("--offload-optimizer", help="State in host memory.")] = False,
    network: o.Network = None,
    framework: o.FrameworkName = None,
    seq_len: o.SeqLen = None,
    precision: o.PrecisionName = None,
    attention: o.AttentionName = None,
    json: o.Json = False,
) -> None:
    """Estimate one layout: seconds and bytes, broken down.

    Example: planner estimate gpt3-175b --cluster selene --tp 8 --pp 12 --dp 4 --global-batch 1536
    """
    from planner.errors import InputError
    from planner.estimate import estimate
    from planner.layouts import Layouts, Recompute, Split, choice
    from planner.legality import check_legal
    from planner.report import records, tables
    from planner.schedules import get_schedule

    shape, hardware, stack = o.question(model, cluster, network, framework, seq_len)
    number, kernel = o.numerics(hardware, precision, attention)
    numbers = {
        "global-batch": global_batch, "dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep,
        "micro-batch": micro_batch, "virtual-stages": virtual_stages,
    }  # fmt: skip
    for name, value in numbers.items():
        if not 1 <= value <= 10_000_000:
            raise InputError(f"--{name} is {value}; allowed: a whole number from 1 to 10000000")
    chosen = schedule or ("interleaved" if virtual_stages > 1 else "1f1b")
    get_schedule(chosen)
    layouts = Layouts.of(
        schedule=chosen, dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, virtual_stages=virtual_stages, micro_batch=micro_batch,
        global_batch=global_batch, zero=zero, recompute=choice(Recompute, recompute), attention=kernel,
        precision=number, layer_split=choice(Split, layer_split), sequence_parallel=sequence_parallel,
        fused_norm=fused_norm, offload_optimizer=offload_optimizer,
    )  # fmt: skip
    check_legal(shape, hardware, layouts)
    result = estimate(shape, hardware, stack, layouts)
    gpus = int(layouts.gpus[0])
    if json:
        asked = records.question_record(shape, hardware, stack, gpus) | {"global_batch": global_batch}
        o.print_json(asked | records.estimate_record(result, 0, hardware))
    else:
        title = f"{shape.name} on {gpus} GPUs of {hardware.name}, batch {global_batch} x {shape.seq_len} tokens"
        o.print_view(title, "", tables.estimate_view(result, 0, hardware))
