"""`planner recommend`: the layout to run."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.base.errors import InputError
from planner.choices.choice import tokens
from planner.cli import completion as complete
from planner.cli import options as o
from planner.cli.choices import searches
from planner.cli.export import Base
from planner.cli.unfold import positional

if TYPE_CHECKING:
    from planner.api.answer import Answer
    from planner.api.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Report(o.PlanOutput):
    """What is written: the answer's pictures, and in place of their page a report to play with."""

    html: Annotated[Path | None, o.writes("--html", says="Write a report to read and play with: one file.")] = None
    tokens: Annotated[
        float | None,
        o.writes(
            "--tokens", says="For the report's shortest time: tokens; else compute-optimal.",
            parser=partial(tokens, "--tokens"), metavar="<float>",
        ),
    ] = None  # fmt: skip
    loss: Annotated[float | None, o.writes("--loss", says="For the report's shortest time: a target loss.")] = None
    curve: Annotated[
        bool, o.writes("--curve/--no-curve", says="In a report: the shortest time to train (takes seconds).")
    ] = True

    def __post_init__(self) -> None:
        """Raises as `Output`, and InputError for tokens or a loss, if no report will say how long these take."""
        super().__post_init__()
        if not (self.curve or self.html):
            raise InputError("--no-curve is given, for a report; allowed: with --html")
        for option, value in (("--tokens", self.tokens), ("--loss", self.loss)):
            if value is not None and not (self.curve and self.html):
                rule = "allowed: with --html, and no --no-curve"
                raise InputError(f"{option} is {value:g}, for a report's curve; {rule}")

    def write(self, answer: Plan, answers: list[Answer]) -> None:
        """Write what is asked for; stderr says what was written. A picture is of a layout that fits."""
        for path in (self.svg, self.png):
            if path is not None and len(answer):
                answer.save_picture(path)
                _written(path)
        if self.html is None:
            return
        from planner.api.reports import save_report

        save_report(
            answer, self.html, command=shlex.join(["planner", *sys.argv[1:]]), curve=self.curve, tokens=self.tokens,
            loss=self.loss, answers=answers, working=o.working,
        )  # fmt: skip
        _written(self.html)


def _written(path: Path) -> None:
    typer.echo(f"{path}: {path.stat().st_size / 1e3:,.0f} kB", err=True)


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
        str, o.asks("--objective", "time, throughput, cost (one order) or memory.", autocompletion=complete.objectives)
    ] = "time",
    base: Base = None,
    top: Annotated[int, typer.Option(help="How many layouts to show.", min=1, max=1000)] = 5,
    out: Report,
    export: Annotated[
        list[str] | None,
        o.writes("--export", says="Write the best for a framework (planner export): megatron=launch.sh."),
    ] = None,
    **choices: Any,
) -> None:
    """Find the layout to run: every legal one is estimated, the best shown, and why the rest lost.

    Example: planner recommend llama-13b --cluster dgx-a100-80gb --gpus 64 --global-batch 2048

    MFU counts all of attention, as PaLM did. Causal MFU counts what the mask leaves; it comes first.
    A layout names its ranks, then v: virtual stages per rank, mb: micro-batch, sp: sequence parallelism, its schedule.
    Exit code 1 where nothing fits in memory.
    """
    from planner.api.recommended import search_plan
    from planner.cli.export import check_base, targets_and_files, write

    setup = place.setup(model, anchor)
    batch = size.sequences(setup.model.seq_len, gpus)
    targets = targets_and_files(export or [])
    check_base(base, [target.name for target, _ in targets] + ([setup.export] if setup.export is not None else []))
    with o.working("searching every legal layout"):
        plan = search_plan(setup, gpus=gpus, global_batch=batch, top=top, objective=objective, base=base, **choices)
    out.show(plan)
    if not len(plan):
        wanted_files = [path for path in (out.save, out.svg, out.png) if path is not None]
        for path in wanted_files + [file for _, file in targets]:
            typer.echo(f"planner: nothing fits, so {path} was not written", err=True)
        raise typer.Exit(1)
    for target, file in targets:
        write(plan.best.as_plan(), target, file, base if target.takes_base else None)
