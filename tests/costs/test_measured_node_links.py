"""All-reduces inside a node and single products, measured by Azure: github.com/Azure/AI-benchmarking-guide.

Azure_Results/ND_A100_v4_results.md, ND_GB200_v6_results.md (four GPUs, rings; products in fp8, driver 570.133.20), and
ND_MI300X_v5_results.md as its fork samuel-bohman/AI-benchmarking-guide has it:
bus bandwidth in GB/s over eight GPUs (nccl-tests and rccl-tests), TFLOP/s of products in fp16 (cuBLASLt).
"""

import numpy as np
import pytest

from planner.costs.kernels.device import Device, matmul_s
from planner.costs.network.collectives import all_reduce_s
from planner.costs.network.groups import place
from planner.hardware import load_accelerator, load_cluster
from planner.layouts import Precision

SIZES = 2.0 ** np.arange(20, 34)  # 1 MiB to 8 GiB
BUS_GBYTE_PER_S = {
    "dgx-a100-80gb": [36.22, 53.54, 71.43, 89.99, 109.22, 132.77, 166.63, 174.18, 213.87, 221.58, 228.10, 230.22,
                      230.48, 231.58],
    "mi300x-server": [22.41, 43.41, 82.53, 131.57, 171.46, 230.35, 266.34, 290.81, 302.80, 308.89, 313.92, 315.06,
                      314.85, 316.82],
}  # fmt: skip
GB200_RINGS = [
    80.48,
    110.43,
    146.27,
    253.46,
    331.09,
    422.62,
    550.73,
    574.19,
    593.53,
    618.74,
    646.87,
    666.63,
    673.06,
    679.61,
]
GB200_PRODUCTS = {
    (8192, 8192, 8192): 2876.6, (16384, 16384, 16384): 2906.9, (32768, 32768, 32768): 2825.6,
    (6144, 12288, 12288): 2895.6,
}  # fmt: skip
A100_PRODUCTS = {
    (1024, 1024, 1024): 119.4, (2048, 2048, 2048): 221.8, (4096, 4096, 4096): 228.0, (8192, 8192, 8192): 253.7,
    (16384, 16384, 16384): 256.5, (6144, 12288, 12288): 250.8, (802816, 192, 768): 157.8,
}  # fmt: skip


def errors(cluster: str, bus_gbyte_per_s: list[float], gpus: int = 8) -> np.ndarray:
    """Of predicted seconds, over measured ones, less one."""
    ranks, stride = np.full(len(SIZES), gpus), np.ones(len(SIZES), dtype=int)
    measured = SIZES * 2.0 * (gpus - 1) / gpus / (np.array(bus_gbyte_per_s) * 1e9)
    return all_reduce_s(place(load_cluster(cluster), ranks, stride), SIZES) / measured - 1.0


def test_a100_from_1_mib_to_8_gib():
    """Its figures were chosen by these; without the protocol for small messages 1 MiB takes four times as long."""
    found = np.abs(errors("dgx-a100-80gb", BUS_GBYTE_PER_S["dgx-a100-80gb"]))
    assert found.max() < 0.17
    assert np.median(found) < 0.015
    assert found[-4:].max() < 0.01


def test_mi300x_which_nothing_was_chosen_by():
    """Its rate was AMD's own of 1 GiB and more, its start assumed."""
    found = np.abs(errors("mi300x-server", BUS_GBYTE_PER_S["mi300x-server"]))
    assert found.max() < 0.15
    assert found[4:].max() < 0.1
    assert found[-6:].max() < 0.01


def test_gb200_s_rings_of_64_to_256_mib_which_nothing_was_chosen_by():
    """The rate is that of gathers and scatters on B200, as much at a time. Larger ones are 12 % faster in the end."""
    found = errors("gb200-nvl72", GB200_RINGS, 4)
    assert np.abs(found[6:9]).max() < 0.03
    assert found[9:].max() < 0.13


@pytest.mark.parametrize(("shape", "tflops"), GB200_PRODUCTS.items(), ids=lambda x: str(x))
def test_hot_fp8_products_on_gb200(shape: tuple[int, int, int], tflops: float):
    """The profile's rate was assumed before they were found; by an older driver they take 8 % longer."""
    rows, columns, depth = shape
    device = Device.of(load_accelerator("gb200"), np.array([Precision.FP8]), 1)
    predicted = 2.0 * rows * columns * depth / float(matmul_s(device, rows, columns, depth)[0]) / 1e12
    assert predicted / tflops == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize(("shape", "tflops"), A100_PRODUCTS.items(), ids=lambda x: str(x))
def test_single_products_on_a100(shape: tuple[int, int, int], tflops: float):
    """The profile's rate was fitted to training runs; products that fill the GPU are within 5 %."""
    rows, columns, depth = shape
    device = Device.of(load_accelerator("a100-sxm-80gb"), np.array([Precision.FP16]), 1)
    predicted = 2.0 * rows * columns * depth / float(matmul_s(device, rows, columns, depth)[0]) / 1e12
    assert predicted / tflops == pytest.approx(1.0, abs=0.06 if min(shape) >= 4096 else 0.15)


BRIDGED = [(8, 1, 12.53), (8, 1, 13.49), (8, 1, 11.06), (4, 2, 7.65), (4, 2, 7.0), (2, 4, 4.0), (2, 4, 3.9)]
NEIGHBOURS = [(4, 1, 20.77), (4, 1, 20.75), (4, 1, 20.54), (2, 1, 20.9), (2, 1, 20.6), (2, 1, 19.26)]


@pytest.mark.parametrize(("ranks", "stride", "gbyte_per_s"), BRIDGED + NEIGHBOURS)
def test_rings_over_pcie_that_the_link_s_figures_are_of(ranks: int, stride: int, gbyte_per_s: float):
    """Of eight A100-PCIe on two host bridges: all-reduce, gather, scatter (SimuMax, configs/system/a100_pcie.json)."""
    group = place(load_cluster("a100-pcie"), np.array([ranks]), np.array([stride]))
    within = 0.11 if (ranks, stride) in {(8, 1), (4, 2), (2, 4)} else 0.07
    assert group.node_bandwidth_bytes_per_s[0] / 1e9 == pytest.approx(gbyte_per_s, rel=within)


@pytest.mark.parametrize(("ranks", "gbyte_per_s"), [(8, 8.26), (4, 19.14), (2, 20.91)])
def test_all_to_alls_over_pcie_that_the_link_s_figures_are_of(ranks: int, gbyte_per_s: float):
    group = place(load_cluster("a100-pcie"), np.array([ranks]), np.array([1]))
    assert group.node_send_bytes_per_s[0] / 1e9 == pytest.approx(gbyte_per_s, rel=0.06)


@pytest.mark.parametrize(("ranks", "reduced", "gathered"), [(2, 61.3, 60.6), (4, 166.5, 158.7), (8, 381.3, 365.8)])
def test_groups_of_a_node_without_a_switch_have_only_the_links_between_them(ranks, reduced, gathered):
    """Of 8 GiB on some of eight MI355X (rccl-tests; github.com/mit-orcd/amd-benchmarks, commit 953c534a,
    megatron-lm/logs/rccl_all_20260602_121713). Three reach 75 GB/s, where 109 are predicted.
    """
    group = place(load_cluster("mi355x-server"), np.array([ranks]), np.array([1]))
    assert group.node_bandwidth_bytes_per_s[0] / 1e9 == pytest.approx(reduced, rel=0.12)
    assert group.node_bandwidth_bytes_per_s[0] / 1e9 == pytest.approx(gathered, rel=0.12)


@pytest.mark.parametrize(("ranks", "gbyte_per_s"), [(2, 58.4), (4, 155.2)])
def test_all_to_alls_of_a_node_without_a_switch(ranks: int, gbyte_per_s: float):
    """From the same log."""
    group = place(load_cluster("mi355x-server"), np.array([ranks]), np.array([1]))
    assert group.node_send_bytes_per_s[0] / 1e9 == pytest.approx(gbyte_per_s, rel=0.1)


@pytest.mark.parametrize("ranks", [5, 6, 7])
def test_rings_of_more_than_half_of_such_a_node_that_the_link_s_figure_is_of(ranks: int):
    """All-reduces 38.4 GB/s, gathers 35.0, scatters 39.6."""
    group = place(load_cluster("mi355x-server"), np.array([ranks]), np.array([1]), ranks)
    assert group.node_bandwidth_bytes_per_s[0] / 1e9 == pytest.approx(38.4, rel=0.02)
