"""Bytes that ranks send equal those that the cost models charge: on links of one byte a second, seconds are bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.hardware import load_cluster, load_framework
from planner.layouts import Layouts, Precision
from planner.schedules.base import Pipeline
from planner.setup import Setup
from planner.step.step_costs import step_costs
from planner.trainer.optimizers import SGD
from planner.trainer.serial import run_serial
from planner.trainer.task import Task
from planner.trainer.worker import Worker
from tests.trainer.helpers import SEQUENCES, batch_of, data
from tests.trainer.test_parallel import MODELS, task_of

LAYERS = 8


def charged(model, **layout):
    """The cost model's step of one layout, its communication in bytes."""
    cluster = load_cluster("workstation-cpu")
    link = replace(cluster.node_link, bandwidth_bytes_per_s=1.0, latency_s=0.0, fraction=1.0, send_fraction=1.0)
    cluster = replace(cluster, node_link=link, gpus_per_node=64, max_gpus=None)
    framework = replace(load_framework("megatron-lm"), grad_reduce_bytes=4.0, gradient_bytes=4.0)
    layouts = Layouts.of(precision=Precision.FP32, global_batch=SEQUENCES, **layout)
    return step_costs(Setup(model, cluster, framework), layouts)


def sent(task: Task) -> list:
    def program(communicator):
        worker = Worker(communicator, task, SGD())
        worker.gradients(batch_of(task, worker.mesh.replica, data(task.model)))
        return communicator.traffic

    return run_serial(np, task.num_ranks, program)


def fp32(task: Task) -> Task:
    return replace(task, dtype=np.float32)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tensor_parallel(name, tp, sequence_parallel):
    model = replace(MODELS[name], num_kv_heads=4)
    m = 4
    task = fp32(task_of(name, "1f1b", Pipeline(p=1, m=m), tp=tp, sequence_parallel=sequence_parallel))
    task = replace(task, model=model)
    t = charged(model, tp=tp, micro_batch=SEQUENCES // m, zero=0, sequence_parallel=sequence_parallel).traffic
    expected = m * (LAYERS * float(t.layer_forward_s[0] + t.layer_backward_s[0]) + float(t.ends_s[0]))
    for rank in sent(task):
        operations = dict(rank.wire_bytes)
        if sequence_parallel:
            # Beyond the cost model: inputs of column products gathered again (it hides them under the weight
            # gradients), the head's too, and the norms' gradients once a step.
            size = SEQUENCES * model.seq_len * model.hidden * 4 * (tp - 1) // tp
            operations["tp", "all_gather"] -= (2 * LAYERS + 1) * size
            per_norm = model.hidden * (1 if model.rms_norm else 2)
            biases = 2 * LAYERS * model.hidden if model.mlp_bias else 0
            positions = model.max_positions * model.hidden
            whole = ((2 * LAYERS + 1) * per_norm + biases + positions) * 4
            operations["tp", "all_reduce"] -= 2 * whole * (tp - 1) // tp
        assert sum(v for (group, _), v in operations.items() if group == "tp") == pytest.approx(expected)


def test_pipeline_sends():
    m = 4
    task = fp32(task_of("llama", "1f1b", Pipeline(p=2, m=m)))
    t = charged(MODELS["llama"], pp=2, micro_batch=SEQUENCES // m, zero=0).traffic
    for rank in sent(task):
        assert rank.of("pp") == m * float(t.send_s[0])


@pytest.mark.parametrize(("cp", "ulysses"), [(2, 1), (4, 1), (2, 2), (4, 4), (4, 2)])
def test_context_parallelism(cp, ulysses):
    model, m = replace(MODELS["llama"], num_kv_heads=4), 2
    task = fp32(task_of("llama", "1f1b", Pipeline(p=1, m=m), cp=cp, ulysses=ulysses))
    t = charged(model, cp=cp, ulysses=ulysses, micro_batch=SEQUENCES // m, zero=0).traffic
    ring = float(t.context_forward_s[0] + t.context_backward_s[0])
    exchange = float(t.exchange_forward_s[0] + t.exchange_backward_s[0])
    for rank in sent(replace(task, model=model)):
        assert rank.wire_bytes["cp", "send"] == pytest.approx(m * LAYERS * ring)
        assert rank.wire_bytes["cp", "all_to_all"] == pytest.approx(m * LAYERS * exchange)


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_gradient_reduction(zero):
    m, dp = 2, 4
    model = replace(MODELS["llama"], vocab=128)  # a size that the cost model doesn't pad
    task = replace(fp32(task_of("llama", "1f1b", Pipeline(p=1, m=m), dp=dp, zero=zero)), model=model)
    step = charged(model, dp=dp, micro_batch=SEQUENCES // m // dp, zero=zero)
    # All-reduced once; scattered once; scattered after every micro-batch.
    reduced = float(step.reduce_s[0]) * {0: 1.0, 1: 1.0, 2: m}[zero]
    for rank in sent(task):
        assert rank.of("dp") == pytest.approx(reduced)
