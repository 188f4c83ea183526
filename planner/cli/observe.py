"""`planner observe`: what a run's log, traces and memory snapshots say, beside the prediction."""

from pathlib import Path
from typing import Annotated, Any

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
    deepspeed: Annotated[Path | None, o.asks("--deepspeed", "Or its configuration for DeepSpeed.")] = None,
    torchtitan: Annotated[Path | None, o.asks("--torchtitan", "Or its TOML for torchtitan before 0.3.")] = None,
    model: Annotated[str | None, o.asks("--model", "The model that a configuration file is for.")] = None,
    recompute: Annotated[
        str | None, o.asks("--recompute", "With --deepspeed: what the model's code recomputes.")
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
    from planner.api.existing_run import run_of_file, run_of_megatron
    from planner.api.observed import add_rows, configured_run, measured_rows, observe, planned_run
    from planner.base.errors import InputError
    from planner.choices.table import CHOICES
    from planner.cli.estimate import OF_PYTHON, text_of
    from planner.cli.notes import note

    ran = {"--plan": plan, "--megatron-args": megatron_args, "--deepspeed": deepspeed, "--torchtitan": torchtitan}
    given = [name for name, value in ran.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"{given[0]} and {given[1]} are both given; allowed: one of them")
    files = "--deepspeed or --torchtitan"
    beside = {
        "--framework": (framework, f"--megatron-args, {files}"), "--gpus": (gpus, f"--megatron-args, {files}"),
        "--vocab": (vocab, "--megatron-args"), "--model": (model, files), "--recompute": (recompute, "--deepspeed"),
    }  # fmt: skip
    for name, (value, others) in beside.items():
        if value is not None and given and given[0] not in others:
            raise InputError(f"{name} is {value} beside {given[0]}; allowed with {others}")
    for name, value in (("--cluster", cluster), ("--model", model)) if given and plan is None else ():
        if value is None and (name == "--cluster" or megatron_args is None):
            raise InputError(f"{name} is missing; {given[0]} doesn't say it")
    run, where = None, str(cluster)
    known: dict[str, Any] = {"framework": o.profile_of(framework), "gpus": gpus, "model": model}
    if plan is not None:
        run = planned_run(plan, cluster)
    elif megatron_args is not None:
        run = configured_run(run_of_megatron(text_of(megatron_args), where, vocab=vocab, **known), where)
    elif deepspeed is not None:
        python = {name: CHOICES[name].plain(CHOICES[name].default) for name in OF_PYTHON} | {"optimizer": None}
        python["recompute"] = recompute or python["recompute"]
        run = configured_run(run_of_file("deepspeed", deepspeed, where, **known, **python), where)
    elif torchtitan is not None:
        run = configured_run(run_of_file("torchtitan-toml", torchtitan, where, **known), where)
    elif row is not None or cluster is not None:
        raise InputError(f"--plan is missing; what ran must be known, from {', '.join(ran)}")
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
