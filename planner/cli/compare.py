"""`planner compare`: all schedules that a layout allows, side by side."""

from __future__ import annotations

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
    micro_batch: o.MicroBatch = 1,
    virtual_stages: o.VirtualStages = 1,
    sequence_slices: o.SequenceSlices = 1,
    zero: o.Zero = 1,
    recompute: o.RecomputeMode = "none",
    layer_split: o.LayerSplit = "even",
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
    """
    from planner.report import simulations, tables
    from planner.search.compare import compare

    shape, hardware, stack = o.question(model, cluster, network, framework, seq_len)
    schedule = None
    layouts = o.one_layout(
        hardware, schedule=schedule, dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, virtual_stages=virtual_stages,
        sequence_slices=sequence_slices, micro_batch=micro_batch, global_batch=global_batch, zero=zero,
        recompute=recompute, layer_split=layer_split, precision=precision, attention=attention,
        sequence_parallel=sequence_parallel, fused_norm=fused_norm, offload_optimizer=offload_optimizer,
    )  # fmt: skip
    with o.working("simulating every schedule"):
        rows, refused = compare(shape, hardware, stack, layouts)
    title = tables.question_title(shape, hardware, int(layouts.gpus[0]), global_batch)
    if json:
        o.print_json(simulations.comparison_record(rows, refused, hardware))
    else:
        o.print_view(title, "", simulations.comparison_view(rows, refused, hardware))
