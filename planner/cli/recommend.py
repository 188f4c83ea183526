"""`planner recommend`: the layout to run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from planner.cli import completion as complete
from planner.cli import options as o
from planner.cli import recommend_report as report
from planner.cli.choices import searches
from planner.cli.export import Base
from planner.cli.positional import positional

if TYPE_CHECKING:
    from planner.api.answer import Answer
    from planner.api.plan import Plan


@positional
@searches
def command(
    model: o.Model,
    place: o.Place,
    gpus: o.Gpus,
    size: o.StepBatch,
    *,
    anchor: o.Anchor = None,
    objective: Annotated[
        str,
        o.asks("--objective", "time, throughput, cost (one order) or memory.", autocompletion=complete.objectives),
    ] = "time",
    allow_async: Annotated[
        bool, o.asks("--allow-async", "Also schedules that change the training, such as 2bw.")
    ] = False,
    allow_offload: Annotated[
        bool, o.asks("--allow-offload", "Also try optimizer state and activations in host memory.")
    ] = False,
    base: Base = None,
    top: Annotated[int, typer.Option(help="How many layouts to show.", min=1, max=1000)] = 5,
    why: Annotated[list[str] | None, typer.Option(help="Why not such a layout: tp=8,pp=1.")] = None,
    save: Annotated[Path | None, o.writes("--save", says="Write the plan, as --json prints it, to a file.")] = None,
    html: report.Html = None,
    png: report.Png = None,
    pdf: report.Pdf = None,
    tokens: report.ReportTokens = None,
    loss: report.ReportLoss = None,
    curve: report.WithCurve = True,
    export: Annotated[
        list[str] | None,
        o.writes("--export", says="Write the best for a framework (planner export): megatron=launch.sh."),
    ] = None,
    json: o.Json = False,
    **choices: Any,
) -> None:
    """Find the layout to run: every legal one is estimated, the best shown, and why the rest lost.

    Example: planner recommend llama-13b --cluster dgx-a100-80gb --gpus 64 --global-batch 2048

    MFU counts all of attention, as PaLM did. Causal MFU counts what the mask leaves; it comes first where they differ.
    Exit code 1 where nothing fits in memory.
    """
    from planner.api.recommended import search_plan
    from planner.cli.export import check_base, targets_and_files, write_best
    from planner.search.why import parse_wanted

    report.check_files(html, png, pdf, save)
    report.check_aim(tokens, loss, used=curve and bool(html or png or pdf))
    setup = place.setup(model, anchor)
    batch = size.sequences(setup.model.seq_len)
    targets = targets_and_files(export or [])
    check_base(base, [target.name for target, _ in targets] + ([setup.export] if setup.export is not None else []))
    for wanted in why or []:
        parse_wanted(wanted)
    with o.working("searching every legal layout"):
        plan = search_plan(
            setup, gpus=gpus, global_batch=batch, top=top, objective=objective, base=base,
            allow_async=allow_async, allow_offload=allow_offload, **choices,
        )  # fmt: skip
        answers = [plan.why(wanted) for wanted in why or []]
    if save is not None and len(plan):
        plan.save(save)
    if html or png or pdf:
        shown = plan.gathered(
            shlex.join(["planner", *sys.argv[1:]]), curve=curve, tokens=tokens, loss=loss, answers=answers,
            working=o.working,
        )  # fmt: skip
        report.write_reports(shown, html, png, pdf)
    _show(plan, answers, json)
    if not len(plan):
        _nothing_written(([save] if save is not None else []) + [file for _, file in targets])
    write_best(targets, plan, base)


def _show(plan: Plan, answers: list[Answer], json: bool) -> None:
    """The plan on stdout, then why it is not otherwise, where that was asked."""
    if json:
        o.print_json(plan.to_dict() | ({"why": [answer.record for answer in answers]} if answers else {}))
        return
    o.print_view(*plan.lines)
    for answer in answers:
        o.print_view("", answer.view)


def _nothing_written(files: list[Path]) -> NoReturn:
    """Says on stderr which files were not written, for nothing fits in memory; exit code 1."""
    for path in files:
        typer.echo(f"planner: nothing fits, so {path} was not written", err=True)
    o.finish(1)
