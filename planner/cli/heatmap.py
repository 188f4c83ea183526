"""`planner heatmap`: a figure of a sweep over two of its axes, as a picture."""

from typing import Annotated

import typer

from planner.cli import options as o
from planner.cli.pareto import ResultsFile, Where
from planner.cli.unfold import unfolded


@unfolded
def command(
    results: ResultsFile,
    x: Annotated[str, typer.Option(help="An axis of the sweep, such as accelerator.memory_gib.")],
    y: Annotated[str, typer.Option(help="Another axis, such as network.bandwidth_gbit_per_s.")],
    out: o.Output,
    *,
    value: Annotated[str, typer.Option(help="Drawn: time, cost, energy, causal_mfu, binding or any column.")] = "time",
    by: Annotated[
        str | None, typer.Option(help="A cell shows its best case by this; else by the value itself, text by time.")
    ] = None,
    where: Where = None,
) -> None:
    """Draw one figure of a model's cases over two axes: each cell the best over all the others.

    Example: planner heatmap results.parquet --x accelerator.memory_gib --y network.bandwidth_gbit_per_s --png map.png
    """
    from planner.api.answer import Answer
    from planner.base.errors import InputError
    from planner.report.pareto import draw_heatmap, heatmap_record
    from planner.sweeps.case_grid import grid
    from planner.sweeps.results import load_results

    if not out.paths and not out.json:
        raise InputError("a heat map needs --svg, --png or --html with a path, or --json")
    rows = load_results(results).where(where or [])
    found = grid(rows, x, y, value, by)
    answer = Answer("heat map", heatmap_record(found, rows), "", lambda: draw_heatmap(found, rows))
    out.draw(answer)
    if out.json:
        o.print_json(answer.record)
