"""A rank's experts in one kernel, their activation and its cast in the products' epilogues, worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from planner.costs.kernels.device import matmul_s
from planner.costs.layer.layer_cost import layer_cost, matmuls_s, pointwise_s
from planner.costs.one_layer import one_layer
from planner.hardware import load_framework
from planner.layouts import Precision, Recompute
from planner.setup import Setup
from planner.step.estimate import estimate
from tests.costs.toy import BYTES, CLUSTER, FLOP, FRAMEWORK, LAUNCHES, LLAMA, MOE, accelerator, case, device, layout

ROUTED = replace(MOE, num_shared_experts=0, num_dense_layers=0)  # two layers of four experts of 16, two a token
ONE_KERNEL = replace(FRAMEWORK, fused_experts=True)
GROUPED = replace(FRAMEWORK, grouped_experts=True)


def values(parts):
    return [float(np.ravel(x)[0]) for x in parts]


def test_products_together_are_one_launch_and_fill_waves_together():
    chosen = layout()
    assert values([matmul_s(device(LAUNCHES, chosen), 3, 5, 7, 1.0, 4)]) == [1.0]
    for of in (FLOP, BYTES):
        one, four = (matmul_s(device(of, chosen), 3, 5, 7, 1.0, n) for n in (1, 4))
        assert values([four]) == [4 * values([one])[0]]
    # Three tiles leave units idle, of twelve fewer: 2 x 3 FLOP each at 8 FLOP/s are the least.
    eight = replace(accelerator(flops=8.0), num_compute_units=8)
    one, four = (values([matmul_s(device(eight, chosen), 3, 1, 1, 1.0, n)])[0] for n in (1, 4))
    assert 4 * 2 * 3 / 8 <= four < 4 * one


def test_a_rank_s_experts_are_one_kernel_or_launched_one_by_one():
    """On streams each of a rank's experts' products takes at least what its launch takes the host, here 0.75 s."""
    slow = accelerator(kernel_latency_s=1.0, wide_expert_product_s=0.75)
    # Query, key and value; output; router; and up and down of four experts or of two, or of all in one kernel, each of
    # which the GPU alone would take a second for.
    for chosen, launched in ((layout(), 4 * 0.75), (layout(dp=2, ep=2), 2 * 0.75)):
        assert values(matmuls_s(case(slow, ROUTED, chosen))[:3]) == [3 + 2 * launched] * 3
        assert values(matmuls_s(case(slow, ROUTED, chosen))[3:]) == [6 * (launched - 1)]
        assert values(matmuls_s(case(slow, ROUTED, chosen, framework=ONE_KERNEL))) == [*[3 + 2] * 3, 0]
        assert values(matmuls_s(case(slow, ROUTED, chosen, framework=GROUPED))) == [*[3 + 2] * 3, 0]
    # A grouped product has no epilogue: its activation is a pass of its own.
    plain, grouped, fused = (
        pointwise_s(case(BYTES, ROUTED, layout(), framework=f)) for f in (FRAMEWORK, GROUPED, ONE_KERNEL)
    )
    assert values(plain) == values(grouped) != values(fused)
    # A rank's only expert is launched like any other product.
    alone = layout(dp=4, ep=4)
    assert values(matmuls_s(case(slow, ROUTED, alone))[:3]) == [3 + 2] * 3
    # Launches hide behind products that take longer.
    chosen = layout()
    flop = device(replace(FLOP, efficiency=replace(FLOP.efficiency, wide_expert_product_s=1e-9)), chosen)
    assert values(matmuls_s(case(flop, ROUTED, chosen))[:3]) == values(
        matmuls_s(case(flop, ROUTED, chosen, framework=ONE_KERNEL))[:3]
    )
    # A model without experts has none to launch.
    of = device(slow, chosen)
    assert values(matmuls_s(case(of, LLAMA, chosen))[:3]) == values(
        matmuls_s(case(of, LLAMA, chosen, framework=ONE_KERNEL))[:3]
    )


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP8])
def test_the_gate_and_its_cast_cost_nothing_more(precision):
    """48 tokens of two experts of 16: 1,536 elements, five passes forward and eight backward; in fp8 its casts.

    Of the inner elements forward, of the gradients of gate and up backward: four bytes each.
    """
    chosen = layout(precision=precision)
    of, inner = device(BYTES, chosen), 48 * 2 * 16
    plain, fused = (values(pointwise_s(case(of, ROUTED, chosen, framework=f))) for f in (FRAMEWORK, ONE_KERNEL))
    cast = (4, 2 * 4) if precision == Precision.FP8 else (0, 0)
    assert plain[0] - fused[0] == (5 * 2 + cast[0]) * inner
    assert plain[1] - fused[1] == (8 * 2 + cast[1]) * inner
    assert plain[2] - fused[2] == 5 * 2 * inner  # nothing of it is left to recompute
    # A dense layer's gate, and a shared expert's, are as they were.
    shared = replace(ROUTED, num_shared_experts=1)
    more = [values(pointwise_s(case(of, m, chosen, framework=ONE_KERNEL)))[0] for m in (ROUTED, shared)]
    assert more[1] - more[0] > 5 * 2 * 48 * 16 - 1
    assert values(pointwise_s(case(of, LLAMA, chosen, framework=ONE_KERNEL))) == values(
        pointwise_s(case(of, LLAMA, chosen))
    )


def test_the_wait_for_launches_is_the_host_s_in_a_step():
    """Two micro-batches of two layers with six groups of four launches; a repeated pass's wait is recomputation's."""
    slow = replace(CLUSTER, accelerator=accelerator(kernel_latency_s=1.0, wide_expert_product_s=0.75))
    for recompute in (Recompute.NONE, Recompute.FULL):
        chosen = layout(recompute=recompute)
        at_once = replace(FRAMEWORK, fused_experts=True)
        one_by_one, together = (estimate(Setup(ROUTED, slow, of), chosen).time for of in (FRAMEWORK, at_once))
        assert float(one_by_one.host_s[0] - together.host_s[0]) == pytest.approx(2 * 2 * 6 * (4 * 0.75 - 1))
        assert float(one_by_one.matmul_s[0]) == pytest.approx(float(together.matmul_s[0]))


def test_a_framework_says_so():
    assert [load_framework(name).fused_experts for name in ("megatron-bridge", "megatron-bridge-fused")] == [
        False,
        True,
    ]
    assert [load_framework(name).fp8_attention for name in ("megatron-bridge", "megatron-bridge-fused")] == [
        False,
        True,
    ]
    windowed = replace(ROUTED, window=4, num_window_layers=2)
    in_fp8 = layout(precision=Precision.FP8)
    whole, band = (
        one_layer(Setup(windowed, CLUSTER, replace(FRAMEWORK, fp8_attention=says)), in_fp8).cost
        for says in (True, False)
    )
    assert whole.forward_attention_s == band.forward_attention_s
    assert whole.backward_attention_s > band.backward_attention_s
    chosen = layout(precision=Precision.BF16)
    fused = one_layer(Setup(ROUTED, CLUSTER, replace(FRAMEWORK, fused_experts=True)), chosen)
    assert fused.cost.forward_s == layer_cost(case(fused.case.device, ROUTED, chosen, framework=ONE_KERNEL)).forward_s
    assert fused.cost.forward_s < one_layer(Setup(ROUTED, CLUSTER, FRAMEWORK), chosen).cost.forward_s
