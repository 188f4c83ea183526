"""`planner sweep`: every combination of models, clusters, hardware figures, sizes and batches, to a Parquet file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options as o

if TYPE_CHECKING:
    from planner.sweeps.run import SweepProgress

LINE_EVERY_S = 60.0  # where stderr is no terminal


def command(
    definition: Annotated[Path, typer.Argument(help="A TOML file (docs/sweep.md): what is varied, what is settled.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The results, a Parquet file.")],
    workers: Annotated[int | None, typer.Option(help="Processes; else one a core.")] = None,
    dask: Annotated[str | None, typer.Option(help="A Dask cluster that works instead: tcp://host:8786.")] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Forget what an earlier run kept or wrote.")] = False,
    json: o.Json = False,
) -> None:
    """Search every case of a sweep: a row each, with the fastest layout, its memory and cost, or why there is none.

    Killed or interrupted, the same command goes on where it was. Needs pyarrow.

    Example: planner sweep sweep.toml -o results.parquet
    """
    from planner.api.questions import sweep

    try:
        with _shown() as shown:
            answer = sweep(definition, output, workers=workers, dask=dask, restart=restart, on_progress=shown)
    except KeyboardInterrupt:
        typer.echo("planner: sweep: what is done is kept; run the same command to go on", err=True)
        raise
    o.show(answer, json)


@contextmanager
def _shown() -> Iterator[Callable[[SweepProgress], None]]:
    """Progress on stderr: a bar on a terminal, a line a minute elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(console.print)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("cases"),
        TimeRemainingColumn(), TextColumn("{task.fields[layouts]}"),
    )  # fmt: skip
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("sweep", total=None, layouts="")
        begun = time.monotonic()

        def update(p: SweepProgress) -> None:
            rate = (p.layouts - p.kept_layouts) / max(time.monotonic() - begun, 1e-9)
            text = f"{p.layouts:,} layouts, {rate:,.0f}/s" if p.done > p.kept_cases else f"{p.layouts:,} layouts"
            bar.update(task, total=p.cases, completed=p.done, layouts=text)

        yield update


def _lines(write: Callable[[str], None]) -> Callable[[SweepProgress], None]:
    last = time.monotonic()

    def update(p: SweepProgress) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_EVERY_S:
            last = time.monotonic()
            write(f"planner: sweep: {p.done:,} of {p.cases:,} cases, {p.layouts:,} layouts")

    return update
