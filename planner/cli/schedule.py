"""`planner schedule`: list schedules, draw one, export it."""

from pathlib import Path
from typing import Annotated

import typer

from planner.base.errors import InputError
from planner.cli import completion as complete
from planner.cli import options as o
from planner.cli.unfold import unfolded


@unfolded
def command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A schedule's name, or a CSV file with one of your own.", autocompletion=complete.schedules
        ),
    ] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline ranks: 4, unless a file says.")] = None,
    micro_batches: Annotated[int | None, typer.Option(help="Micro-batches per step: 8, unless a file says.")] = None,
    virtual_stages: Annotated[int | None, typer.Option(help="Model chunks per rank.")] = None,
    slices: Annotated[int | None, typer.Option(help="Slices of a sequence.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps to draw of a pipeline that is never drained: 2.")] = None,
    forward: Annotated[float, typer.Option(help="Time of a micro-batch's forward through a rank.")] = 1.0,
    input_grad: Annotated[float, typer.Option(help="The same of its input gradient (I).")] = 1.0,
    weight_grad: Annotated[float, typer.Option(help="The same of its weight gradient (W).")] = 1.0,
    transfer: Annotated[float, typer.Option(help="Time of a transfer between ranks, beside the compute.")] = 0.0,
    *,
    out: o.Output,
    csv: Annotated[Path | None, o.writes("--csv", says="Write it in the form of PyTorch's pipeline runtime.")] = None,
) -> None:
    """Draw a pipeline schedule, with its bubble, activations in flight and weight versions. Without a name, list them.

    Example: planner schedule zb-h1 --pp 4 --micro-batches 8
    """
    if name is None:
        sizes = {"pp": pp, "micro-batches": micro_batches, "virtual-stages": virtual_stages, "slices": slices,
                 "steps": steps, "csv": csv}  # fmt: skip
        for option, value in sizes.items():
            if value is not None:
                raise InputError(
                    f"--{option} is {value}, but no schedule is named; allowed: planner schedule NAME, or without"
                )
        _list(out.json)
        return
    from rich.console import Console

    from planner.api.schedules import COLUMNS, schedule

    answer = schedule(
        name, pp=pp, micro_batches=micro_batches, virtual_stages=virtual_stages, slices=slices, steps=steps,
        forward=forward, input_grad=input_grad, weight_grad=weight_grad, transfer=transfer,
    )  # fmt: skip
    o.check_files({"--csv": (csv, ".csv", "")})
    if csv is not None:
        answer.to_csv(csv)
    out.draw(answer)
    console = Console()
    if out.json:
        o.print_json(answer.to_dict())
    else:
        o.print_view(*answer.view(min(console.width, 160) if console.is_terminal else COLUMNS))


def _list(json: bool) -> None:
    from planner.report.plain_table import plain_table
    from planner.schedules import ALIASES, SCHEDULES

    if json:
        keys = ("name", "source", "synchronous", "splits_backward", "sliced", "chunks", "copies")
        o.print_json({"schedules": [{k: getattr(s, k) for k in keys} for s in SCHEDULES.values()], "aliases": ALIASES})
        return
    rows = ((s.name, "" if s.synchronous else "yes", s.source) for s in SCHEDULES.values())
    table = plain_table("schedule", "changes training", "known from", rows=rows)
    names = ", ".join(f"{a} = {b}" for a, b in ALIASES.items())
    o.print_view(table, "", f"Also: {names}")
