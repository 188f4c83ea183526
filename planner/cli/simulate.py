"""`planner simulate`: the exact timeline of one layout's step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as o


def command(
    model: o.Model,
    cluster: o.ClusterName,
    global_batch: o.GlobalBatch,
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
    even_slices: Annotated[
        bool, typer.Option("--even-slices", help="Sequence slices of equal tokens instead of equal work.")
    ] = False,
    links: Annotated[bool, typer.Option("--links", help="Transfers and collectives queue on links.")] = False,
    slow_down: Annotated[float, typer.Option(help="With --links: compute beside them is 1 + this slower.")] = 0.0,
    schedule_file: Annotated[Path | None, typer.Option(help="A CSV with a schedule of your own.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome/Perfetto trace (JSON).")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write the timeline as SVG.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the timeline as PNG.")] = None,
    json: o.Json = False,
) -> None:
    """Simulate one layout's step: every operation of every rank, what each rank waits for, the critical path.

    Example: planner simulate llama-65b --cluster dgx-a100-80gb --tp 8 --pp 8 --global-batch 64 --trace step.json
    """
    from planner.errors import InputError
    from planner.estimate import estimate
    from planner.files import check_writable
    from planner.report import simulations, tables
    from planner.schedules.csv_file import read_schedule
    from planner.simulation.step import simulate
    from planner.simulation.step_streams import simulate_streams

    for suffix, path in ((".svg", svg), (".png", png), (".json", trace)):
        if path is not None and path.suffix != suffix:
            option = "--trace" if suffix == ".json" else suffix.replace(".", "--")
            raise InputError(f"{option} is {path}; allowed: a path that ends in {suffix}")
        if path is not None:
            check_writable(path)
    if schedule_file is not None and schedule is not None:
        raise InputError(f"--schedule is {schedule!r} beside --schedule-file; allowed: one of them")
    shape, hardware, stack = o.question(model, cluster, network, framework, seq_len)
    layouts = o.one_layout(
        hardware, schedule=schedule, dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp, virtual_stages=virtual_stages,
        sequence_slices=sequence_slices, micro_batch=micro_batch, global_batch=global_batch, zero=zero,
        dp_replicate=dp_replicate, recompute=recompute, layer_split=layer_split, own_split=stack.layer_split,
        precision=precision, attention=attention, sequence_parallel=sequence_parallel, fused_norm=fused_norm,
        offload_optimizer=offload_optimizer,
    )  # fmt: skip
    order = None if schedule_file is None else read_schedule(schedule_file)
    step = simulate(shape, hardware, stack, layouts, order=order, even_slices=even_slices)
    closed = None if order is not None else float(estimate(shape, hardware, stack, layouts).step_time_s[0])
    streams = None
    if links or slow_down:
        if order is not None or even_slices:
            raise InputError("--links is given with --schedule-file or --even-slices; allowed: one of them")
        streams = simulate_streams(shape, hardware, stack, layouts, slow_down)
    if trace is not None:
        from planner.export.step_trace import write_step_trace

        write_step_trace(trace, step, streams)
    title = tables.question_title(shape, hardware, int(layouts.gpus[0]), global_batch)
    for path in (svg, png):
        if path is not None:
            from planner.report.timeline_plot import plot_timeline

            plot_timeline(step.timeline, path, f"{title}: {step.schedule.name}", "s")
    if json:
        o.print_json(simulations.simulation_record(step, layouts, hardware, closed, streams))
    else:
        o.print_view(title, "", simulations.simulation_view(step, layouts, hardware, closed, streams))
