"""`planner observe`: what a run's log, traces and memory snapshots say, beside the prediction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli import completion as complete
from planner.cli import options as o

if TYPE_CHECKING:
    from planner.api.answer import Answer
    from planner.api.observed import ObservedRun


def command(
    logs: Annotated[
        list[Path], typer.Argument(help="Logs, one per run; PyTorch's traces, one per rank; its memory snapshots.")
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
    from planner.api.observed import observe

    files = {"--plan": plan, "--megatron-args": megatron_args, "--deepspeed": deepspeed, "--torchtitan": torchtitan}
    beside = {"--framework": framework, "--gpus": gpus, "--vocab": vocab, "--model": model, "--recompute": recompute}
    asked = any(value is not None for value in (row, cluster, *beside.values()))
    o.check_files({"--row": (row, ".csv", "")})
    run = _run_of(files, beside, cluster, asked)
    with o.working("reading logs"):
        answer = observe(logs, run)
    if row is not None and run is not None:
        _add(row, answer, run)
    o.show(answer, json)


OF_FILES = ("--deepspeed", "--torchtitan")
BESIDE = {"--framework": ("--megatron-args", *OF_FILES), "--gpus": ("--megatron-args", *OF_FILES),
          "--vocab": ("--megatron-args",), "--model": OF_FILES, "--recompute": ("--deepspeed",)}  # fmt: skip
"""What may stand beside which configuration."""


def _run_of(files: dict[str, Any], beside: dict[str, Any], cluster: str | None, asked: bool) -> ObservedRun | None:
    """What ran; None where nothing says it, and nothing that is asked needs it."""
    from planner.api.existing_run import run_of_file, run_of_megatron
    from planner.api.observed import configured_run, planned_run
    from planner.base.errors import InputError
    from planner.choices.table import CHOICES
    from planner.cli.estimate import OF_PYTHON, text_of

    given = [(name, value) for name, value in files.items() if value is not None]
    if not given:
        if asked:
            raise InputError(f"--plan is missing; what ran must be known, from {', '.join(files)}")
        return None
    if len(given) > 1:
        raise InputError(f"{given[0][0]} and {given[1][0]} are both given; allowed: one of them")
    kind, file = given[0]
    for name, others in BESIDE.items():
        if beside[name] is not None and kind not in others:
            allowed = " or ".join(", ".join(others).rsplit(", ", 1))
            raise InputError(f"{name} is {beside[name]} beside {kind}; allowed with {allowed}")
    if kind == "--plan":
        return planned_run(file, cluster)
    if cluster is None or (kind in OF_FILES and beside["--model"] is None):
        raise InputError(f"{'--cluster' if cluster is None else '--model'} is missing; {kind} doesn't say it")
    known = {"framework": o.profile_of(beside["--framework"]), "gpus": beside["--gpus"], "model": beside["--model"]}
    if kind == "--megatron-args":
        run = run_of_megatron(text_of(file), cluster, vocab=beside["--vocab"], **known)
    elif kind == "--deepspeed":
        python = {name: CHOICES[name].plain(CHOICES[name].default) for name in OF_PYTHON} | {"optimizer": None}
        python["recompute"] = beside["--recompute"] or python["recompute"]
        run = run_of_file("deepspeed", file, cluster, **known, **python)
    else:
        run = run_of_file("torchtitan-toml", file, cluster, **known)
    return configured_run(run, cluster)


def _add(row: Path, answer: Answer, run: ObservedRun) -> None:
    """Add the runs to a file, and say of each whether it was there, and whether it may be an outlier."""
    from planner.api.observed import add_rows, measured_rows, unwritten
    from planner.cli.notes import note

    rows = measured_rows(answer, run)
    there = add_rows(row, rows)
    for log, name in zip(answer.record["logs"], (cells["run"] for cells in rows), strict=True):
        low, high = log["interval_s"]
        outlier = "" if low <= log["measured_step_time_s"] <= high else "; it may be an outlier for --anchor"
        said = "is there already, and isn't added twice" if name in there else f"is added{outlier}"
        note(f"{row}: run {name} {said}")
    if lost := unwritten(run):
        note(f"{row}: no column has {lost}; --anchor and validate read the runs without")
