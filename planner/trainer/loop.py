"""Training from first step to last on one rank, and what was measured, collected on every rank.

Shapes: n ranks, e operations of a rank's row.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from planner.base.errors import ExecutionError, InputError
from planner.schedules.operations import KINDS
from planner.trainer.arrays import on_host
from planner.trainer.asynchronous import Staleness, run_asynchronously
from planner.trainer.checkpoint import load_checkpoint, save_checkpoint
from planner.trainer.communicator import Communicator
from planner.trainer.executor import Batch, Event
from planner.trainer.noise import NoiseScale
from planner.trainer.optimizers import make_optimizer
from planner.trainer.stopwatch import Stopwatch
from planner.trainer.task import Task
from planner.trainer.text import Samples
from planner.trainer.worker import Worker


@dataclass(frozen=True, kw_only=True)
class Training:
    """A run: the task, its data, and how it is trained.

    noise_every: steps between noise measurements, 0 never. staleness: where the task's rows are those of a pipeline
    that is never drained, over all steps; updates_behind: of a pipeline rank and a micro-batch there. left_out: what of
    a plan isn't run, in words.
    """

    task: Task
    samples: Samples
    steps: int
    optimizer: str = "adamw"
    learning_rate: float = 3e-3
    weight_decay: float = 0.1
    warmup_steps: int = 20
    checkpoint: Path | None = None
    checkpoint_every: int = 100
    noise_every: int = 0
    staleness: Staleness | None = None
    updates_behind: Callable[[int, int], int] = lambda rank, micro_batch: 0
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Progress:
    """One step as it ended, or the step that a checkpoint resumes from."""

    step: int
    loss: float
    time_s: float
    noise: NoiseScale


@dataclass
class Measured:
    """The measurements of a run.

    step_time_s: every step's, this rank's clock; loss: every step's; processor_share: the least of any rank that each
    step's time had its processor; busy_s, waiting_s: of the last step, in
    operations and before them, shape (n,); peak_bytes, peak_passes: held by passes, shape (n,);
    sent_bytes: this rank's by kind in the last step; events: the last step's operations of every pipeline rank.
    """

    first_step: int = 0
    step_time_s: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    processor_share: Any = field(default_factory=list)
    noise: NoiseScale = field(default_factory=NoiseScale)
    busy_s: Any = None
    waiting_s: Any = None
    peak_bytes: Any = None
    peak_passes: Any = None
    sent_bytes: dict[str, int] = field(default_factory=dict)
    events: list[list[Event]] = field(default_factory=list)


def train(communicator: Communicator, training: Training, report: Callable[[Progress], None]) -> Measured:
    """Train; every rank calls it, and on every rank `report` hears of each step.

    Raises ExecutionError if the loss is not a number, the last checkpoint left as it was; InputError for a plan that
    doesn't fit the ranks or the model, or a checkpoint that isn't of this run.
    """
    if training.staleness is not None:
        return _train_asynchronously(communicator, training, training.staleness, report)
    optimizer = make_optimizer(training.optimizer, training.learning_rate, training.weight_decay)
    worker = Worker(communicator, training.task, optimizer)
    measured = Measured()
    noise = measured.noise
    if training.checkpoint is not None and load_checkpoint(training.checkpoint, worker, training.samples):
        report(Progress(worker.steps, float("nan"), 0.0, noise))
    measured.first_step = worker.steps
    while worker.steps < training.steps:
        optimizer.learning_rate = training.learning_rate * min(1.0, (worker.steps + 1) / training.warmup_steps)
        if training.noise_every and worker.steps % training.noise_every == 0:
            _measure_noise(worker, training.samples, noise)
        batch = training.samples.batch(communicator.xp, worker.steps, worker.mesh.replica)
        worker.executor.events.clear()
        before, watch = communicator.traffic.wire_bytes.copy(), Stopwatch()
        with np.errstate(all="ignore"):  # the step itself says when a number is none
            loss = worker.step(batch)
        took, share = watch.stop()
        measured.step_time_s.append(took)
        measured.processor_share.append(share)
        measured.loss.append(loss)
        sent = communicator.traffic.wire_bytes - before
        measured.sent_bytes = {kind: sum(v for (k, _), v in sent.items() if k == kind) for kind, _ in sent}
        report(Progress(worker.steps, loss, took, noise))
        if training.checkpoint is not None and (
            worker.steps % training.checkpoint_every == 0 or worker.steps == training.steps
        ):
            save_checkpoint(training.checkpoint, worker, training.samples)
    _collect(worker, measured)
    return measured


def _train_asynchronously(
    communicator: Communicator, training: Training, staleness: Staleness, report: Callable[[Progress], None]
) -> Measured:
    """Train by a schedule that is never drained: all steps are one run of the task's rows. No clipping, no warm-up."""
    if training.checkpoint is not None:
        raise InputError("a pipeline that is never drained has no checkpoints: no moment when all ranks agree")
    optimizer = make_optimizer(training.optimizer, training.learning_rate, training.weight_decay)
    worker = Worker(communicator, training.task, optimizer)
    steps = [training.samples.batch(communicator.xp, t, worker.mesh.replica) for t in range(training.steps)]
    per_update = steps[0].num_tokens // (1 if staleness.mini_batch else training.task.micro_batches)
    xp = communicator.xp
    tokens, targets = xp.concatenate([b.tokens for b in steps]), xp.concatenate([b.targets for b in steps])
    start = time.perf_counter()
    with np.errstate(all="ignore"):
        batch = Batch(tokens=tokens, targets=targets, num_tokens=per_update)
        losses, _ = run_asynchronously(worker, batch, staleness, training.updates_behind)
    took = (time.perf_counter() - start) / training.steps
    by_step = np.reshape(losses, (training.steps, -1)).mean(axis=1)
    if not np.isfinite(by_step).all():
        raise ExecutionError(f"the loss is no number; try a lower learning rate than {training.learning_rate}")
    measured = Measured(step_time_s=[took] * training.steps, loss=[float(x) for x in by_step])
    for t, loss in enumerate(measured.loss):
        report(Progress(t + 1, loss, took, NoiseScale()))
    _collect(worker, measured)
    return measured


def _measure_noise(worker: Worker, samples: Samples, noise: NoiseScale) -> None:
    """The gradient's norm twice, from micro-batches of one sequence and of the run's (at least two)."""
    big = replace(samples, micro_batch=max(samples.micro_batch, 2))
    sizes = []
    for batches in (replace(samples, micro_batch=1), big):
        # Data of their own: as many steps beyond the run's as no run has.
        worker.gradients(batches.batch(worker.communicator.xp, worker.steps + 2**31, worker.mesh.replica))
        sizes += [batches.sequences, worker.gradient_norm()]
    noise.add(int(sizes[0]), sizes[1], int(sizes[2]), sizes[3])


def _collect(worker: Worker, measured: Measured) -> None:
    """Every rank's numbers on every rank."""
    communicator, world = worker.communicator, worker.mesh.world
    events, live = worker.executor.events, worker.executor.live
    busy = sum(e.end_s - e.start_s for e in events)
    waiting = sum(e.start_s - e.asked_s for e in events)
    mine = np.array([[busy, waiting, live.peak_bytes, live.peak_both, len(events)]])
    table = _gathered(communicator, mine, world)
    measured.busy_s, measured.waiting_s, measured.peak_bytes, measured.peak_passes = table[:, :4].T
    shares = np.array([measured.processor_share or [0.0] * len(measured.step_time_s)])
    if shares.size:
        measured.processor_share = _gathered(communicator, shares, world).min(axis=0)
    longest = int(table[:, 4].max())
    padded = np.zeros((1, longest, len(Event._fields)))
    for i, e in enumerate(events):
        padded[0, i] = [e.stage, KINDS.index(e.kind), e.micro_batch, e.slice, e.asked_s, e.start_s, e.end_s]
    everyone = _gathered(communicator, padded, world)
    for p in range(worker.mesh.pp):
        rank = worker.mesh.at(t=0, d=0, p=p)
        rows = everyone[rank][: int(table[rank, 4])]
        measured.events.append([Event(int(s), KINDS[int(k)], int(m), int(j), a, b, c) for s, k, m, j, a, b, c in rows])


def _gathered(communicator: Communicator, mine: Any, world: Any) -> Any:
    return on_host(communicator.all_gather(communicator.xp.asarray(mine), world))
