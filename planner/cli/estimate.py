"""`planner estimate`: one layout in full."""

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
    schedule: o.ScheduleName = None,
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
    """Estimate one layout: seconds and bytes, broken down.

    Example: planner estimate gpt3-175b --cluster selene --tp 8 --pp 12 --dp 4 --global-batch 1536
    """
    from planner.estimate import estimate
    from planner.legality import check_legal
    from planner.report import records, tables
    from planner.validation import step_interval_s

    shape, hardware, stack = o.question(model, cluster, network, framework, seq_len)
    layouts = o.one_layout(
        hardware, schedule=schedule, dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, virtual_stages=virtual_stages,
        sequence_slices=sequence_slices, micro_batch=micro_batch, global_batch=global_batch, zero=zero,
        recompute=recompute, layer_split=layer_split, precision=precision, attention=attention,
        sequence_parallel=sequence_parallel, fused_norm=fused_norm, offload_optimizer=offload_optimizer,
    )  # fmt: skip
    check_legal(shape, hardware, layouts)
    result = estimate(shape, hardware, stack, layouts)
    gpus = int(layouts.gpus[0])
    interval = step_interval_s(shape, hardware, result, 0)
    if json:
        asked = records.question_record(shape, hardware, stack, gpus) | {"global_batch": global_batch}
        o.print_json(asked | records.estimate_record(result, 0, hardware) | {"step_time_interval_s": interval})
    else:
        title = tables.question_title(shape, hardware, gpus, global_batch)
        o.print_view(title, "", tables.estimate_view(result, 0, hardware, interval))
