"""A plan's layout and schedule for `planner train`, on a model and a batch that this machine can train."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.base.errors import InputError, LayoutError
from planner.base.units import GIB
from planner.choices.choice import value_text
from planner.choices.table import CHOICES, usual

if TYPE_CHECKING:
    from planner.models import Transformer
    from planner.schedules import Pipeline, Schedule
    from planner.trainer.loop import Training
    from planner.trainer.task import Task
    from planner.trainer.text import Samples

MOST_SEQUENCES = 8
MOST_RANKS = 4096
MOST_PASSES = 1_000_000  # of a step on all ranks: a millisecond each at least
MOST_TOKENS = 2**31  # of a step, all replicas: their positions in the text are drawn at once
PRECISIONS = {"fp16": "float16", "fp32": "float32", "fp64": "float64"}
NOT_RUN = ("attention", "layer_split", "pipeline_layout", "fused_norm", "cuda_graphs", "expert_imbalance")
"""Choices of a layout that the trainer has nothing for."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What is trained besides the plan's layout; `planner.cli.unfold` makes the options."""

    scale: Annotated[str, typer.Option(help="A small model of the same kind: tiny, small, medium, large; or full.")] = (
        "small"
    )
    steps: Annotated[int, typer.Option(min=1, max=100_000_000, help="Optimizer steps.")] = 100
    micro_batches: Annotated[int | None, typer.Option(min=1, help="Of a step, instead of the plan's.")] = None
    precision: Annotated[str, typer.Option(help="fp16 (with a loss scale; not under mpi), fp32 or fp64.")] = "fp32"
    text: Annotated[Path | None, typer.Option(help="Text to train on; by default Python's own sources.")] = None
    clip: Annotated[
        float | None, typer.Option(min=0.0, help="Largest norm of the gradient, 0 for none. Default: 1.")
    ] = None
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the data.", min=0)] = 0
    allow_async: Annotated[bool, typer.Option(help="Allow schedules that take gradients at older weights.")] = False


def read_plan(path: Path | None, model: str) -> tuple[Transformer, dict[str, Any]]:
    """The model and the layout of a plan; without one, the layout of a single rank."""
    from planner.layouts import Layouts
    from planner.models import load_model
    from planner.plan_file import read_choices

    if path is None:
        return load_model(model), Layouts.of(global_batch=16, micro_batch=4, zero=0).row(0)
    return read_choices(path)


def make_training(
    model: Transformer, row: dict[str, Any], choices: Choices, micro_batch: int | None, **how: Any
) -> Training:
    """The run of a plan's model and layout; `how` are `Training`'s own fields.

    micro_batch: sequences at once; None: the plan's, as far as this machine has room.

    Raises InputError, LayoutError for what the trainer can't run, or the user didn't allow.
    """
    from planner.schedules import get_schedule
    from planner.step.timeline.timeline import check_size
    from planner.trainer.asynchronous import STALENESS
    from planner.trainer.loop import Training
    from planner.trainer.text import Samples, load_text

    schedule = get_schedule(row["schedule"])
    if not schedule.synchronous and not choices.allow_async:
        raise LayoutError(
            f"schedule {schedule.name} is asynchronous: gradients are taken at older weights; "
            "allow it with --allow-async"
        )
    if not schedule.synchronous and choices.clip:
        raise InputError(
            f"--clip is {choices.clip:g} with schedule {schedule.name}; allowed: 0, for a pipeline that is never "
            "drained has no norm of the whole gradient"
        )
    if (ranks := row["dp"] * row["tp"] * row["pp"] * row["cp"]) > MOST_RANKS:
        raise LayoutError(
            f"dp {row['dp']}, tp {row['tp']}, pp {row['pp']} and cp {row['cp']} make {ranks} ranks; "
            f"allowed: {MOST_RANKS}"
        )
    pipe = _pipeline(schedule, row, choices.micro_batches)
    check_size(pipe, 1 if schedule.synchronous else choices.steps)
    if (passes := 2 * ranks * pipe.m * pipe.v * pipe.k) > MOST_PASSES:
        raise LayoutError(
            f"{ranks} ranks, {pipe.m} micro-batches, {pipe.v} virtual stages and {pipe.k} slices make {passes:,} "
            f"passes a step; allowed: {MOST_PASSES:,}"
        )
    task = _task(model, row, schedule, pipe, choices)
    samples = Samples(
        text=load_text(choices.text), seq_len=task.model.seq_len, micro_batches=task.micro_batches, dp=task.dp,
        micro_batch=micro_batch or min(int(row["micro_batch"]), MOST_SEQUENCES), seed=choices.seed,
    )  # fmt: skip
    if (tokens := samples.sequences * samples.seq_len) > MOST_TOKENS:
        raise LayoutError(
            f"micro_batch {samples.micro_batch}, {task.micro_batches} micro-batches and dp {task.dp} make {tokens} "
            f"tokens per step; allowed: {MOST_TOKENS}"
        )
    _check_memory(task, samples)
    training = Training(task=task, samples=samples, steps=choices.steps, **how)
    if schedule.synchronous:
        return training
    return replace(
        training,
        staleness=STALENESS[schedule.name],
        updates_behind=lambda rank, micro_batch: int(schedule.updates_behind(pipe, rank, micro_batch)),
    )


def left_out(row: dict[str, Any], training: Training, precision: str) -> tuple[str, ...]:
    """What of a plan's layout isn't run, in words: choices that aren't the usual ones, or the batch."""
    samples, kept = training.samples, "fp64" if precision == "fp64" else "fp32"
    ran = dict.fromkeys(("grad_dtype", "grad_reduce_dtype", "main_dtype"), kept) | {
        "micro_batch": samples.micro_batch, "global_batch": samples.sequences, "precision": precision,
        "optimizer": training.optimizer, "dispatcher": "ppmoe" if training.task.picks else "alltoall",
    }  # fmt: skip
    return tuple(
        f"{c.typed} {value_text(row[c.name])}" + (f" (here {ran[c.name]})" if c.name in ran else "")
        for c in CHOICES.values()
        if c.name in (*ran, *NOT_RUN) and row[c.name] not in (usual(c, row), ran.get(c.name))
    )


def check_layers(task: Task, row: dict[str, Any], given: dict[str, Any]) -> None:
    """Raises LayoutError if a number of layers that was asked for isn't legal for the model that is trained."""
    from planner.hardware import load_cluster
    from planner.layouts import Layouts
    from planner.step.legality import rules

    asked = tuple(name for name in ("offload_layers", "recompute_layers") if given.get(name))
    if not asked:
        return
    own = row | {"layer_split": "even", "pipeline_layout": ""}
    layouts = Layouts.of(**{name: CHOICES[name].coded(value) for name, value in own.items()})
    for rule in rules(task.model, load_cluster("workstation-cpu"), layouts):
        if rule.text.startswith(asked) and rule.broken.any():
            got = ", ".join(f"{name} {row[name]}" for name in ("pp", "virtual_stages", *asked))
            raise LayoutError(f"illegal layout: {rule.text}; got {got}, num_layers {task.model.num_layers}")


def _check_memory(task: Task, samples: Samples) -> None:
    """Raises InputError, before minutes of trying, if a micro-batch's scores and layers' inputs don't fit here."""
    import os

    import numpy as np

    model, tokens = task.model, samples.micro_batch * samples.seq_len // (task.cp * (len(task.bounds) - 1))
    logits = model.output_heads * model.vocab // task.tp
    numbers = tokens * (logits + model.hidden * (model.num_layers // max(len(task.rows), 1)))
    needed = numbers * np.dtype(task.dtype).itemsize
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else needed
    if needed > here:
        raise InputError(
            f"micro_batch is {samples.micro_batch}: a micro-batch needs over {needed / GIB:,.0f} GiB, this machine has "
            f"{here / GIB:,.0f} GiB; allowed: fewer sequences, or a smaller --scale"
        )


def _task(model: Transformer, row: dict[str, Any], schedule: Schedule, pipe: Pipeline, choices: Choices) -> Task:
    """The plan's layout and schedule on a model that this machine can train."""
    import numpy as np

    from planner.choices.offload import module_names, read_modules
    from planner.layouts import Recompute, choice
    from planner.trainer.scaled import scaled_model
    from planner.trainer.task import Task, check_model

    if choices.precision not in PRECISIONS:
        raise InputError(f"precision is {choices.precision!r}; allowed: {', '.join(PRECISIONS)}")
    if row["train"] != "full":
        raise LayoutError(f"train is {row['train']}; the trainer trains whole models: set train full in the plan")
    if model.num_experts and row["tp"] > 1 and row["etp"] > 1:
        raise LayoutError(f"etp is {row['etp']}; the trainer keeps experts whole: set etp 1 in the plan")
    order = schedule.order(pipe) if schedule.synchronous else schedule.steps_order(pipe, choices.steps)
    check_model(model)
    shape, stages, slices = model, int(order.stage.max()) + 1, pipe.k * 2 * row["cp"]
    if choices.scale != "full":
        shape = scaled_model(model, choices.scale, row["tp"], stages, slices, row["ulysses"], row["ep"])
    if not schedule.synchronous:
        shape = replace(shape, tied=False)  # ranks update on their own: they can't share the embedding
    return Task(
        model=shape, rows=order.rows(), micro_batches=pipe.m, dp=row["dp"], tp=row["tp"], cp=row["cp"],
        ulysses=row["ulysses"], inner_ring=row["inner_ring"], ep=row["ep"], zero=row["zero"],
        picks=row["dispatcher"] == "ppmoe", dp_replicate=row["dp_replicate"],
        recompute=choice(Recompute, row["recompute"]),
        recompute_layers=row["recompute_layers"], sequence_parallel=row["sequence_parallel"],
        bounds=tuple(shape.seq_len * i // pipe.k for i in range(pipe.k + 1)),
        dtype=np.dtype(PRECISIONS[choices.precision]), seed=choices.seed,
        clip=1.0 if choices.clip is None else choices.clip,
        layer_at_a_time=schedule.layer_at_a_time,
        capacity_factor=row["capacity_factor"],
        offload_parameters=row["offload_parameters"],
        offload_layers=row["offload_layers"],
        offload_modules=tuple(module_names(read_modules(row["offload_modules"]))),
        offload_fraction=row["offload_fraction"] if row["offload_optimizer"] else 0.0,
    )  # fmt: skip


def _pipeline(schedule: Schedule, row: dict[str, Any], chosen: int | None) -> Pipeline:
    """The plan's pipeline with the micro-batches that were chosen, or the fewest legal ones from 2 pp on."""
    import numpy as np

    from planner.schedules import Pipeline

    planned = max(row["global_batch"] // (row["micro_batch"] * row["dp"]), 1)
    few = min(planned, max(2 * row["pp"], 4))
    broken = ""
    for m in [chosen] if chosen else range(few, max(planned, 8 * row["pp"]) + 1):
        pipe = Pipeline(p=row["pp"], m=m, v=row["virtual_stages"], k=row["sequence_slices"])
        texts = [rule.text for rule in schedule.rules(pipe) if np.any(rule.broken)]
        if not texts:
            return pipe
        broken = broken or texts[0]
    said = f"pp {row['pp']}, virtual_stages {row['virtual_stages']}, sequence_slices {row['sequence_slices']}"
    raise LayoutError(f"{broken}; got {said}, micro_batches {chosen or few}")
