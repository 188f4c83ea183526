"""Layers recomputed before layers moved to host memory (KARMA's mix): gradients, bytes sent, peaks held."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.layouts import Recompute
from planner.schedules import SCHEDULES
from planner.schedules.base import Pipeline
from planner.step.timeline.timeline import durations
from planner.step.timeline.timeline import run as simulated
from tests.trainer.test_offload_layers import WAYS, assert_plain, peaks_and_bytes
from tests.trainer.test_parallel import task_of
from tests.trainer.test_recompute_layers import LAYERS, bytes_of_stages


@given(
    repeated=st.integers(1, 4),
    layers=st.integers(1, 7),
    recompute=st.sampled_from([Recompute.SELECTIVE, Recompute.FULL]),
    **WAYS,
)
@settings(max_examples=60, deadline=None)
def test_gradients_are_those_of_plain_training(repeated, layers, **way):
    assert_plain(**way, recompute_layers=repeated, offload_layers=layers)


@pytest.mark.parametrize(
    ("name", "pipe"),
    [
        ("1f1b", Pipeline(p=1, m=4)),
        ("1f1b", Pipeline(p=2, m=4)),
        ("gpipe", Pipeline(p=2, m=4)),
        ("interleaved", Pipeline(p=2, m=4, v=2)),
        ("breadth-first", Pipeline(p=2, m=4, v=2)),
        ("1f1b-v", Pipeline(p=2, m=8, v=2)),
    ],
)
@pytest.mark.parametrize(("repeated", "layers"), [(1, 1), (1, 2), (2, 1), (2, 9), (3, 1)])
def test_what_ranks_hold_is_the_simulators_peak(name, pipe, repeated, layers):
    """A stage keeps inputs of some layers and the rest whole but those moved: these whole, one with room at work."""
    task = task_of("llama", name, pipe, recompute=Recompute.FULL, recompute_layers=repeated, offload_layers=layers)
    stages = pipe.p * pipe.v
    each = LAYERS // stages
    moved = max(min(layers, each - repeated - 1), 0)
    neither = replace(task, recompute=Recompute.NONE, recompute_layers=0, offload_layers=0)
    once = bytes_of_stages(neither, stages)
    again = bytes_of_stages(replace(neither, recompute=Recompute.FULL), stages)
    layer = bytes_of_stages(neither, 4)[0] / 2  # the last stage keeps something of the head too
    size = once - (once - again) * min(repeated, each) / each - moved * layer
    order = SCHEDULES[name].order(pipe)
    timeline = simulated(order, durations(order, 1.0, 1.0, 1.0))
    held, out, back = peaks_and_bytes(task)
    assert held == pytest.approx(timeline.peak(size[timeline.order.stage]) + (moved > 0) * layer, rel=1e-12)
    passes = np.full(pipe.p, pipe.m * pipe.v)
    assert out.tolist() == back.tolist() == (passes * moved * layer).tolist()
