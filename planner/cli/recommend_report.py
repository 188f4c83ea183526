"""The reports of `planner recommend`: an HTML page, and pictures of its plots."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options as o
from planner.cli.assumed import count

if TYPE_CHECKING:
    from planner.report.plan_report import PlanReport

Html = Annotated[Path | None, o.writes("--html", says="Write a report to read and play with: one file.")]
Png = Annotated[Path | None, o.writes("--png", says="Write the report's plots as one picture.")]
Pdf = Annotated[Path | None, o.writes("--pdf", says="Write the report's plots as slides.")]
ReportTokens = Annotated[
    float | None,
    o.writes(
        "--tokens",
        says="For the report's shortest time: tokens; else compute-optimal.",
        parser=count,
        metavar="<float>",
    ),
]
ReportLoss = Annotated[float | None, o.writes("--loss", says="For the report's shortest time: a target loss.")]
WithCurve = Annotated[
    bool, o.writes("--curve/--no-curve", says="In a report: the shortest time to train (takes seconds).")
]


def check_files(html: Path | None, png: Path | None, pdf: Path | None, save: Path | None) -> None:
    """Asks before the search whether the files can be written. Raises as `planner.cli.options.check_files`."""
    files = {"--html": (html, ".html"), "--png": (png, ".png"), "--pdf": (pdf, ".pdf")}
    o.check_files(files | ({"--save": (save, save.suffix)} if save is not None else {}))


def check_aim(tokens: float | None, loss: float | None, *, used: bool) -> None:
    """Raises InputError if tokens or a loss are given, and no report will say how long these take."""
    from planner.base.errors import InputError

    for option, value in (("--tokens", tokens), ("--loss", loss)):
        if value is not None and not used:
            raise InputError(
                f"{option} is {value:g}, for a report's curve; allowed: with --html, --png or --pdf, and no --no-curve"
            )


def write_reports(report: PlanReport, html: Path | None, png: Path | None, pdf: Path | None) -> None:
    """Every report that is asked for; what was written goes to stderr.

    Raises OutputError if a path can't be written.
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
