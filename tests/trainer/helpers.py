"""Small models, data, and a run of a task under the serial engine, for the trainer's tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from planner.models import Transformer, from_shape
from planner.trainer.executor import Batch, Live
from planner.trainer.optimizers import SGD
from planner.trainer.serial import run_serial
from planner.trainer.task import Task
from planner.trainer.worker import Worker

SEQUENCES = 16


class Op(NamedTuple):
    stage: int
    kind: str
    micro_batch: int
    slice: int = 0


def gpt(layers: int = 4, kv_heads: int = 4, tied: bool = True) -> Transformer:
    shape = from_shape(family="gpt", layers=layers, hidden=16, ffn=24, heads=4, kv_heads=kv_heads, vocab=24, seq_len=8)
    return replace(shape, tied=tied)


def llama(layers: int = 4, kv_heads: int = 2, tied: bool = False) -> Transformer:
    shape = from_shape(
        family="llama", layers=layers, hidden=16, ffn=24, heads=4, kv_heads=kv_heads, vocab=24, seq_len=8
    )
    return replace(shape, tied=tied)


def plain_rows(m: int = 1, stages: int = 1) -> list[list[Op]]:
    """One rank, one micro-batch after the other: plain training."""
    forward, backward = range(stages), range(stages - 1, -1, -1)
    return [[Op(s, k, i) for i in range(m) for k, ss in (("F", forward), ("B", backward)) for s in ss]]


def data(model: Transformer, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, model.vocab, (SEQUENCES, model.seq_len + 1))


def batch_of(task: Task, d: int, tokens: Any) -> Batch:
    """Replica d's share of the sequences in micro-batches."""
    per = len(tokens) // task.dp
    mine = tokens[d * per : (d + 1) * per].reshape(task.micro_batches, -1, tokens.shape[1])
    return Batch(tokens=mine[..., :-1], targets=mine[..., 1:], num_tokens=tokens[:, 1:].size)


def loud(worker: Worker) -> Worker:
    """Larger matrices than training starts with, so that every path of the gradient counts."""
    for name in worker.store.units:
        flat = worker.store._parameters[name]
        flat[flat != 1.0] *= 5.0  # all but the norms' gains
    return worker


class Outcome(NamedTuple):
    loss: float
    gradients: dict[str, Any]
    live: list[Live]
    traffic: list[Any]
    parameters: dict[str, Any]


def run(task: Task, tokens: Any, steps: int = 0) -> Outcome:
    """One step's loss and gradients (parameters after `steps` SGD steps), whole tensors, every rank's agreeing."""

    def program(communicator: Any) -> Any:
        worker = loud(Worker(communicator, task, SGD(learning_rate=0.1)))
        batch = batch_of(task, worker.mesh.replica, tokens)
        for _ in range(steps):
            loss = worker.step(batch)
        if not steps:
            loss = worker.gradients(batch)
        traffic = communicator.traffic.wire_bytes.copy()
        return loss, worker.whole(), worker.executor.live, traffic, worker.whole("parameters")

    results = run_serial(np, task.num_ranks, program)
    gradients: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    for loss, mine, _, _, values in results:
        assert loss == results[0][0]
        for name, value in mine.items():
            first = gradients.setdefault(name, value)
            assert value.shape == first.shape, name
            assert np.abs(value - first).max(initial=0.0) <= 1e-14, name
        parameters |= values
    return Outcome(results[0][0], gradients, [r[2] for r in results], [r[3] for r in results], parameters)


def assert_same(found: Outcome, expected: Outcome, tolerance: float = 1e-10) -> None:
    """Loss, and every gradient relative to its own largest element."""
    assert abs(found.loss - expected.loss) <= tolerance * abs(expected.loss)
    assert set(found.gradients) == set(expected.gradients)
    for name, value in expected.gradients.items():
        error = np.abs(found.gradients[name] - value).max() / np.abs(value).max()
        assert error <= tolerance, f"{name}: {error}"
