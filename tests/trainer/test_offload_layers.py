"""Activations in host memory: gradients of plain training, bytes over the host link, and what ranks hold at most."""

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
from planner.trainer.host_arena import copied
from planner.trainer.optimizers import SGD
from planner.trainer.serial import run_serial
from planner.trainer.worker import Worker
from tests.trainer.helpers import assert_same, batch_of, data, run
from tests.trainer.test_parallel import MODELS, PIPELINES, pipeline_of, plain, task_of
from tests.trainer.test_recompute_layers import LAYERS, bytes_of_stages

WHOLE = sorted({name for name, pipe in PIPELINES if not SCHEDULES[name].splits_backward and pipe.k == 1})


WAYS = {
    "name": st.sampled_from(WHOLE),
    "model": st.sampled_from(sorted(MODELS)),
    "degrees": st.sampled_from([(1, 1, 1), (2, 1, 2), (1, 2, 2), (1, 1, 4), (2, 2, 1)]),
    "zero": st.integers(0, 3),
    "sequence_parallel": st.booleans(),
    "cp": st.sampled_from([1, 1, 2]),
}


@given(
    layers=st.integers(1, 8),
    recompute=st.sampled_from([Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL]),
    **WAYS,
)
@settings(max_examples=60, deadline=None)
def test_gradients_are_those_of_plain_training(layers, **way):
    assert_plain(**way, offload_layers=layers)


def assert_plain(*, name, model, degrees, sequence_parallel, cp, **more):
    """Gradients are plain training's, of a drawn way that is one."""
    dp, tp, p = degrees
    pipe = pipeline_of(name, p, 8)
    if pipe is None or (p == 1 and name != "1f1b") or (sequence_parallel and cp * tp > 2):
        return
    task = task_of(model, name, pipe, dp=dp, tp=tp, cp=cp, sequence_parallel=sequence_parallel, **more)
    assert_same(run(task, data(MODELS[model])), plain(model))


def peaks_and_bytes(task) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    def program(communicator):
        worker = Worker(communicator, task, SGD())
        worker.gradients(batch_of(task, 0, data(task.model)))
        sent = communicator.traffic.wire_bytes
        assert worker.executor.live.size_bytes == 0
        return worker.executor.live.peak_bytes, sent["host", "out"], sent["host", "in"]

    return tuple(np.array(x) for x in zip(*run_serial(np, task.num_ranks, program), strict=True))


@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
@pytest.mark.parametrize(
    ("name", "pipe"),
    [
        ("1f1b", Pipeline(p=1, m=4)),
        ("1f1b", Pipeline(p=2, m=4)),
        ("gpipe", Pipeline(p=4, m=4)),
        ("interleaved", Pipeline(p=2, m=4, v=2)),
        ("breadth-first", Pipeline(p=2, m=4, v=2)),
    ],
)
@pytest.mark.parametrize("layers", [1, 2, 9])
def test_what_ranks_hold_is_the_simulators_peak(name, pipe, recompute, layers):
    """A stage keeps its layers but those moved, and has room for one more of a pass at work."""
    task = task_of("llama", name, pipe, recompute=recompute, offload_layers=layers)
    stages = pipe.p * pipe.v
    each = LAYERS // stages
    moved = min(layers, each - 1)
    whole = bytes_of_stages(replace(task, offload_layers=0), stages)
    layer = bytes_of_stages(replace(task, offload_layers=0), 4)[0] / 2  # the last stage keeps something of the head too
    size = whole - moved * layer
    timeline = simulated(SCHEDULES[name].order(pipe), durations(SCHEDULES[name].order(pipe), 1.0, 1.0, 1.0))
    held, out, back = peaks_and_bytes(task)
    assert held == pytest.approx(timeline.peak(size[timeline.order.stage]) + (moved > 0) * layer, rel=1e-12)
    passes = np.full(pipe.p, pipe.m * pipe.v)
    assert out.tolist() == back.tolist() == (passes * moved * layer).tolist()


def test_arrays_are_copied_once_and_the_rest_stays():
    array = np.arange(3.0)
    value = {"a": (array, [array, None, "x"]), "b": 2}
    out = copied(value, np.copy)
    assert out["a"][0] is out["a"][1][0]
    assert out["a"][0] is not array
    np.testing.assert_array_equal(out["a"][0], array)
    assert out["a"][1][1:] == [None, "x"]


@pytest.mark.parametrize(
    ("name", "pipe", "layers", "said"),
    [
        ("zb-h1", Pipeline(p=2, m=4), 1, "offload_layers excludes sequence slices and a split backward pass"),
        ("seq1f1b", Pipeline(p=2, m=4, k=2), 1, "offload_layers excludes sequence slices"),
        ("1f1b", Pipeline(p=2, m=4), -1, "offload_layers is -1; allowed: a whole number from 0"),
    ],
)
def test_what_it_excludes_is_named(name, pipe, layers, said):
    with pytest.raises(LayoutError, match=said):
        run(task_of("gpt", name, pipe, offload_layers=layers), data(MODELS["gpt"]))
