"""A language model behind a tower on the ranks of an engine; under MPI, cases whose gradients are plain training's.

mpirun -n 4 python -m tests.trainer.mpi_towers
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np

from planner.layouts import Recompute
from planner.schedules import SCHEDULES
from planner.schedules.base import Pipeline
from planner.trainer.mpi import MPICommunicator
from planner.trainer.optimizers import SGD
from planner.trainer.serial import run_serial
from planner.trainer.task import Task
from planner.trainer.towers import TowerBatch, TowerWorker
from planner.trainer.worker import Worker
from tests.trainer.helpers import SEQUENCES, batch_of, data, gpt, llama, loud, plain_rows

MODEL = llama(8)
IMAGE = 4  # tokens of the tower: the first of each sequence's 8
TOWER = replace(
    gpt(3), hidden=12, head_dim=3, vocab=12, seq_len=IMAGE, max_positions=IMAGE, qkv_bias=True, bidirectional=True
)
TURNED = replace(llama(2, kv_heads=4), hidden=20, seq_len=IMAGE, vocab=12)
SMALL = replace(TURNED, seq_len=2, bidirectional=True)  # of which a sequence has two
PATCHES = np.random.default_rng(5).integers(0, TOWER.vocab, (SEQUENCES, IMAGE))


def tower_of(micro_batches: int = 1, model: Any = TOWER, **choices: Any) -> Task:
    """A tower's task."""
    rows = plain_rows(micro_batches)
    return Task(model=model, rows=rows, micro_batches=micro_batches, dtype=np.float64, output_width=16, **choices)


def task_of(schedule: str, pipe: Pipeline, model: Any = MODEL, **choices: Any) -> Task:
    """The language model's."""
    return Task(
        model=model, rows=SCHEDULES[schedule].order(pipe).rows(), micro_batches=pipe.m, dtype=np.float64,
        bounds=tuple(range(0, 9, 8 // pipe.k)), layer_at_a_time=SCHEDULES[schedule].layer_at_a_time, **choices,
    )  # fmt: skip


def worker_of(communicator: Any, task: Task, tower: Task, **how: bool) -> tuple[TowerWorker, TowerBatch]:
    """A rank of both, and its step's batch."""
    worker = TowerWorker(
        communicator, task, SGD(learning_rate=0.1), loud(Worker(communicator, tower, SGD(learning_rate=0.1))), **how
    )
    batch, d = batch_of(task, worker.mesh.replica, data(task.model)), worker.tower.mesh.replica
    patches = PATCHES.reshape(tower.dp, tower.micro_batches, -1, tower.model.seq_len)[d]
    xp, num_tokens = communicator.xp, batch.num_tokens
    tokens, targets, patches = (xp.asarray(x) for x in (batch.tokens, batch.targets, patches))
    return loud(worker), TowerBatch(tokens=tokens, targets=targets, num_tokens=num_tokens, patches=patches)


def outcome(communicator: Any, task: Task, tower: Task, **how: bool) -> tuple[float, dict[str, Any]]:
    """Loss and gradients on a rank."""
    worker, batch = worker_of(communicator, task, tower, **how)
    return worker.gradients(batch), worker.whole()


def worst_of(found: Any, expected: Any) -> float:
    """The largest deviation of loss and gradients, each over its tensor's largest element."""
    worst = abs(found[0] - expected[0]) / abs(expected[0])
    for name, value in found[1].items():
        worst = max(worst, np.abs(value - expected[1][name]).max() / np.abs(expected[1][name]).max())
    return float(worst)


def plain(model: Any = MODEL, tower: Any = TOWER) -> tuple[float, dict[str, Any]]:
    """One rank's: no part of either model is shared."""
    return run_serial(np, 1, lambda c: outcome(c, task_of("1f1b", Pipeline(p=1, m=1), model), tower_of(1, tower)))[0]


CASES: dict[int, list[tuple[Task, Task]]] = {
    2: [
        (task_of("1f1b", Pipeline(p=2, m=4)), tower_of(2, dp=2)),
        (task_of("1f1b", Pipeline(p=2, m=4)), tower_of(4, tp=2, zero=1)),
        (task_of("1f1b", Pipeline(p=1, m=2), tp=2), tower_of(2, dp=2, zero=3)),
        (task_of("1f1b", Pipeline(p=1, m=2), dp=2, zero=2), tower_of(1, tp=2, sequence_parallel=True)),
        (task_of("dualpipe", Pipeline(p=2, m=4)), tower_of(2, dp=2)),
        (task_of("zb-v", Pipeline(p=2, m=4, v=2)), tower_of(2, tp=2, model=TURNED)),
        (task_of("vocab-1", Pipeline(p=2, m=4)), tower_of(2, dp=2)),
        (task_of("1f1b", Pipeline(p=1, m=2), cp=2), tower_of(2, dp=2)),
    ],
    4: [
        (task_of("1f1b", Pipeline(p=4, m=4)), tower_of(2, dp=2, tp=2, sequence_parallel=True)),
        (
            task_of("interleaved", Pipeline(p=2, m=4, v=2), tp=2, sequence_parallel=True),
            tower_of(2, dp=4, zero=2, model=SMALL),
        ),
        (task_of("zb-h1", Pipeline(p=2, m=4), dp=2, zero=1), tower_of(4, tp=4, model=TURNED)),
        (task_of("dualpipev", Pipeline(p=2, m=4, v=2), dp=2), tower_of(2, dp=2, tp=2)),
        (task_of("seq1f1b", Pipeline(p=2, m=4, k=2), tp=2, recompute=Recompute.FULL), tower_of(1, dp=4, zero=3)),
        (task_of("1f1b", Pipeline(p=2, m=2), cp=2), tower_of(1, dp=2, tp=2, zero=1)),
    ],
}


def main() -> None:
    communicator = MPICommunicator(np)
    cases = CASES[communicator.size]
    for task, tower in cases:
        worst = worst_of(outcome(communicator, task, tower), plain(tower=tower.model))
        if not worst <= 1e-10:
            sys.exit(f"rank {communicator.rank}, {task} behind {tower}: {worst}")
        communicator.barrier()
    if communicator.rank == 0:
        print(f"{len(cases)} towers agree")


if __name__ == "__main__":
    main()
