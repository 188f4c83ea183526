"""`planner simulate`: the exact timeline of one layout's step."""

from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli import options as o
from planner.cli.choices import asked_layout, takes_layout
from planner.cli.unfold import positional


@positional
@takes_layout()
def command(
    context: typer.Context,
    model: o.LayoutModel,
    place: o.Place,
    size: o.StepBatch,
    *,
    gpus: o.JobGpus = None,
    slices: Annotated[
        str, typer.Option(help="How the sequence is cut: work, even, auto (TeraPipe's program), or each one's tokens.")
    ] = "",
    links: Annotated[bool, typer.Option("--links", help="Traffic between nodes shares links.")] = False,
    slow_down: Annotated[float, typer.Option(help="With --links: compute beside them is 1 + this slower.")] = 0.0,
    background: Annotated[
        str,
        typer.Option(help="With --links: flows of other jobs on each pod's links, as 16 or flows=16,gbit_per_s=200."),
    ] = "",
    schedule_file: Annotated[Path | None, typer.Option(help="A CSV with a schedule of your own.")] = None,
    trace: Annotated[Path | None, o.writes("--trace", says="Write a Chrome/Perfetto trace (JSON).")] = None,
    out: o.Output,
    **choices: Any,
) -> None:
    """Simulate one layout's step: every operation of every rank, what each rank waits for, the critical path.

    Example: planner simulate llama-65b --cluster dgx-a100-80gb --tp 8 --pp 8 --global-batch 64 --trace step.json

    Or a plan: planner simulate plan.json --schedule zb-h1
    """
    from planner.api.simulated import Timing, simulate_one
    from planner.base.errors import InputError

    o.check_files({"--trace": (trace, ".json")})
    if schedule_file is not None and choices["schedule"] is not None:
        raise InputError(f"--schedule is {choices['schedule']!r} beside --schedule-file; allowed: one of them")
    how = Timing(schedule_file=schedule_file, slices=slices, links=links, slow_down=slow_down, background=background)
    setup, row = asked_layout(context, model, place, size, gpus, choices)
    step = simulate_one(setup, how, **row)
    if trace is not None:
        step.save(trace)
    out.show(step)
