"""Experts' products launched one by one over several streams: Transformer Engine's pull requests 2045 and 3134."""

import csv
from pathlib import Path

import numpy as np
import pytest

from planner.costs.kernels.device import Device, group_s
from planner.hardware import load_accelerator
from planner.layouts import Precision


def seconds(accelerator: str, precision: Precision, experts: int, rows: int, columns: int, one_kernel: bool) -> float:
    """Of a rank's experts' products of depth 2,048."""
    device = Device.of(load_accelerator(accelerator), np.array([precision]))
    return float(group_s(device, rows, columns, 2048, 1.0, experts, one_kernel)[0][0])


@pytest.mark.parametrize(("experts", "rows", "measured_tflops"), [(8, 4096, 627.9), (16, 2048, 553.9)])
def test_on_h100_streams_share_the_gpu_until_launches_take_longer(experts: int, rows: int, measured_tflops: float):
    """The same arithmetic in eight products and in sixteen: shared, and held up by the host."""
    flop = 2.0 * experts * rows * 768 * 2048
    predicted = seconds("h100-sxm", Precision.BF16, experts, rows, 768, False)
    assert flop / predicted / 1e12 == pytest.approx(measured_tflops, rel=0.04)


def test_on_blackwell_small_products_take_the_host_s_time():
    """Eight of 128 rows: 0.272 ms one by one; one kernel for all is free of it (measured in NVFP4: 0.184, or 0.069)."""
    assert seconds("b200", Precision.FP8, 8, 128, 2048, False) == pytest.approx(0.272e-3, rel=0.01)
    assert seconds("b200", Precision.FP8, 8, 128, 2048, True) < 0.069e-3


def test_in_16_bits_nothing_is_cast_and_the_host_is_as_fast_as_on_h100():
    small = [seconds(gpu, Precision.BF16, 8, 128, 2048, False) for gpu in ("h100-sxm", "b200", "b300")]
    assert small == pytest.approx([8 * 11.6e-6] * 3)


def test_one_expert_of_a_rank_is_a_product_like_any_other():
    one, same = (seconds("h100-sxm", Precision.BF16, 1, 128, 768, kernel) for kernel in (False, True))
    assert one == same


def test_groups_meet_the_bytes_of_their_weights_and_of_the_sums_of_their_gradients():
    """SimuMax's 108 groups on one B200 and 12 on an A100-PCIe (benchmarks/kernels.py), which no figure was chosen by.

    The root mean square of the error's logarithm was 0.35 where operands hid under compute and a gradient was written.
    """
    with (Path(__file__).parents[2] / "benchmarks" / "simumax_kernels.csv").open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["op"] == "group_matmul"]
    off = []
    for row in rows:
        shape = dict(part.split("=", 1) for part in row["shape"].split(", "))
        gpu = {"b200": "b200", "a100-pcie": "a100-pcie-80gb"}[row["gpu"]]
        device = Device.of(load_accelerator(gpu), np.array([Precision.BF16]))
        groups, m, n, k = (int(shape[x]) for x in ("ng", "M", "N", "K"))
        sizes = {"fwd": (m, n, k), "bwd_grad_act": (m, k, n), "bwd_grad_w": (k, n, m)}[shape["stage"]]
        moved = None if shape["stage"] != "bwd_grad_w" else 8.0 if shape["main_grad_dtype"] == "fp32" else 4.0
        measured = 2.0 * groups * m * n * k / (float(row["fraction_of_peak"]) * float(row["peak_tflops"]) * 1e12)
        off.append(np.log(measured / group_s(device, *sizes, 1.0, float(groups), False, moved)[0][0]))
    assert len(off) == 120
    assert np.sqrt(np.mean(np.square(off))) <= 0.185
    assert abs(np.mean(off)) <= 0.085
