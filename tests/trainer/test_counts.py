"""What an execution counts equals what the simulator and the closed forms say: activations held, bytes sent."""

from __future__ import annotations

import numpy as np
import pytest

from planner.layouts import Recompute
from planner.schedules import SCHEDULES
from planner.schedules.base import Pipeline
from planner.step.timeline.timeline import durations, run
from planner.trainer.optimizers import SGD
from planner.trainer.serial import run_serial
from planner.trainer.task import Task
from planner.trainer.worker import Worker
from tests.trainer.helpers import batch_of, data, llama
from tests.trainer.test_parallel import PIPELINES, outcome, task_of

MODEL = llama(8)


def executed(task: Task) -> list[Worker]:
    def program(communicator):
        worker = Worker(communicator, task, SGD())
        worker.gradients(batch_of(task, worker.mesh.replica, data(MODEL)))
        return worker

    return run_serial(np, task.num_ranks, program)


@pytest.mark.parametrize(("name", "pipe"), PIPELINES, ids=lambda x: x if isinstance(x, str) else f"p{x.p}m{x.m}")
def test_activations_held_are_the_simulators(name, pipe):
    order = SCHEDULES[name].order(pipe)
    timeline = run(order, durations(order, 1.0, 1.0, 1.0))
    live = outcome(name, pipe).live
    assert [rank.peak_forward for rank in live] == list(timeline.peak())
    assert [rank.peak_both for rank in live] == list(timeline.peak(kept=1.0))


def tp_bytes(task: Task, layers: int, first: bool, last: bool) -> float:
    """Per rank and step. Narayanan et al. 2021, section 3.2: an all-reduce of b s h twice a layer and direction.

    Full recomputation repeats the forward's but the last; sequence parallelism gathers inputs again in backward.
    The embedding adds one forward; the head's gradient one backward, and per token three numbers of the loss.
    """
    m = task.model
    t, tokens = task.tp, 16 * m.seq_len // task.dp
    size = tokens * m.hidden * 8
    all_reduce = 2 * (t - 1) / t
    split = task.sequence_parallel
    again = (1.5 if split else 1) if task.recompute == Recompute.FULL else 0
    gathers = (2 * layers + last) * split / 2  # half of an all-reduce each
    ends = first + last
    loss = last * 3 * tokens * 8
    return ((layers * (4 + again) + gathers + ends) * size + loss) * all_reduce


@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tensor_parallel_bytes(recompute, sequence_parallel):
    task = task_of("llama", "1f1b", Pipeline(p=2, m=4), tp=2, sequence_parallel=sequence_parallel, recompute=recompute)
    for worker in executed(task):
        sent = worker.communicator.traffic
        first, last = worker.mesh.p == 0, worker.mesh.p == 1
        expected = tp_bytes(task, 4, first, last)
        weights = (4 * 2 + last) * MODEL.hidden * 8 if sequence_parallel else 0  # norms' gains, reduced over tp
        assert sent.of("tp") == expected + weights


@pytest.mark.parametrize("zero", range(4))
def test_data_parallel_bytes(zero):
    """ZeRO (Rajbhandari et al. 2020, section 7): 2 Psi (d-1)/d, and per micro-batch where shards are."""
    m = 4
    task = task_of("llama", "1f1b", Pipeline(p=2, m=m), dp=2, zero=zero)
    for worker in executed(task):
        elements = sum(worker.store.num_elements(n) for n in worker.store.units)
        once = elements * 8 * (2 - 1) / 2
        times = {0: 2, 1: 1, 2: m, 3: 3 * m}[zero]  # the gather of updated parameters follows the optimizer's step
        assert worker.communicator.traffic.of("dp") == once * times


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_hybrid_sharding_bytes(zero):
    """Two of four data ranks hold a copy: gathers and scatters between two, and each half summed over the copies."""
    m = 4
    task = task_of("llama", "1f1b", Pipeline(p=2, m=m), dp=4, zero=zero, dp_replicate=2)
    for worker in executed(task):
        assert [len(group) for group in (worker.mesh.data, worker.mesh.shard, worker.mesh.copies)] == [4, 2, 2]
        elements = sum(worker.store.num_elements(n) for n in worker.store.units)
        once = elements * 8 * (2 - 1) / 2
        between = 2 * (elements / 2) * 8 * (2 - 1) / 2  # an all-reduce of half of them over two copies
        due = {1: once + between, 2: m * (once + between), 3: m * (3 * once + between)}[zero]
        assert worker.communicator.traffic.of("dp") == due
        assert all(
            len(worker.store.owned(name)[0]) * 2 == worker.store.num_elements(name) for name in worker.store.units
        )


@pytest.mark.parametrize(("name", "pipe"), PIPELINES, ids=lambda x: x if isinstance(x, str) else f"p{x.p}m{x.m}")
def test_pipeline_bytes(name, pipe):
    sent = sum(rank["pp", "send"] for rank in outcome(name, pipe).traffic)
    order = SCHEDULES[name].order(pipe)
    ranks = {}
    for rank, row in enumerate(order.rows()):
        ranks |= {(op.stage, op.micro_batch): rank for op in row}
    crossings = sum(ranks[s, i] != r for (s2, i), r in ranks.items() for s in [s2 + 1] if (s, i) in ranks)
    size = 16 // pipe.m * MODEL.seq_len * MODEL.hidden * 8
    assert sent == 2 * crossings * size


def test_layer_at_a_time_gathers_each_layer_once_a_pass():
    """Layered gradient accumulation (Lamy-Poirier 2021, section 3.1): ZeRO-3's traffic doesn't grow with m."""
    for m in (4, 8):
        pipe = Pipeline(p=2, m=m, v=4)
        task = task_of("llama", "modular", pipe, dp=2, zero=3)
        for worker in executed(task):
            elements = sum(worker.store.num_elements(n) for n in worker.store.units)
            sent = worker.communicator.traffic.of("dp")
            assert sent == 3 * elements * 8 / 2
