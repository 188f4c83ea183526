"""16-bit training: as 32-bit training within its rounding, whatever the layout; overflow skips a step, not the run."""

import json
from dataclasses import replace

import numpy as np
import pytest

from planner.base.errors import ExecutionError
from planner.layouts import Recompute
from planner.trainer.optimizers import GROW_AFTER, LEAST, Adam, LossScale
from planner.trainer.serial import run_serial
from planner.trainer.task import Task
from planner.trainer.worker import Worker
from tests.trainer.helpers import batch_of, data, gpt, llama, plain_rows

STEPS = 12
LAYOUTS = {
    "plain": {}, "zero 0": {"dp": 2}, "zero 1": {"dp": 2, "zero": 1}, "zero 3": {"dp": 2, "zero": 3}, "tp": {"tp": 2},
    "recompute": {"recompute": Recompute.FULL}, "selective": {"recompute": Recompute.SELECTIVE},
}  # fmt: skip


def losses(model, dtype, scale=None, steps=STEPS, **layout):
    """Mean losses of a few steps on the same data, and the workers' loss scale."""
    task = Task(model=model, rows=plain_rows(2), micro_batches=2, clip=1.0, dtype=dtype, **layout)
    tokens = data(model)

    def rank(communicator):
        worker = Worker(communicator, task, Adam(learning_rate=1e-2))
        if scale is not None:
            worker.scale = replace(worker.scale, value=scale)
        batch = batch_of(task, worker.mesh.replica, tokens)
        found = []
        for _ in range(steps):
            with np.errstate(over="ignore", invalid="ignore"):
                found.append(worker.step(batch))
        assert all(worker.store.owned(name)[0].dtype == np.float32 for name in worker.store.units)
        return found, worker.scale

    return run_serial(np, task.num_ranks, rank)[0]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("model", [gpt(2), llama(2)], ids=["gpt", "llama"])
def test_sixteen_bits_follow_thirty_two(model, layout):
    half, scale = losses(model, np.float16, **layout)
    single, none = losses(model, np.float32)
    assert none is None
    assert scale.skipped == 0
    assert half[-1] < 0.9 * half[0]
    np.testing.assert_allclose(half, single, rtol=0.02)


def test_small_gradients_vanish_without_a_scale():
    """Why there is one: at a scale of 2^-10, gradients are lost and the loss falls less."""
    lost, _ = losses(gpt(2), np.float16, scale=2.0**-16)
    kept, _ = losses(gpt(2), np.float16)
    assert kept[-1] < lost[-1] - 0.05


def test_an_overflow_leaves_the_step_out_and_halves_the_scale():
    found, scale = losses(gpt(2), np.float16, scale=2.0**24)
    assert scale.skipped > 0
    assert scale.value == 2.0 ** (24 - scale.skipped)
    assert found[: scale.skipped + 1] == [found[0]] * (scale.skipped + 1)  # nothing was changed
    assert found[-1] < found[0]


def test_the_scale_grows_after_good_steps_and_gives_up_at_the_least():
    scale = LossScale(value=8.0)
    for _ in range(GROW_AFTER):
        scale.judge(True)
    assert scale.value == 16.0
    scale.judge(False)
    assert (scale.value, scale.good_steps, scale.skipped) == (8.0, 0, 1)
    scale.value = LEAST
    with pytest.raises(ExecutionError, match="overflow in 16 bits"):
        scale.judge(False)


def test_the_command_trains_in_fp16_and_goes_on_from_a_checkpoint(tmp_path):
    from tests.commands import planner

    def run(steps, folder):
        done = planner(
            "train", "--model", "gpt2", "--scale", "tiny", "--precision", "fp16", "--steps", str(steps), "--json",
            "--micro-batch", "2", "--checkpoint", str(tmp_path / folder),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    whole = run(8, "whole")
    run(4, "halves")
    assert run(8, "halves")["losses"] == whole["losses"][4:]
    assert whole["loss_last"] < whole["loss_first"]
