"""`planner train`: a plan run for real, small."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from planner.base.errors import ExecutionError, InputError, PlannerError
from planner.base.files import check_writable
from planner.base.units import counted, format_seconds
from planner.choices.choice import real
from planner.choices.table import CHOICES
from planner.cli import completion as complete
from planner.cli.choices import replaces
from planner.cli.options import check_files
from planner.cli.process import keep_freed_memory, share_processors, started_by_mpirun
from planner.cli.train_outcome import finish
from planner.cli.train_plan import Choices, check_layers, left_out, make_training, read_plan
from planner.cli.unfold import unfolded

if TYPE_CHECKING:
    from planner.trainer.communicator import Communicator
    from planner.trainer.loop import Progress, Training
    from planner.trainer.noise import NoiseScale

_OUT_OF_MEMORY = "out of memory; try a smaller --scale or --micro-batch, or --recompute full"

MOST_SERIAL_RANKS = 256  # each a thread, and each wakes all when it sends


def _given(instead: dict[str, Any]) -> dict[str, Any]:
    """The choices given in place of a plan's; a way to recompute means all layers, unless it is said how many."""
    rows = {name: CHOICES[name] for name, value in instead.items() if value is not None}
    given = {name: choice.plain(choice.coded(instead[name])) for name, choice in rows.items()}
    return ({"recompute_layers": 0} if "recompute" in given else {}) | given


@unfolded
@replaces("etp", "layer_split")
def command(
    plan: Annotated[Path | None, typer.Argument(help="JSON of planner recommend or estimate --json.")] = None,
    model: Annotated[
        str, typer.Option(help="Without a plan: the model, as for planner estimate.", autocompletion=complete.models)
    ] = "gpt2",
    *,
    choices: Choices,
    instead: dict[str, Any],
    slices: Annotated[
        int | None, typer.Option("--sequence-slices", "--slices", min=1, help="Of a sequence, instead of the plan's.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="serial (default), mpi (default under mpirun) or nccl.")] = None,
    device: Annotated[str, typer.Option(help="cpu or gpu.")] = "cpu",
    optimizer: Annotated[str, typer.Option(help="adamw, adam or sgd.")] = "adamw",
    learning_rate: Annotated[float, typer.Option(help="Step size of the optimizer.", min=0.0)] = 3e-3,
    checkpoint: Annotated[Path | None, typer.Option(help="Folder; goes on from its latest checkpoint.")] = None,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 100,
    noise_scale: Annotated[bool, typer.Option(help="Measure the gradient noise scale every 10 steps.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Write the last step as a Perfetto trace.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was measured as JSON and nothing else.")] = False,
) -> None:
    """Train a small transformer by a plan's own layout and schedule, and print what it took.

    Example: planner train plan.json --steps 200, or mpirun -n 4 planner train plan.json

    Exit code 2 where the plan can't be run, where a rank fails or the loss is no number.
    """
    share_processors()
    keep_freed_memory()
    engine = engine or ("mpi" if started_by_mpirun() else "serial")

    def prepare() -> Training:
        for option, value in (("--learning-rate", learning_rate), ("--clip", choices.clip)):
            real(option, value or 0.0, least=0.0, most=1e30)  # nan and infinity pass the option parser's range
        check_files({"--trace": (trace, ".json", "")})
        if checkpoint is not None:
            folders = (checkpoint.absolute(), *checkpoint.absolute().parents)
            check_writable(next(folder for folder in folders if folder.exists()) / "latest.json")
        shape, row = read_plan(plan, model)
        given = _given(instead | {"sequence_slices": slices})
        row |= given
        training = make_training(
            shape, row, choices, instead["micro_batch"], optimizer=optimizer, learning_rate=learning_rate,
            checkpoint=checkpoint, checkpoint_every=checkpoint_every, noise_every=10 if noise_scale else 0,
        )  # fmt: skip
        check_layers(training.task, row, given)
        return training if plan is None else replace(training, left_out=left_out(row, training, choices.precision))

    _run(engine, device, choices.precision, prepare, trace, json)


def _run(engine: str, device: str, precision: str, prepare: Any, trace: Path | None, json: bool) -> None:
    """Start the ranks; the first prints."""
    from planner.trainer.arrays import xp_for
    from planner.trainer.loop import train
    from planner.trainer.serial import run_serial

    xp = xp_for(device)
    if engine == "serial":
        training = prepare()
        if (ranks := training.task.num_ranks) > MOST_SERIAL_RANKS:
            raise InputError(f"the layout has {ranks} ranks; allowed: {MOST_SERIAL_RANKS} with the engine serial")

        def rank(c: Any) -> Any:
            return train(c, training, _reporter(training, quiet=json or c.rank > 0))

        try:
            measured = run_serial(xp, training.task.num_ranks, rank)[0]
        except MemoryError as error:
            raise ExecutionError(f"{_OUT_OF_MEMORY} ({error})") from None
        finish(training, measured, engine, trace, json)
        return
    if engine not in ("mpi", "nccl"):
        raise InputError(f"engine is {engine!r}; allowed: serial, mpi, nccl")
    if engine == "mpi" and precision == "fp16":
        raise InputError("precision is 'fp16' with the engine mpi, which sends no 16-bit numbers; allowed: fp32, fp64")
    from planner.trainer.mpi import MPICommunicator, NCCLCommunicator

    communicator = NCCLCommunicator(xp) if engine == "nccl" else MPICommunicator(xp)
    try:
        training = _prepared(communicator, prepare)
        measured = train(communicator, training, _reporter(training, quiet=json or communicator.rank > 0))
        if communicator.rank == 0:
            finish(training, measured, engine, trace, json)
    except typer.Exit:
        raise
    except BaseException as error:
        # The others wait for this rank: stop them all, with its name.
        message = str(error) if isinstance(error, PlannerError) else f"{type(error).__name__}: {error}"
        message = f"{_OUT_OF_MEMORY} ({error})" if isinstance(error, MemoryError) else message
        print(f"planner: rank {communicator.rank}: {message}", file=sys.stderr, flush=True)
        communicator.abort(2)


def _prepared(communicator: Communicator, prepare: Any) -> Training:
    """The training, if every rank could make it; else all end together, and one of those that failed says why."""
    from planner.trainer.communicator import RankGroup

    training, failure = None, ""
    try:
        training = prepare()
        if training.task.num_ranks != communicator.size:
            failure = f"the plan needs {training.task.num_ranks} ranks; {communicator.size} were started"
    except PlannerError as error:
        failure = str(error)
    world = RankGroup("world", tuple(range(communicator.size)))
    failed = communicator.xp.asarray([float(communicator.size - communicator.rank) if failure else 0.0])
    first = communicator.size - int(communicator.all_reduce(failed, world, "max")[0])
    if first == communicator.rank:
        print(f"planner: rank {communicator.rank}: {failure}", file=sys.stderr, flush=True)
    if first < communicator.size:
        raise typer.Exit(2)
    return cast("Training", training)


def _noise_line(noise: NoiseScale) -> str:
    """The noise scale with its standard error, or why it means nothing."""
    if noise.why_nothing:
        return f"noise scale not known: {noise.why_nothing}"
    return f"noise scale {noise.sequences:,.1f} +- {noise.standard_error:,.1f} sequences"


def _reporter(training: Training, quiet: bool) -> Any:
    """Prints a step's loss on stderr, in one line that is written over on a terminal."""
    if quiet:
        return lambda progress: None
    terminal, model = sys.stderr.isatty(), training.task.model
    tokens, ranks = training.samples.sequences * model.seq_len, training.task.num_ranks
    size = f"{counted(model.num_layers, 'layer')} of width {model.hidden}, {tokens:,} tokens per step"
    size += f", {counted(ranks, 'rank')}"
    begun = False

    def report(progress: Progress) -> None:
        if progress.loss != progress.loss:
            print(f"going on after step {progress.step}", file=sys.stderr)
            return
        nonlocal begun
        if not begun:
            left = training.steps - progress.step
            how_long = f"; about {format_seconds(progress.time_s * left)} to step {training.steps:,} (--scale, --steps)"
            print(f"{size}{how_long if left else ''}", file=sys.stderr)
            if training.left_out:
                print(f"not run of the plan: {', '.join(training.left_out)}", file=sys.stderr)
            begun = True
        last = progress.step == training.steps
        if terminal or last or progress.step % max(training.steps // 10, 1) == 0:
            noise = f"  {_noise_line(progress.noise)}" if training.noise_every else ""
            line = f"step {progress.step:>5}/{training.steps}  loss {progress.loss:.4f} nats/byte"
            end = "\r" if terminal and not last else "\n"
            print(f"{line}  {progress.time_s * 1e3:,.0f} ms{noise}", end=end, file=sys.stderr, flush=True)

    return report
