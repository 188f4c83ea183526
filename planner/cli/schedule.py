"""`planner schedule`: list schedules, draw one, export it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli import completion as complete
from planner.cli import options as o

if TYPE_CHECKING:
    from planner.schedules import Order, Pipeline, Schedule
    from planner.step.timeline.timeline import Timeline


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A schedule's name, or a CSV file with one of your own.", autocompletion=complete.schedules
        ),
    ] = None,
    pp: Annotated[int, typer.Option(help="Pipeline ranks.")] = 4,
    micro_batches: Annotated[int, typer.Option(help="Micro-batches per step.")] = 8,
    virtual_stages: Annotated[int | None, typer.Option(help="Model chunks per rank.")] = None,
    slices: Annotated[int | None, typer.Option(help="Slices of a sequence.")] = None,
    steps: Annotated[int, typer.Option(help="Steps to draw of a pipeline that is never drained.")] = 2,
    forward: Annotated[float, typer.Option(help="Time of a micro-batch's forward through a rank.")] = 1.0,
    input_grad: Annotated[float, typer.Option(help="The same of its input gradient (I).")] = 1.0,
    weight_grad: Annotated[float, typer.Option(help="The same of its weight gradient (W).")] = 1.0,
    transfer: Annotated[float, typer.Option(help="Time of a transfer between ranks, beside the compute.")] = 0.0,
    svg: Annotated[Path | None, typer.Option(help="Write the drawing as SVG.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the drawing as PNG.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write it in the form of PyTorch's pipeline runtime.")] = None,
    json: o.Json = False,
) -> None:
    """Draw a pipeline schedule, with its bubble, activations in flight and weight versions. Without a name, list them.

    Example: planner schedule zb-h1 --pp 4 --micro-batches 8
    """
    if name is None:
        _list(json)
        return
    sizes = {"--pp": pp, "--micro-batches": micro_batches, "--steps": steps, "--virtual-stages": virtual_stages,
             "--slices": slices}  # fmt: skip
    _check_sizes(sizes, {"--forward": forward, "--input-grad": input_grad, "--weight-grad": weight_grad}, transfer)
    o.check_files({"--svg": (svg, ".svg"), "--png": (png, ".png")})
    schedule, pipe, order = _order(name, pp, micro_batches, virtual_stages, slices, steps)
    from planner.step.timeline.timeline import durations, run

    parts = pipe.v * pipe.k
    timeline = run(order, durations(order, forward / parts, input_grad / parts, weight_grad / parts), transfer)
    title = _title(name, pipe)
    _write(timeline, order, schedule, title, pictures=[path for path in (svg, png) if path is not None], csv=csv)
    facts = _facts(schedule, pipe, order, timeline, (forward, input_grad, weight_grad), transfer)
    if json:
        o.print_json({"schedule": name} | facts | {"rows": [[str(op) for op in row] for row in order.rows()]})
    else:
        _draw(title, timeline, facts)


def _check_sizes(sizes: dict[str, int | None], seconds: dict[str, float], transfer: float) -> None:
    """Raises InputError if a number of an option is out of range; sizes that are not given are the schedule's own."""
    from planner.base.errors import InputError

    for option, value in sizes.items():
        if value is not None and not 1 <= value <= 100_000:
            raise InputError(f"{option} is {value}; allowed: a whole number from 1 to 100000")
    for option, lasts in seconds.items():
        if not 0.0 < lasts < float("inf"):
            raise InputError(f"{option} is {lasts}; allowed: a number above 0")
    if not 0.0 <= transfer < float("inf"):
        raise InputError(f"--transfer is {transfer}; allowed: a number from 0")


def _title(name: str, pipe: Pipeline) -> str:
    title = f"{name}: {pipe.p} ranks, {pipe.m} micro-batches"
    title += f", {pipe.v} virtual stages per rank" if pipe.v > 1 else ""
    return title + (f", {pipe.k} slices a sequence" if pipe.k > 1 else "")


def _write(
    timeline: Timeline, order: Order, schedule: Schedule | None, title: str, *, pictures: list[Path], csv: Path | None
) -> None:
    """The files that were asked for."""
    if csv is not None:
        from planner.exporters.schedule_csv import write_schedule_csv

        write_schedule_csv(csv, order, schedule)
    for path in pictures:
        from planner.report.timeline_plot import plot_timeline

        plot_timeline(timeline, path, title)


def _draw(title: str, timeline: Timeline, facts: dict[str, Any]) -> None:
    """The drawing and the facts on stdout, as wide as the terminal."""
    from rich.console import Console

    from planner.report.drawing import draw_timeline
    from planner.report.plain_table import plain_table

    console = Console()
    width = console.width if console.is_terminal else 80
    table = plain_table("", "")
    table.show_header = False
    for key, value in facts.items():
        shown = ", ".join(f"{x:.4g}" for x in value) if isinstance(value, list) else value
        table.add_row(key.replace("_", " "), f"{shown:.6g}" if isinstance(shown, float) else str(shown))
    o.print_view(title, "", draw_timeline(timeline, min(width, 160)), table)


def _list(json: bool) -> None:
    from planner.report.plain_table import plain_table
    from planner.schedules import ALIASES, SCHEDULES

    if json:
        keys = ("name", "source", "synchronous", "splits_backward", "sliced", "chunks", "copies")
        o.print_json({"schedules": [{k: getattr(s, k) for k in keys} for s in SCHEDULES.values()], "aliases": ALIASES})
        return
    table = plain_table("schedule", "changes training", "known from")
    for schedule in SCHEDULES.values():
        table.add_row(schedule.name, "" if schedule.synchronous else "yes", schedule.source)
    names = ", ".join(f"{a} = {b}" for a, b in ALIASES.items())
    o.print_view(table, "", f"Also: {names}")


def _order(
    name: str, pp: int, micro_batches: int, virtual_stages: int | None, slices: int | None, steps: int
) -> tuple[Schedule | None, Pipeline, Order]:
    """The schedule (None for a user's file), its size, and its operations."""
    import numpy as np

    from planner.base.errors import LayoutError
    from planner.base.files import is_path
    from planner.schedules import Pipeline, get_schedule
    from planner.schedules.csv_file import read_schedule

    if is_path(name, (".csv",)):
        order = read_schedule(Path(name))
        stages, m, k = (int(x.max()) + 1 for x in (order.stage, order.micro_batch, order.slice))
        return None, Pipeline(p=order.ranks, m=m, v=max(stages // order.ranks, 1), k=k), order
    schedule = get_schedule(name)
    from planner.step.timeline.timeline import check_size

    v = (2 if schedule.chunks is None else schedule.chunks) if virtual_stages is None else virtual_stages
    k = (2 if schedule.sliced else 1) if slices is None else slices
    pipe = Pipeline(p=pp, m=micro_batches, v=v, k=k)
    check_size(pipe, steps if schedule.steady else 1)
    for rule in schedule.rules(pipe):
        if np.any(rule.broken):
            got = f"pp {pipe.p}, micro-batches {pipe.m}, virtual stages {pipe.v}, slices {pipe.k}"
            raise LayoutError(f"{rule.text}; got {got}")
    return schedule, pipe, schedule.steps_order(pipe, steps) if schedule.steady else schedule.order(pipe)


def _facts(
    schedule: Schedule | None, pipe: Pipeline, order: Order, timeline: Any, times: tuple[float, float, float], c: float
) -> dict[str, Any]:
    """What is said of the schedule beside its drawing; times in the unit of the durations."""
    from planner.step.timeline.critical_path import critical_path

    span = schedule is not None and schedule.unsynchronised_end
    facts: dict[str, Any] = {
        "time": timeline.span_s if span else timeline.makespan_s,
        "clock": "first operation to last of the slowest rank" if span else "first operation to last",
        "bubble_of_what_is_drawn" if schedule is not None and schedule.steady else "bubble": timeline.bubble_fraction(
            span
        ),
        "peak_activations_by_rank": (timeline.peak(kept=0.5) / (pipe.v * pipe.k)).tolist(),
        "critical_path": critical_path(timeline).sentence(),
    }
    if schedule is None:
        return facts
    if c == 0.0:
        known = "bubble_closed_form" if schedule.closed_form(pipe, *times)[1] else "bubble_longest_path"
        facts[known] = float(schedule.bubble_fraction(pipe, *times))
    ranks = range(pipe.p)
    return facts | {
        "weight_versions_by_rank": [float(schedule.weight_versions(pipe, r)) for r in ranks],
        "weight_copies": schedule.copies,
        "messages_per_micro_batch": float(schedule.messages(pipe)),
        "staleness": schedule.staleness(),
        "known_from": schedule.source,
    }
