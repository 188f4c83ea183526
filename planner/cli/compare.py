"""`planner compare`: all schedules that a layout allows, side by side; or two plans, part by part."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli import options as o

if TYPE_CHECKING:
    from planner.plan_file import Plan


def command(
    first: Annotated[str, typer.Argument(metavar="MODEL|PLAN", help="A model, or a plan to set beside another.")],
    second: Annotated[Path | None, typer.Argument(metavar="[PLAN]", help="The other plan.", show_default=False)] = None,
    cluster: Annotated[str | None, typer.Option(help="A cluster (planner clusters) or a TOML file.")] = None,
    global_batch: Annotated[int | None, typer.Option("--global-batch", help="Sequences per optimizer step.")] = None,
    dp: o.Dp = 1,
    tp: o.Tp = 1,
    pp: o.Pp = 1,
    cp: o.Cp = 1,
    ep: o.Ep = 1,
    etp: o.Etp = None,
    micro_batch: o.MicroBatch = 1,
    virtual_stages: o.VirtualStages = 1,
    sequence_slices: o.SequenceSlices = 1,
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
    """Set every schedule that is legal for a layout side by side: step time, bubble, memory, what the network carries.

    Schedules with a number of virtual stages or slices of their own get it; others take the given one, or 2.

    Example: planner compare llama-65b --cluster dgx-a100-80gb --tp 8 --pp 8 --dp 2 --global-batch 128

    Of two plans, say what differs, second by second and byte by byte: planner compare plan-a.json plan-b.json
    """
    from planner.errors import InputError
    from planner.report import simulations, tables
    from planner.search.compare import compare

    if second is not None:
        _plans((Path(first), second), cluster, network, framework, json)
        return
    for option, given in (("--cluster", cluster), ("--global-batch", global_batch)):
        if given is None:
            raise InputError(f"{option} is missing; give it for the schedules of a layout, or two plans")
    assert cluster is not None
    model = first
    shape, hardware, stack = o.question(model, cluster, network, framework, seq_len)
    schedule = None
    layouts = o.one_layout(
        hardware, schedule=schedule, dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp, virtual_stages=virtual_stages,
        sequence_slices=sequence_slices, micro_batch=micro_batch, global_batch=global_batch, zero=zero,
        dp_replicate=dp_replicate, recompute=recompute, layer_split=layer_split, own_split=stack.layer_split,
        precision=precision, attention=attention, sequence_parallel=sequence_parallel, fused_norm=fused_norm,
        offload_optimizer=offload_optimizer,
    )  # fmt: skip
    with o.working("simulating every schedule"):
        rows, refused = compare(shape, hardware, stack, layouts)
    title = tables.question_title(shape, hardware, int(layouts.gpus[0]), int(layouts.global_batch[0]))
    if json:
        o.print_json(simulations.comparison_record(rows, refused, hardware))
    else:
        o.print_view(title, "", simulations.comparison_view(rows, refused, hardware))


def _plans(
    files: tuple[Path, Path], cluster: str | None, network: str | None, framework: str | None, json: bool
) -> None:
    """Two plans: their own figures, or estimates where a file has none."""
    from planner.plan_file import read_plan
    from planner.report import tables
    from planner.report.difference import difference_record, plans_view

    def title(plan: Plan) -> str:
        q = plan.question
        return tables.question_title(q.model, q.cluster, plan.gpus, int(plan.layouts.global_batch[0]))

    plans = [read_plan(path, cluster=cluster, network=network, framework=framework) for path in files]
    a, b = (_figures(plan) for plan in plans)
    if json:
        o.print_json({"a": a, "b": b, "difference": difference_record(a, b)})
    else:
        names = (str(files[0]), str(files[1]))
        o.print_view(plans_view(names, (title(plans[0]), title(plans[1])), a, b))


def _figures(plan: Plan) -> dict[str, Any]:
    """The layout's record as the file has it, or its estimate where the file has no figures."""
    from planner.estimate import estimate
    from planner.report.records import estimate_record

    q = plan.question
    record = estimate_record(estimate(q.model, q.cluster, q.framework, plan.layouts), 0, q.cluster)
    return record | plan.figures()
