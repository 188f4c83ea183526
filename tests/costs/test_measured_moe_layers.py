"""A whole layer of experts on eight H100 as planner predicts it, beside Megatron-LM's own measurement.

tests/functional_tests/test_cases/common/moe_perf of NVIDIA/Megatron-LM (baseline.json, commit d98e8a64dd): 4,096 tokens
a GPU, DeepSeek-V3's width and experts of 2,048, of which 32, eight a token, and a shared one; a GELU between two
products, bf16, router and copies fused. A product before it hides the host's launches. No figure was fitted to it.
"""

from dataclasses import replace

import numpy as np
import pytest

from planner.costs.case import Case
from planner.costs.kernels.device import Device, group_s, matmul_s, stream_s
from planner.costs.layer.expert_routing import Routing, permute_s, reached
from planner.costs.layer.layer_cost import ACTIVATION
from planner.costs.network.collectives import all_to_all_s, dispatch_s
from planner.costs.network.groups import place
from planner.costs.placement import node_ranks
from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Dispatcher, Layouts
from planner.models import load_model

TOKENS, HIDDEN, INNER, COPIES, LOCAL = 4096, 7168, 2048, 8, 4
ON = load_cluster("dgx-h100")
MODEL = replace(
    load_model("deepseek-v3"), num_layers=1, num_dense_layers=0, num_experts=32, expert_groups=8, top_k_groups=4,
    moe_ffn=INNER, seq_len=TOKENS,
)  # fmt: skip


def layer_ms(exchange_s, how):
    """Milliseconds of the forward and the backward pass."""
    chosen = Layouts.of(micro_batch=1, global_batch=8, dp=8, ep=8, attention=Attention.FLASH3)
    device = Device.of(ON.accelerator, chosen.precision)
    framework = replace(load_framework("megatron-core"), fused_routing=True)
    of = Case(device=device, model=MODEL, cluster=ON, framework=framework, layouts=chosen)
    routed = permute_s(of, how)
    rows, inner = TOKENS * COPIES / LOCAL, TOKENS * (COPIES + 1) * INNER
    total = []
    shapes = {
        0: [(rows, INNER, HIDDEN), (rows, HIDDEN, INNER)],
        1: [(rows, HIDDEN, INNER), (HIDDEN, INNER, rows), (rows, INNER, HIDDEN), (INNER, HIDDEN, rows)],
    }
    for i, products in shapes.items():
        own = sum(group_s(device, *shape, 1.0, LOCAL, False)[0] for shape in products)
        shared = (1 + i) * sum(matmul_s(device, TOKENS, *shape) for shape in ((INNER, HIDDEN), (HIDDEN, INNER)))
        between = stream_s(device, inner * ACTIVATION[i] * 2.0)
        total.append(1e3 * float(np.ravel(own + shared + between + routed[i] + 2.0 * exchange_s)[0]))
    return total


@pytest.mark.parametrize(
    ("dispatcher", "measured_ms", "within"),
    [
        (Dispatcher.ALLTOALL, (7.119, 10.483), 0.05),
        (Dispatcher.HYBRIDEP, (5.391, 8.795), 0.01),
        (Dispatcher.DEEPEP, (5.682, 9.055), 0.02),
    ],
)
def test_deepseek_s_experts(dispatcher, measured_ms, within):
    group = place(ON, np.array([8]), np.array([1]), node_ranks(ON, np.array([8])))
    token_bytes = TOKENS * HIDDEN * 2.0
    plain = all_to_all_s(group, token_bytes * COPIES)
    at_most = load_framework("megatron-core").deepep_bytes_per_s if dispatcher == Dispatcher.DEEPEP else np.inf
    once = dispatch_s(group, token_bytes, reached(MODEL, group.ranks), reached(MODEL, group.nodes), at_most)
    if dispatcher == Dispatcher.ALLTOALL:
        assert layer_ms(plain, Routing.FUSED) == pytest.approx(measured_ms, rel=within)
    else:
        assert layer_ms(once, Routing.NODES) == pytest.approx(measured_ms, rel=within)
