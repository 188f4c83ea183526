"""`planner partition`: how many layers each pipeline stage should have."""

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
    etp: o.Etp = None,
    micro_batch: o.MicroBatch = 1,
    virtual_stages: o.VirtualStages = 1,
    sequence_slices: o.SequenceSlices = 1,
    schedule: o.ScheduleName = None,
    zero: o.Zero = 1,
    dp_replicate: o.DpReplicate = 1,
    recompute: o.RecomputeMode = "none",
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
    """Split the layers over pipeline stages by cost, embedding and head counted, so that every rank fits in memory.

    Example: planner partition llama3-8b --cluster dgx-a100-80gb --tp 2 --pp 8 --global-batch 64
    """
    from planner.report.simulations import split_view
    from planner.report.tables import question_title
    from planner.search.stage_split import stage_split

    shape, hardware, stack = o.question(model, cluster, network, framework, seq_len)
    layouts = o.one_layout(
        hardware, schedule=schedule, dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp, virtual_stages=virtual_stages,
        sequence_slices=sequence_slices, micro_batch=micro_batch, global_batch=global_batch, zero=zero,
        dp_replicate=dp_replicate, recompute=recompute, layer_split="even", precision=precision, attention=attention,
        sequence_parallel=sequence_parallel, fused_norm=fused_norm, offload_optimizer=offload_optimizer,
    )  # fmt: skip
    split = stage_split(shape, hardware, stack, layouts)
    if json:
        o.print_json(
            {
                "rank": split.rank.tolist(),
                "layers": split.layers.tolist(),
                "seconds": split.seconds.tolist(),
                "gib": (split.size_bytes / 2.0**30).tolist(),
                "slowest_s": float(split.seconds.max()),
                "even_slowest_s": split.even_slowest_s,
            }
        )
    else:
        title = question_title(shape, hardware, int(layouts.gpus[0]), global_batch)
        o.print_view(title, "", split_view(split))
