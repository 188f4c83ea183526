"""`planner explain`: what limits a layout, and what would help."""

from __future__ import annotations

from planner.cli import assumed as a
from planner.cli import options as o


def command(
    model: o.Model,
    cluster: o.ClusterName,
    gpus: o.Gpus,
    global_batch: o.GlobalBatch,
    tokens: a.Tokens = None,
    critical_batch_law: a.BatchLawName = "zhang-2024",
    mtbf_hours: a.Mtbf = None,
    restart_minutes: a.Restart = None,
    storage_gbyte_per_s: a.StorageRate = None,
    network: o.Network = None,
    framework: o.FrameworkName = None,
    seq_len: o.SeqLen = None,
    precision: o.PrecisionName = None,
    attention: o.AttentionName = None,
    tp: a.Degree = None,
    pp: a.Degree = None,
    dp: a.Degree = None,
    cp: a.Degree = None,
    ep: a.Degree = None,
    etp: a.Degree = None,
    micro_batch: a.Degree = None,
    virtual_stages: a.Degree = None,
    zero: a.Degree = None,
    dp_replicate: a.Degree = None,
    recompute: a.Recomputes = None,
    schedule: a.Schedules = None,
    json: o.Json = False,
) -> None:
    """Elasticities of the best layout's step and training to hardware, batch, failures; its traffic against links.

    Example: planner explain gpt3-175b --cluster selene --gpus 1024 --global-batch 1536
    """
    from planner.plans.assumptions import assume
    from planner.plans.goal import goal
    from planner.plans.sensitivity import RIVALS, sensitivity
    from planner.report import records
    from planner.report.sensitivity import sensitivity_record, sensitivity_view
    from planner.report.tables import layout_text
    from planner.search import recommend

    shape, hardware, stack = o.question(model, cluster, network, framework, seq_len)
    number, kernel = o.numerics(hardware, precision, attention)
    aim = goal(shape, tokens=tokens, batch_law=critical_batch_law)
    given = {
        "mtbf_hours": mtbf_hours, "restart_minutes": restart_minutes, "storage_gbyte_per_s": storage_gbyte_per_s,
    }  # fmt: skip
    assumptions = assume(hardware, given)
    settled = a.fixed(
        schedule, recompute, tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, etp=etp, micro_batch=micro_batch,
        virtual_stages=virtual_stages, zero=zero, dp_replicate=dp_replicate,
    )  # fmt: skip
    with o.working("searching every legal layout"):
        found = recommend(
            shape, hardware, stack, gpus=gpus, global_batch=global_batch, precision=number, attention=kernel,
            fixed=settled, top=1, rivals=RIVALS,
        )  # fmt: skip
        if not len(found.best):
            from planner.errors import LayoutError

            raise LayoutError(f"no layout of {shape.name} on gpus {gpus} fits in memory; give more GPUs")
        result = sensitivity(shape, hardware, stack, found, aim, assumptions)
    best = int(found.best[0])
    if json:
        asked = records.question_record(shape, hardware, stack, gpus) | {"global_batch": global_batch}
        layout = {"layout": records.estimate_record(found.estimate, best, hardware)}
        o.print_json(asked | layout | sensitivity_record(result))
    else:
        text = layout_text(found.estimate.layouts.row(best))
        step = float(found.estimate.step_time_s[best])
        title = f"{shape.name} on {gpus:,} GPUs of {hardware.name}, batch {global_batch:,}: {text}, {step:.4g} s a step"
        o.print_view(title, "", sensitivity_view(result))
