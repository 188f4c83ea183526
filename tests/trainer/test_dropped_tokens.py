"""Copies of tokens beyond an expert's capacity: gradients of plain training that drops the same, finite differences."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.base.errors import LayoutError
from planner.layouts import Recompute
from planner.schedules.base import Pipeline
from planner.trainer import experts
from planner.trainer.task import Task
from tests.trainer.helpers import assert_same, data, plain_rows, run
from tests.trainer.test_experts import MODELS, WAYS, loss_and_gradients, plain, task_of

MICRO_BATCHES = 4  # of all replicas: a capacity is of a rank's micro-batch, so plain training has the same ones


@cache
def dropping(name: str, factor: float):
    task = Task(
        model=MODELS[name], rows=plain_rows(MICRO_BATCHES), micro_batches=MICRO_BATCHES, dtype=np.float64,
        capacity_factor=factor,
    )  # fmt: skip
    return run(task, data(MODELS[name]))


WHOLE = [way for way in WAYS if way.get("tp", 1) == 1 and way.get("cp", 1) == 1]


@settings(max_examples=40, deadline=None)
@given(
    way=st.sampled_from(WHOLE),
    name=st.sampled_from(sorted(MODELS)),
    factor=st.sampled_from([0.25, 0.5, 1.0, 1.25]),
    schedule=st.sampled_from(
        [("gpipe", 2, 1), ("1f1b", 1, 1), ("1f1b", 2, 1), ("zb-h1", 2, 1), ("breadth-first", 1, 2)]
    ),
    offload=st.sampled_from([0, 1]),
)
def test_gradients_are_those_of_plain_training_that_drops_the_same(way, name, factor, schedule, offload):
    kind, p, v = schedule
    if kind == "zb-h1" and (offload or way.get("recompute") == Recompute.FULL):
        return
    m = MICRO_BATCHES // way["dp"]
    if m < p or m % (p * v):
        return
    task = task_of(name, kind, Pipeline(p=p, m=m, v=v), capacity_factor=factor, offload_layers=offload, **way)
    assert_same(run(task, data(MODELS[name])), dropping(name, factor))


@pytest.mark.parametrize("name", MODELS)
def test_a_capacity_for_all_drops_none(name):
    """All copies of a rank's tokens fit where an expert takes E / k times the mean."""
    assert_same(dropping(name, MODELS[name].num_experts / MODELS[name].top_k), plain(name))
    assert abs(dropping(name, 0.5).loss - plain(name).loss) > 1e-6


def test_gradients_are_finite_differences():
    """Of the loss that is reported: the balance loss is not part of it. Changes too small to change what is dropped."""
    task = Task(
        model=MODELS["gated"], rows=plain_rows(), micro_batches=1, dtype=np.float64, balance=0.0, capacity_factor=0.5
    )
    _, gradients = loss_and_gradients(task)
    for unit, flat in gradients.items():
        for i in np.argsort(-np.abs(flat))[:3]:
            ends = [loss_and_gradients(task, (unit, int(i), step))[0] for step in (1e-6, -1e-6)]
            assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(flat[i], rel=1e-5, abs=1e-9)


def test_an_expert_takes_its_most_probable_copies():
    expert, gate = np.array([0, 1, 0, 0, 1, 0]), np.array([0.5, 0.9, 0.8, 0.5, 0.2, 0.6])
    kept = experts._within(np, 2, expert, gate, np.array([4, 2]))
    assert sorted(kept[:2]) == [2, 5]
    assert sorted(kept[2:]) == [1, 4]
    # Of equals the first; an expert that nobody chose takes none.
    assert experts._within(np, 1, np.array([2, 2]), np.array([0.5, 0.5]), np.array([0, 0, 2])).tolist() == [0]


@pytest.mark.parametrize("factor", [-0.5, float("nan"), float("inf")])
def test_a_factor_out_of_range_is_named(factor):
    task = replace(task_of("gated", "1f1b", Pipeline(p=1, m=4)), capacity_factor=factor)
    with pytest.raises(LayoutError, match=r"capacity_factor is .*; allowed: a number from 0"):
        run(task, data(MODELS["gated"]))
