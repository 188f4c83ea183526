"""Gradients that layers scatter in a step's last micro-batch alone: bytes and seconds by hand, of two micro-batches.

A layer's 1,000 parameters take 202 s to gather over two ranks and 402 s to scatter in fp32 (test_traffic_by_hand).
"""

from dataclasses import fields, replace

import numpy as np
import pytest

from planner.costs.layer.layer_cost import LayerCost
from planner.costs.memory.bytes_per_parameter import accumulated_bytes
from planner.costs.memory.rank import rank_memory
from planner.costs.network.traffic import layer_traffic, traffic
from planner.hardware import load_cluster, load_framework
from planner.layouts import Layouts, Precision, Recompute
from planner.models import load_model
from planner.models.counts import total_params
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.layer_time import layer_time
from tests.costs.toy import BYTES, CLUSTER, FRAMEWORK, GPT, case, layout, own

LAST = replace(FRAMEWORK, defers_scatter=True)
PARAMS = 2 * 872 + 2048 + 128 + 16


def gradients(framework=LAST, **choices):
    of = case(BYTES, GPT, layout(**choices), framework=framework)
    found = rank_memory(of, layers=2.0, in_flight=1.0, first=True, last=True)
    return float(np.ravel(found.gradients_bytes)[0])


def test_whole_gradients_wait_for_the_last_micro_batch():
    """In fp32 4 B of every parameter, else those of the format that is reduced; the shard's 4 B come after them."""
    assert gradients(zero=3, dp=4) == PARAMS * 4
    assert gradients(FRAMEWORK, zero=3, dp=4) == PARAMS
    assert gradients(replace(LAST, bf16_scattered_bytes=2.0), zero=3, dp=4) == PARAMS * 2
    assert gradients(replace(LAST, bf16_scattered_bytes=1.0), zero=3, dp=2) == PARAMS * 2  # a half in fp32
    assert gradients(zero=3, dp=4, global_batch=12) == PARAMS  # one micro-batch
    assert gradients(zero=3) == gradients(FRAMEWORK, zero=3)  # one rank
    # Where gradients are scattered all at once, and those that are whole anyway.
    assert [gradients(zero=zero, dp=4) for zero in (0, 1, 2)] == [PARAMS * 4, PARAMS * 4, PARAMS]
    assert gradients(replace(LAST, zero2_by_layer=True), zero=2, dp=4) == PARAMS * 4
    # Shards go to the host as they come; what is whole waits on the accelerator.
    away = replace(LAST, host_gradients_zero=2, host_fp32_gradients_zero=2)
    assert gradients(away, zero=3, dp=4, offload_optimizer=True) == PARAMS * 4


def test_sums_of_whole_gradients_cross_memory_whole():
    """16 bits are read and 4 B written for the first, 2 + 4 read and 4 written for the second."""

    def moved(framework, **choices):
        return float(accumulated_bytes(case(layouts=layout(zero=3, dp=4, **choices), framework=framework))[0])

    assert moved(LAST) == (6 + 10) / 2
    assert moved(replace(LAST, bf16_scattered_bytes=2.0)) == 6 / 2  # the first one is the sum
    assert moved(LAST, precision=Precision.FP32) == 12 / 2
    assert moved(replace(LAST, bf16_accumulate_bytes=12.0), global_batch=12) == 0.0


def one_layer(backward_s, **figures):
    """Sharding's seconds of a layer whose passes take so long, and what embedding and head move."""
    of = case(layouts=layout(zero=3, dp=2), framework=replace(LAST, **figures), cluster=CLUSTER)
    wire = traffic(of, layer_traffic(of), own(1000.0))
    cost = LayerCost(**{f.name: np.zeros(1) for f in fields(LayerCost)})
    cost = replace(cost, forward_matmul_s=np.full(1, 1000.0), backward_matmul_s=np.full(1, backward_s))
    return float(layer_time(of, cost, wire).sharding_s[0]), float(wire.ends_sharding_s[0])


def test_one_of_two_backward_passes_scatters():
    """Each gathers anew. Where they are waited for 202 s pass twice, and 402 s half the times."""
    waited, ends = one_layer(300.0)
    assert waited == pytest.approx(2 * 202 + 402 / 2)
    # Embedding and head: 4,096 B gathered, 8,192 B scattered half the times.
    assert ends == pytest.approx(4096 / 2 / 5 + 2 + (8192 / 2 / 5 + 2) / 2)
    # Beside passes of 1,000 s and 300 s: a gather of 202 s hides, with the scatter 304 s show, in one of the two.
    assert one_layer(300.0, overlap_param_gather=1.0)[0] == pytest.approx((202 + 402 - 300) / 2)


def test_a_pass_of_all_micro_batches_scatters_once_either_way():
    both = [case(layouts=layout(zero=3, dp=2, schedule="breadth-first"), framework=f) for f in (FRAMEWORK, LAST)]
    cost = LayerCost(**{f.name: np.zeros(1) for f in fields(LayerCost)})
    times = [layer_time(of, cost, traffic(of, layer_traffic(of), own(1000.0))) for of in both]
    assert float(times[0].sharding_s[0]) == float(times[1].sharding_s[0]) > 0


def test_frameworks_that_defer_run_out_of_memory_as_they_say():
    """NeMo AutoModel's configuration of 70B on 64 H100 says of it: "Must be False with GA>1" (else out of memory)."""
    model, cluster = load_model("llama3-70b"), load_cluster("dgx-h100")
    room = cluster.accelerator.memory_bytes
    for name, size in (("nemo-automodel", 4.0), ("transformers", 2.0), ("litgpt", 2.0)):
        framework = load_framework(name)
        for last in (True, False):
            setup = Setup(model, cluster, replace(framework, defers_scatter=last))
            layouts = Layouts.of(micro_batch=1, dp=64, zero=3, global_batch=256, recompute=Recompute.FULL)
            memory = estimate(setup, layouts).memory
            assert framework.defers_scatter
            assert (float(memory.total_bytes[0]) > room) is last
            whole = float(memory.gradients_bytes[0])
            assert whole == pytest.approx(total_params(model) * (size if last else 4.0 / 64), rel=1e-3)
    for name in ("fsdp", "torchtitan", "torchtune", "transformers-deepspeed", "verl", "veomni", "fsdp-compiled"):
        assert not load_framework(name).defers_scatter
