"""Optimizer state in host memory: the same training, and the bytes of the cost model over the host link."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from planner.base.errors import LayoutError
from planner.layouts import Recompute
from planner.schedules.base import Pipeline
from planner.trainer.checkpoint import load_checkpoint, save_checkpoint
from planner.trainer.optimizers import SGD, Adam
from planner.trainer.serial import run_serial
from planner.trainer.text import Samples
from planner.trainer.worker import Worker
from tests.trainer.helpers import batch_of, data, loud
from tests.trainer.test_parallel import task_of


def trained(task, optimizer, steps=3):
    """Parameters after some steps, bytes over the host link in the last, and where each unit's state lies."""

    def program(communicator):
        worker = loud(Worker(communicator, task, optimizer()))
        batch = batch_of(task, worker.mesh.replica, data(task.model))
        for _ in range(steps):
            before = communicator.traffic.wire_bytes.copy()
            worker.step(batch)
        sent = communicator.traffic.wire_bytes - before
        sizes = {name: worker.store.owned(name)[0].nbytes for name in worker.store.units}
        return worker.whole("parameters"), sent["host", "out"], sent["host", "in"], sizes, worker.host.units

    return run_serial(np, task.num_ranks, program)


def task_with(zero):
    return task_of("llama", "1f1b", Pipeline(p=2 if zero < 2 else 1, m=4), dp=2, zero=zero, clip=1.0)


@cache
def on_the_device(zero, optimizer):
    return trained(task_with(zero), optimizer)


def adam():
    return Adam(weight_decay=0.1)


def sgd():
    return SGD(momentum=0.9)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("optimizer", [adam, sgd])
def test_the_host_trains_as_the_device_does(zero, share, optimizer):
    task, expected = task_with(zero), on_the_device(zero, optimizer)
    found = trained(replace(task, offload_fraction=share), optimizer)
    for (mine, out, back, sizes, units), (plain, none, *_) in zip(found, expected, strict=True):
        assert none == 0
        for name, value in plain.items():
            np.testing.assert_array_equal(mine[name], value)
        # Gradients of what the host owns leave, its parameters come back: whole units, the first that hold the share.
        moved = sum(sizes[name] for name in units)
        assert out == back == moved
        total = sum(sizes.values())
        assert share * total <= moved < share * total + max(sizes.values())
        if share == 1.0:
            assert moved == total


@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
@pytest.mark.parametrize(("schedule", "gathers"), [("1f1b", 2 * 4), ("layered", 2)])
def test_sharded_parameters_on_the_host_come_for_every_gather(schedule, gathers, recompute):
    """In both passes, of every micro-batch or of all at once; nothing goes back, for the host steps them there."""
    pipe = Pipeline(p=1, m=4, v=1 if schedule == "1f1b" else 8)
    task = task_of("llama", schedule, pipe, dp=2, zero=3, clip=1.0, recompute=recompute)
    here = trained(task, adam)
    there = trained(replace(task, offload_fraction=1.0, offload_parameters=True), adam)
    for (mine, out, back, sizes, _), (plain, *_) in zip(there, here, strict=True):
        for name, value in plain.items():
            np.testing.assert_array_equal(mine[name], value)
        assert out == sum(sizes.values())
        assert back == gathers * sum(sizes.values())


def test_parameters_on_the_host_need_all_that_steps_them_there():
    task = replace(task_of("llama", "1f1b", Pipeline(p=1, m=4), dp=2, zero=3), offload_parameters=True)
    with pytest.raises(LayoutError, match=r"needs zero 3, not 3, and offload_fraction 1, not 0\.0"):
        trained(task, SGD)


@pytest.mark.parametrize("parameters", [False, True])
def test_a_checkpoint_goes_on_with_what_was_loaded(tmp_path, parameters):
    zero, share = (3, 1.0) if parameters else (0, 0.5)
    task = replace(
        task_of("gpt", "1f1b", Pipeline(p=1, m=4), zero=zero), offload_fraction=share, offload_parameters=parameters
    )
    samples = Samples(text=b"as it is" * 100, seq_len=8, micro_batch=4, micro_batches=4, dp=1)

    def program(communicator):
        first = Worker(communicator, task, Adam())
        batch = batch_of(task, 0, data(task.model))
        for _ in range(2):
            first.step(batch)
        save_checkpoint(tmp_path, first, samples)
        first.step(batch)
        second = Worker(communicator, task, Adam())
        second.step(batch)  # it has copies of its own, which loading must not leave in place
        assert load_checkpoint(tmp_path, second, samples)
        second.step(batch)
        return first.whole("parameters"), second.whole("parameters")

    [(first, second)] = run_serial(np, 1, program)
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value)


def test_a_share_out_of_range_is_named():
    task = replace(task_of("gpt", "1f1b", Pipeline(p=1, m=4)), offload_fraction=1.5)
    with pytest.raises(LayoutError, match=r"offload_fraction is 1\.5; allowed: a number from 0 to 1"):
        trained(task, SGD)
