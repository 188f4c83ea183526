"""Figures that the mini-trainer measures: what its ranks send while they train a small model."""

from typing import Any

import numpy as np

from planner.models import from_shape
from planner.schedules import Pipeline, get_schedule
from planner.trainer.executor import Batch
from planner.trainer.optimizers import make_optimizer
from planner.trainer.serial import run_serial
from planner.trainer.task import Task
from planner.trainer.worker import Worker

RANKS = 4


def volume_figure(*, zero: int, schedule: str = "1f1b", p: int = 1, m: int = 1, v: int = 1) -> tuple[float, str]:
    """Elements that a data-parallel rank sends for each parameter in one step with m micro-batches, on p stages.

    Times d / (d - 1) of the d ranks, as papers leave out the part that a rank keeps.
    """
    rule, pipe = get_schedule(schedule), Pipeline(p=p, m=m, v=v)
    model = from_shape(
        family="gpt", layers=2 * p * v, hidden=32, ffn=128, heads=4, kv_heads=4, vocab=64, seq_len=16, name="gpt-small"
    )
    task = Task(
        model=model, rows=rule.order(pipe).rows(), micro_batches=m, dp=RANKS, zero=zero, dtype=np.float32,
        layer_at_a_time=rule.layer_at_a_time,
    )  # fmt: skip

    def program(communicator: Any) -> tuple[int, int]:
        worker = Worker(communicator, task, make_optimizer("sgd", 0.1, 0.0))
        tokens = np.random.default_rng(worker.mesh.d).integers(0, model.vocab, (m, 1, int(model.seq_len) + 1))
        before = communicator.traffic.of("dp")
        all_tokens = RANKS * m * int(model.seq_len)
        worker.step(Batch(tokens=tokens[..., :-1], targets=tokens[..., 1:], num_tokens=all_tokens))
        elements = sum(worker.store.num_elements(name) for name in worker.store.units)
        return communicator.traffic.of("dp") - before, elements

    sent, elements = np.sum(run_serial(np, RANKS * p, program), axis=0)
    return float(sent / 4 / elements * RANKS / (RANKS - 1)), f"a small GPT on {RANKS * p} ranks, in fp32"
