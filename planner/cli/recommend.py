"""`planner recommend`: the layout to run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from planner.cli import completion as complete
from planner.cli import options as o
from planner.cli import recommend_report as report
from planner.cli.export import Base

Degree = Annotated[list[int] | None, typer.Option(help="Allow only this; may be given several times.")]


def command(
    model: o.Model,
    cluster: o.ClusterName,
    gpus: o.Gpus,
    global_batch: o.GlobalBatch,
    network: o.Network = None,
    framework: o.FrameworkName = None,
    seq_len: o.SeqLen = None,
    precision: o.PrecisionName = None,
    attention: o.AttentionName = None,
    tp: Degree = None,
    pp: Degree = None,
    dp: Degree = None,
    cp: Degree = None,
    ep: Degree = None,
    etp: Degree = None,
    micro_batch: Degree = None,
    virtual_stages: Degree = None,
    zero: Degree = None,
    dp_replicate: Degree = None,
    recompute: Annotated[
        list[str] | None,
        typer.Option(help="Allow only none, selective, fine or full.", autocompletion=complete.recompute),
    ] = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(help="Allow only this one (planner schedule lists them).", autocompletion=complete.schedules),
    ] = None,
    allow_async: Annotated[bool, typer.Option(help="Also schedules that change the training, such as 2bw.")] = False,
    allow_offload: Annotated[bool, typer.Option(help="Also try optimizer state in host memory.")] = False,
    top: Annotated[int, typer.Option(help="How many layouts to show.", min=1, max=1000)] = 5,
    objective: Annotated[
        str, typer.Option(help="time, throughput, cost (one order) or memory.", autocompletion=complete.objectives)
    ] = "time",
    save: Annotated[Path | None, typer.Option(help="Write the plan, as --json prints it, to a file.")] = None,
    html: report.Html = None,
    png: report.Png = None,
    pdf: report.Pdf = None,
    tokens: report.ReportTokens = None,
    loss: report.ReportLoss = None,
    curve: report.WithCurve = True,
    export: Annotated[
        list[str] | None, typer.Option(help="Write the best for a framework (planner export): megatron=launch.sh.")
    ] = None,
    runs_on: Annotated[
        str | None,
        typer.Option(
            help="Only what a framework can run: megatron, deepspeed, torchtitan, accelerate...",
            autocompletion=complete.exports,
        ),
    ] = None,
    base: Base = None,
    why: Annotated[list[str] | None, typer.Option(help="Why not such a layout: tp=8,pp=1.")] = None,
    json: o.Json = False,
) -> None:
    """Find the layout to run: every legal one is estimated, the best shown, and why the rest lost.

    Example: planner recommend llama-13b --cluster dgx-a100-80gb --gpus 64 --global-batch 2048

    Exit code 1 where nothing fits in memory.
    """
    from planner.cli.export import asked_for, check_base, runnable, write_best
    from planner.files import check_writable
    from planner.question import Question, what_is_fixed
    from planner.report import records, tables
    from planner.search import recommend
    from planner.validation import accuracy_sentence, step_interval_s

    if save is not None:
        check_writable(save)
    report.check_paths(html, png, pdf)
    with_curve = curve and bool(html or png or pdf)
    report.check_aim(tokens, loss, used=with_curve)
    targets = asked_for(export or [])
    check_base(base, [target.name for target, _ in targets] + ([runs_on] if runs_on is not None else []))
    wanted = []
    if why:
        from planner.search.why import parse_wanted, why_not

        wanted = [parse_wanted(text) for text in why]
    shape, hardware, stack = o.question(model, cluster, network, framework, seq_len)
    number, kernel = o.numerics(hardware, precision, attention)
    fixed = what_is_fixed(
        tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, etp=etp, micro_batch=micro_batch, virtual_stages=virtual_stages, zero=zero,
        dp_replicate=dp_replicate, recompute=recompute, schedule=schedule, allow_offload=allow_offload,
        allow_async=allow_async,
    )  # fmt: skip
    aim = None
    if with_curve:
        from planner.plans.goal import goal

        aim = goal(shape, tokens=tokens, loss=loss)
    fixed = runnable(fixed, runs_on, shape, number.name.lower(), base)
    with o.working("searching every legal layout"):
        found = recommend(
            shape, hardware, stack, gpus=gpus, global_batch=global_batch, precision=number, attention=kernel,
            fixed=fixed, top=top, objective=objective,
        )  # fmt: skip
        whys = [why_not(shape, hardware, stack, found, choices) for choices in wanted]
    question = Question(model=shape, cluster=hardware, framework=stack)
    title = tables.question_title(shape, hardware, gpus, global_batch)
    asked = records.question_record(shape, hardware, stack, gpus) | {"global_batch": global_batch}
    interval = step_interval_s(shape, hardware, found.estimate, int(found.best[0])) if len(found.best) else None
    accuracy = accuracy_sentence(hardware.accelerator.efficiency.name, interval, model=shape)
    trust = {"step_time_interval_s": interval, "accuracy": accuracy}
    record = asked | records.recommendation_record(found, hardware) | trust
    if save is not None and len(found.best):
        o.save_json(save, record)
    if html or png or pdf:
        from planner.api.reports import gather_report

        gathered = gather_report(
            question, found, (number, kernel), record, command=shlex.join(["planner", *sys.argv[1:]]), aim=aim,
            working=o.working,
        )  # fmt: skip
        report.write_reports(gathered, html, png, pdf)
    if whys:
        from planner.report.difference import why_record, why_view
    if json:
        answers = {"why": [why_record(answer, hardware) for answer in whys]} if whys else {}
        o.print_json(record | answers)
    else:
        o.print_view(title, "", tables.recommendation_view(found, shape, hardware, accuracy))
        for answer in whys:
            o.print_view("", why_view(answer, hardware))
    if not len(found.best):
        for path in ([save] if save is not None else []) + [file for _, file in targets]:
            typer.echo(f"planner: nothing fits, so {path} was not written", err=True)
        o.finish(1)
    write_best(targets, question, found, record, base)
