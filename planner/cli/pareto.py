"""`planner pareto`: the cases of a sweep that none beats in time, cost and power at once."""

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as o
from planner.cli.unfold import unfolded

Where = Annotated[list[str] | None, typer.Option(help="Only rows with COLUMN=VALUE; may be given several times.")]
ResultsFile = Annotated[Path, typer.Argument(help="What planner sweep wrote.")]


@unfolded
def command(
    results: ResultsFile,
    out: o.Output,
    *,
    of: Annotated[
        list[str] | None,
        typer.Option(help="time, cost, power, energy, memory or a column; else the first three, cost if priced."),
    ] = None,
    where: Where = None,
) -> None:
    """Find the Pareto front of each model of a sweep: the cases that no other case beats in everything.

    Example: planner pareto results.parquet --of time --of cost --svg pareto.svg
    """
    from planner.api.answer import Answer
    from planner.report.pareto import draw_fronts, pareto_record, pareto_view
    from planner.sweeps.fronts import fronts
    from planner.sweeps.results import load_results

    rows = load_results(results).where(where or [])
    found = fronts(rows, of)
    out.show(Answer("", pareto_record(found), pareto_view(found), lambda: draw_fronts(found)))
