"""Recomputation of some layers of each stage: gradients of plain training, and what is held equals the simulator's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.base.errors import LayoutError
from planner.layouts import Recompute
from planner.schedules import SCHEDULES
from planner.schedules.base import Pipeline
from planner.step.timeline.timeline import durations
from planner.step.timeline.timeline import run as simulated
from planner.trainer.optimizers import SGD
from planner.trainer.serial import run_serial
from planner.trainer.task import Task
from planner.trainer.worker import Worker
from tests.trainer.helpers import assert_same, batch_of, data, run
from tests.trainer.test_parallel import MODELS, SYNCHRONOUS, pipeline_of, plain, task_of

LAYERS = 8


@given(
    name=st.sampled_from(SYNCHRONOUS),
    model=st.sampled_from(sorted(MODELS)),
    degrees=st.sampled_from([(1, 1, 1), (2, 1, 2), (1, 2, 2), (1, 1, 4), (2, 2, 1)]),
    layers=st.integers(1, 8),
    recompute=st.sampled_from([Recompute.SELECTIVE, Recompute.FULL]),
    zero=st.integers(0, 3),
    sequence_parallel=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_gradients_are_those_of_plain_training(name, model, degrees, layers, recompute, zero, sequence_parallel):
    dp, tp, p = degrees
    pipe = pipeline_of(name, p, 8)
    if pipe is None or (p == 1 and name != "1f1b"):
        return
    task = task_of(
        model, name, pipe, dp=dp, tp=tp, zero=zero, recompute=recompute, recompute_layers=layers,
        sequence_parallel=sequence_parallel,
    )  # fmt: skip
    assert_same(run(task, data(MODELS[model])), plain(model))


def peaks(task: Task) -> list[int]:
    """Bytes that each pipeline rank's passes hold at most."""

    def program(communicator):
        worker = Worker(communicator, task, SGD())
        worker.gradients(batch_of(task, 0, data(task.model)))
        return worker.executor.live.peak_bytes

    return run_serial(np, task.num_ranks, program)


def bytes_of_stages(task: Task, stages: int) -> np.ndarray:
    """What one forward pass holds on each of so many stages, all of whose layers are alike."""
    pipe = Pipeline(p=stages, m=task.micro_batches)
    rows = SCHEDULES["1f1b"].order(pipe).rows()
    flight = np.minimum(stages - np.arange(stages), task.micro_batches)
    return np.array(peaks(replace(task, rows=rows, recompute_layers=0))) / flight


@pytest.mark.parametrize("recompute", [Recompute.SELECTIVE, Recompute.FULL])
@pytest.mark.parametrize(
    ("name", "pipe"),
    [
        ("1f1b", Pipeline(p=2, m=4)),
        ("gpipe", Pipeline(p=4, m=4)),
        ("1f1b", Pipeline(p=4, m=8)),
        ("interleaved", Pipeline(p=2, m=4, v=2)),
        ("breadth-first", Pipeline(p=2, m=4, v=2)),
        ("1f1b-v", Pipeline(p=2, m=8, v=2)),
    ],
)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_what_ranks_hold_is_the_simulators_peak(name, pipe, recompute, layers):
    task = task_of("llama", name, pipe, recompute=recompute, recompute_layers=layers)
    stages = pipe.p * pipe.v
    each = LAYERS // stages
    again = bytes_of_stages(task, stages)
    once = bytes_of_stages(replace(task, recompute=Recompute.NONE), stages)
    alone = max(each - layers, 0)
    size = again + (once - again) * alone / each
    order = SCHEDULES[name].order(pipe)
    timeline = simulated(order, durations(order, 1.0, 1.0, 1.0))
    assert peaks(task) == pytest.approx(timeline.peak(size[timeline.order.stage]), rel=1e-12)
    if alone:
        assert np.all(size > again)


def test_it_needs_layers_that_are_recomputed():
    task = task_of("gpt", "1f1b", Pipeline(p=1, m=2), recompute_layers=2)
    with pytest.raises(LayoutError, match="recompute_layers is 2; allowed: 0, or more where layers are recomputed"):
        run(task, data(MODELS["gpt"]))
