"""Activations of DeepSeek-V3 beside what Megatron-Core's authors report (NVIDIA 2026, arXiv 2603.07685, 4.1).

In bf16 a GPU of 256 (pp 4, vpp 4, ep 64) holds 131.0 GB of activations (Table 3). The shares of them are compared, for
the report doesn't say how many micro-batches' layers its fullest GPU holds.
"""

from dataclasses import replace

import numpy as np
import pytest

from planner.costs.case import Case
from planner.costs.memory.rank import activations
from planner.costs.memory.saved_activations import layer_tensors
from planner.hardware import load_cluster, load_framework
from planner.layouts import Recompute
from planner.models import load_model
from planner.setup import Setup
from tests.costs.toy import layout

ACTIVATIONS_GB = 131.0
MODEL = load_model("deepseek-v3")
WEIGHED_AFTER = replace(load_framework("megatron-core"), kept_expert_outputs=True)


def of(precision=3, framework=WEIGHED_AFTER, **choices):
    chosen = layout(micro_batch=1, dp=64, ep=64, global_batch=8192, precision=precision, **choices)
    return Case.of(Setup(MODEL, load_cluster("gb200-nvl72"), framework), chosen)


def kept(**choices):
    return float(np.ravel(activations(of(**choices)).layer)[0])


@pytest.mark.parametrize(
    ("saved_gb", "saved_bytes_of", "points"),
    [
        (30.4, lambda x: x.from_latents, 0.01),  # Table 4: MLA up-projection
        (8.2 + 3.8, lambda x: x.product_inputs + x.routed_inputs, 0.03),  # LayerNorm and SwiGLU
        (26.3, lambda x: x.expert_outputs, 0.01),  # 4.1.2: memory-efficient permutation
    ],
)
def test_shares_of_a_mixture_s_activations(saved_gb, saved_bytes_of, points):
    share = float(np.ravel(saved_bytes_of(layer_tensors(of())))[0]) / kept()
    assert share == pytest.approx(saved_gb / ACTIVATIONS_GB, abs=points)


def test_fine_recomputation_drops_a_third():
    """42.4 GB in all, Table 4."""
    assert 1.0 - kept(recompute=Recompute.FINE) / kept() == pytest.approx(42.4 / ACTIVATIONS_GB, abs=0.03)


def test_fp8_inputs_of_products_save_an_eighth():
    """Some 16 GB, 4.1.3."""
    assert 1.0 - kept(precision=4) / kept() == pytest.approx(16.0 / ACTIVATIONS_GB, abs=0.03)


def test_a_framework_that_weighs_inner_activations_keeps_no_outputs():
    core = load_framework("megatron-core")
    outputs = float(np.ravel(layer_tensors(of()).expert_outputs)[0])
    assert kept() - kept(framework=core) == pytest.approx(outputs)
    assert kept(recompute=Recompute.FULL) == kept(framework=core, recompute=Recompute.FULL)
