"""The reports of `planner recommend`: an HTML page, and pictures of its plots."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli import options as o

if TYPE_CHECKING:
    from planner.plan_file import Plan
    from planner.report.plan_report import ExportText, PlanReport

Html = Annotated[Path | None, typer.Option("--html", help="Write a report to read and play with: one file.")]
Png = Annotated[Path | None, typer.Option("--png", help="Write the report's plots as one picture.")]
Pdf = Annotated[Path | None, typer.Option("--pdf", help="Write the report's plots as slides.")]
ReportTokens = Annotated[
    float | None, typer.Option("--tokens", help="For the report's shortest time: tokens; else compute-optimal.")
]
ReportLoss = Annotated[float | None, typer.Option("--loss", help="For the report's shortest time: a target loss.")]
WithCurve = Annotated[bool, typer.Option(help="In a report: the shortest time to train (takes seconds).")]
LARGEST_COMPANION = 60_000  # characters of a schedule's CSV in a page


def check_paths(html: Path | None, png: Path | None, pdf: Path | None) -> None:
    """Nothing, if the reports can be written there; asked before the search.

    Raises:
        InputError: a path with another suffix.
        OutputError: no folder, or no permission.
    """
    from planner.errors import InputError
    from planner.files import check_writable

    for suffix, path in ((".html", html), (".png", png), (".pdf", pdf)):
        if path is not None:
            if path.suffix != suffix:
                raise InputError(f"--{suffix[1:]} is {path}; allowed: a path that ends in {suffix}")
            check_writable(path)


def write_reports(report: PlanReport, html: Path | None, png: Path | None, pdf: Path | None) -> None:
    """Every report that is asked for; what was written goes to stderr.

    Raises:
        OutputError: a path can't be written.
    """
    if html is not None:
        from planner.report.html import write_html

        write_html(html, report)
    if png is not None or pdf is not None:
        from planner.report.slides import write_slides

        with o.working("drawing"):
            write_slides(report, png=png, pdf=pdf)
    for path in (html, png, pdf):
        if path is not None:
            typer.echo(f"{path}: {path.stat().st_size / 1e3:,.0f} kB", err=True)


def gather(
    asked: Any, found: Any, numerics: tuple[Any, Any], *, title: str, gpus: int, global_batch: int, accuracy: Any,
    aim: Any, record: dict[str, Any],
) -> PlanReport:  # fmt: skip
    """All that a report shows. asked: model, cluster and framework; aim: what is trained, None: without that curve.
    record: the recommendation as JSON prints it.
    """
    from planner import __version__
    from planner.cli.export import best_plan
    from planner.report.plan_report import PlanReport, shortest_times, simulate_shown

    shape, hardware, stack = asked
    precision, attention = numerics
    curve = None
    if aim is not None:
        with o.working("searching the shortest time to train"):
            curve = shortest_times(shape, hardware, stack, aim, gpus=gpus, precision=precision, attention=attention)
    with o.working("simulating the layouts of the report"):
        steps = simulate_shown(shape, hardware, stack, found)
    return PlanReport(
        version=__version__,
        title=title,
        command=shlex.join(["planner", *sys.argv[1:]]),
        model=shape,
        cluster=hardware,
        framework=stack,
        gpus=gpus,
        global_batch=global_batch,
        precision=precision.name.lower(),
        attention=attention.name.lower(),
        found=found,
        steps=steps,
        accuracy=accuracy,
        curve=curve,
        exports=_exports(record, best_plan(asked, found, record)) if len(found.best) else [],
    )


def _exports(record: dict[str, Any], plan: Plan) -> list[ExportText]:
    """The recommended plan as JSON and as every framework's file, or why a framework can't run it."""
    import json

    from planner.errors import LayoutError
    from planner.export.plan_export import TARGETS, export_plan
    from planner.report.plan_report import ExportText

    text = json.dumps(record | {"best": record["best"][:1], "pareto_front": []}, indent=2, allow_nan=False) + "\n"
    note = "As planner recommend --save writes it, with the best layout alone: planner export reads it."
    out = [ExportText(name="Plan (JSON)", filename="plan.json", text=text, notes=(note,))]
    for target in TARGETS.values():
        name = target.name if any(x.name == target.title for x in out) else target.title
        file = Path(target.name + target.suffix)
        try:
            done = export_plan(plan, target, path=file)
        except LayoutError as error:
            out.append(ExportText(name=name, filename=file.name, text="", notes=(str(error),)))
            continue
        notes = tuple(f"Not in {target.title}: {note}." for note in done.notes)
        notes += (f"WARNING: {done.warning}",) if done.warning else ()
        out.append(ExportText(name=name, filename=file.name, text=done.text, notes=notes))
        for path, beside in done.companions.items():
            if len(beside) <= LARGEST_COMPANION:
                out.append(ExportText(name=path.name, filename=path.name, text=beside))
    return out
