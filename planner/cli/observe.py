"""`planner observe`: what a run's log, traces and memory snapshots say, beside the prediction."""

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import completion as complete
from planner.cli import options as o


def command(
    logs: Annotated[
        list[Path], typer.Argument(help="Logs, one a run; PyTorch's traces, one a rank; its memory snapshots.")
    ],
    plan: Annotated[Path | None, o.asks("--plan", "The plan that ran (planner recommend --save).")] = None,
    megatron_args: Annotated[
        str | None, o.asks("--megatron-args", "Or its arguments for Megatron-LM, or @FILE with them.")
    ] = None,
    cluster: Annotated[
        str | None, o.asks("--cluster", "A cluster, or a TOML file; else the plan's.", autocompletion=complete.clusters)
    ] = None,
    gpus: Annotated[int | None, o.asks("--gpus", "GPUs, where the arguments don't say.", min=1)] = None,
    framework: o.FrameworkName = None,
    vocab: Annotated[int | None, o.asks("--vocab", "Words of the tokenizer.", min=1)] = None,
    row: Annotated[
        Path | None, o.writes("--row", says="Add the runs to a CSV for --anchor, validate and calibrate --from.")
    ] = None,
    json: o.Json = False,
) -> None:
    """Read logs of Megatron-LM, Megatron-Bridge, NeMo, torchtitan, DeepSpeed, nanotron or Hugging Face's Trainer.

    The median of the iterations after warm-up; of PyTorch's traces how a step is spent, of its memory snapshots who
    asked for the peak; with what ran, beside its prediction, and what to look at first.

    Example: planner observe run.log --plan plan.json --row mine.csv

    Then: planner recommend ... --anchor mine.csv
    """
    from planner.api.observed import add_rows, measured_rows, megatron_arguments_run, observe, planned_run
    from planner.base.errors import InputError
    from planner.cli.estimate import text_of
    from planner.cli.notes import note

    if plan is not None and megatron_args is not None:
        raise InputError("--plan and --megatron-args are both given; allowed: one of them")
    run = None
    if plan is not None:
        for name, value in (("--framework", framework), ("--gpus", gpus), ("--vocab", vocab)):
            if value is not None:
                raise InputError(f"{name} is {value}, but the plan of --plan says it; allowed with --megatron-args")
        run = planned_run(plan, cluster)
    elif megatron_args is not None:
        if cluster is None:
            raise InputError("--cluster is missing; arguments of Megatron-LM don't say where they ran")
        arguments = text_of(megatron_args)
        run = megatron_arguments_run(arguments, cluster, framework=o.profile_of(framework), gpus=gpus, vocab=vocab)
    elif row is not None or cluster is not None:
        raise InputError("--plan is missing; what ran must be known, from --plan or --megatron-args")
    with o.working("reading logs"):
        answer = observe(logs, run)
    if row is not None and run is not None:
        rows = measured_rows(answer, run)
        there = add_rows(row, rows)
        for log, name in zip(answer.record["logs"], (cells["run"] for cells in rows), strict=True):
            low, high = log["interval_s"]
            outlier = "" if low <= log["measured_step_time_s"] <= high else "; it may be an outlier for --anchor"
            said = "is there already, and isn't added twice" if name in there else f"is added{outlier}"
            note(f"{row}: run {name} {said}")
    o.show(answer, json)
