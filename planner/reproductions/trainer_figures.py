"""Figures that the mini-trainer measures: what its ranks send while they train a small model."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.models import from_shape
from planner.schedules import Pipeline, get_schedule
from planner.trainer.executor import Batch
from planner.trainer.optimizers import make_optimizer
from planner.trainer.serial import run_serial
from planner.trainer.worker import Task, Worker

RANKS = 4


def volume_figure(*, zero: int) -> tuple[float, str]:
    """Elements that a data-parallel rank sends for each parameter in one step with one micro-batch.

    Times d / (d - 1) of the d ranks, as the paper leaves out the part that a rank keeps.
    """
    model = from_shape(
        family="gpt", layers=2, hidden=32, ffn=128, heads=4, kv_heads=4, vocab=64, seq_len=16, name="gpt-small"
    )
    rows = get_schedule("1f1b").order(Pipeline(p=1, m=1)).rows()
    task = Task(model=model, rows=rows, micro_batches=1, dp=RANKS, zero=zero, dtype=np.float32)

    def program(communicator: Any) -> tuple[int, int]:
        worker = Worker(communicator, task, make_optimizer("sgd", 0.1, 0.0))
        tokens = np.random.default_rng(worker.mesh.d).integers(0, model.vocab, (1, 1, int(model.seq_len) + 1))
        before = communicator.traffic.of("dp")
        worker.step(Batch(tokens=tokens[..., :-1], targets=tokens[..., 1:], num_tokens=RANKS * int(model.seq_len)))
        elements = sum(worker.store.num_elements(name) for name in worker.store.units)
        return communicator.traffic.of("dp") - before, elements

    sent, elements = run_serial(np, RANKS, program)[0]
    return sent / 4 / elements * RANKS / (RANKS - 1), f"a small GPT on {RANKS} ranks, in fp32"
