"""Layers in nvfp4: which stay in 16 bits, what they keep and send, by hand or from TE's and torchao's code."""

from dataclasses import replace

import numpy as np
import pytest

from planner import estimate
from planner.costs.kernels.device import matmul_s
from planner.costs.layer.kept_operations import dropped_products_s, kept_operation_bytes
from planner.costs.layer.matmul_shapes import common_products
from planner.costs.memory.bytes_per_parameter import fp8_copy_bytes, layer_parameter_bytes
from planner.costs.network.collectives import all_gather_s
from planner.costs.network.groups import groups
from planner.costs.network.traffic import tensor_s
from planner.costs.one_layer import one_layer
from planner.hardware import load_cluster
from planner.layouts import Precision, Recompute
from planner.setup import Setup
from tests.costs.toy import BYTES, FLOP, FRAMEWORK, LLAMA, case, layout

NVFP4 = Precision.NVFP4


@pytest.mark.parametrize(
    ("cluster", "rows", "columns", "depth", "tflops"),
    [
        ("dgx-b200", 8192, 8192, 8192, 5239),
        ("dgx-b200", 4096, 4096, 7168, 3939),
        ("gb300-nvl72", 8192, 8192, 33024, 8340),
    ],
)
def test_products_beside_measured_ones(cluster, rows, columns, depth, tflops):
    """cuBLASLt on B200 (DeepGEMM's pull request 348), CUTLASS on GB300 (ThunderKittens): within 9 %."""
    accelerator = load_cluster(cluster).accelerator
    of = case(accelerator, LLAMA, layout(precision=NVFP4)).device
    rate = 2.0 * rows * columns * depth / float(np.ravel(matmul_s(of, rows, columns, depth))[0])
    assert rate == pytest.approx(tflops * 1e12, rel=0.09)


def test_a_share_of_the_layers_stays_in_16_bits():
    """A layer's average: a quarter as in bf16, three quarters in nvfp4; in fp8 and bf16 none."""
    peaks = dict.fromkeys(("bf16", "fp8", "nvfp4"), 1.0) | {"nvfp4": 4.0}
    shares = dict.fromkeys(peaks, 1.0)
    cluster = load_cluster("dgx-b200")
    efficiency = replace(cluster.accelerator.efficiency, matrix_fraction=shares)
    cluster = replace(cluster, accelerator=replace(cluster.accelerator, peak_flops=peaks, efficiency=efficiency))

    def of(precision, wide):
        setup = Setup(model=LLAMA, cluster=cluster, framework=replace(FRAMEWORK, nvfp4_wide_layers=wide))
        one = one_layer(setup, layout(precision=precision))
        return np.array([float(one.cost.forward_matmul_s[0]), float(one.activations.layer[0])])

    narrow, wide = of(NVFP4, 0.0), of(Precision.BF16, 0.0)
    assert of(NVFP4, 0.25) == pytest.approx(0.75 * narrow + 0.25 * wide)
    assert narrow[0] < wide[0]
    assert narrow[1] < wide[1]
    assert of(Precision.FP8, 0.25) == pytest.approx(of(Precision.FP8, 0.0))


def test_parameters_stay_in_16_bits_beside_both_copies():
    """TE keeps a weight by rows and by columns between micro-batches: twice 4.5 bits where fp8 keeps two bytes."""
    kept = replace(FRAMEWORK, fp8_parameter_bytes=1.0, fp8_copy_bytes=1.0)
    chosen = case(BYTES, LLAMA, layout(precision=NVFP4, dp=2, zero=1), framework=kept)
    assert float(layer_parameter_bytes(chosen)[0]) == 2.0
    assert float(fp8_copy_bytes(chosen)[0]) == 2 * 0.5625


def test_a_gradient_s_rows_and_columns_are_gathered_apart():
    """Forward one gather a block in 4.5 bits and one scatter in 16; backward the gather twice."""
    chosen = case(BYTES, LLAMA, layout(precision=NVFP4, tp=2, sequence_parallel=True))
    group = groups(chosen.cluster, chosen.layouts)["tensor"]
    size = 48 * 8 * 2.0
    narrow, scatter = (float(np.ravel(all_gather_s(group, x))[0]) for x in (size * 0.5625 / 2, size))
    forward, backward = (float(np.ravel(x)[0]) for x in tensor_s(chosen, group))
    assert forward == pytest.approx(2 * (narrow + scatter))
    assert backward == pytest.approx(2 * (2 * narrow + scatter))


def test_no_product_in_nvfp4_is_kept_by_operation():
    """torchao's products are aten._scaled_mm_v2, which torchtitan's selective checkpointing does not keep."""
    titan = replace(FRAMEWORK, selective_operations=True)
    chosen = case(FLOP, LLAMA, layout(precision=NVFP4, recompute=Recompute.SELECTIVE), framework=titan)
    flop = 2 * 48 * sum(float(np.ravel(c * d * n)[0]) for _, c, d, n in common_products(chosen))
    rate = float(chosen.device.matrix_rate[0])
    assert float(np.ravel(dropped_products_s(chosen))[0]) == pytest.approx(flop / rate)
    # The layer's input and attention's output of 8 channels each, in two bytes.
    assert float(np.ravel(kept_operation_bytes(chosen))[0]) == 48 * 2 * (8 + 8)


def test_a_gpu_without_it_refuses():
    with pytest.raises(Exception, match="nvfp4"):
        estimate("llama3-8b", "dgx-h100", batch=64, dp=8, precision="nvfp4")
