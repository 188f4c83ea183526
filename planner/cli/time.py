"""`planner time`: how long a training takes, and what it costs."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli import assumed as a
from planner.cli import options as o


def command(
    model: o.Model,
    cluster: o.ClusterName,
    gpus: o.Gpus,
    tokens: a.Tokens = None,
    loss: a.Loss = None,
    batch: Annotated[
        int | None, typer.Option("--global-batch", "--batch", help="Sequences a step; else near the critical batch.")
    ] = None,
    loss_law: a.LossLawName = "besiroglu-2024",
    critical_batch_law: a.BatchLawName = "zhang-2024",
    critical_batch: a.CriticalBatch = None,
    batch_rule: a.BatchRule = "overhead",
    mtbf_hours: a.Mtbf = None,
    restart_minutes: a.Restart = None,
    checkpoint_bytes: a.CheckpointBytes = None,
    storage_gbyte_per_s: a.StorageRate = None,
    price: a.Price = None,
    power_w: a.Power = None,
    site_factor: a.Site = None,
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
    """Days, steps, GPU-hours, money and energy of a training, failures included, with the fastest layout.

    Tokens that are given are processed as they are; a loss takes as many as the batch needs; with neither, the
    compute-optimal tokens.

    Example: planner time gpt3-175b --cluster dgx-a100-80gb --gpus 1024 --tokens 300e9 --global-batch 1536
    """
    from planner.plans.assumptions import assume
    from planner.plans.goal import goal
    from planner.plans.time import plan_time
    from planner.report import records, training
    from planner.validation import accuracy_sentence

    shape, hardware, stack = o.question(model, cluster, network, framework, seq_len)
    number, kernel = o.numerics(hardware, precision, attention)
    aim = goal(
        shape, tokens=tokens, loss=loss, loss_law=loss_law, batch_law=critical_batch_law, rule=batch_rule,
        critical_batch=critical_batch,
    )  # fmt: skip
    given = {
        "mtbf_hours": mtbf_hours, "restart_minutes": restart_minutes, "price_usd_per_hour": price, "power_w": power_w,
        "checkpoint_bytes_per_parameter": checkpoint_bytes, "storage_gbyte_per_s": storage_gbyte_per_s,
        "site_factor": site_factor,
    }  # fmt: skip
    assumptions = assume(hardware, given)
    settled = a.fixed(
        schedule, recompute, tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, etp=etp, micro_batch=micro_batch,
        virtual_stages=virtual_stages, zero=zero, dp_replicate=dp_replicate,
    )  # fmt: skip
    with o.working("searching every legal layout"):
        plan = plan_time(
            shape, hardware, stack, aim, assumptions, gpus=gpus, batch=batch, exact_tokens=loss is None,
            precision=number, attention=kernel, fixed=settled,
        )  # fmt: skip
    accuracy = accuracy_sentence(hardware.accelerator.efficiency.name, model=shape)
    if json:
        asked = records.question_record(shape, hardware, stack, gpus)
        answer = training.time_record(plan, assumptions, hardware, int(shape.seq_len))
        o.print_json(asked | answer | {"accuracy": accuracy})
    else:
        title = f"{shape.name} on {gpus:,} GPUs of {hardware.name}"
        view = training.time_view(plan, assumptions, hardware, shape)
        o.print_view(title, "", view, "", f"How accurate: {accuracy}")
