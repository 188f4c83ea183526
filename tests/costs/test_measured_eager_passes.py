"""Passes operation by operation, beside what Hugging Face's took alone in linkedin/Liger-Kernel's benchmark.

Norms: benchmark/rms_norm_speed/nvidia_h100_80gb_hbm3 and benchmark/data/a100_all_benchmark_data.csv (A100 80GB PCIe),
2,048 rows in bf16; rotary positions: benchmark/rope_speed (commit 61594612), 32 heads of queries and eight of keys, 256
channels each. Numbers only were taken. benchmarks/h200/kernels.json has one more norm.
"""

import numpy as np
import pytest

from planner.costs.kernels.device import Device, stream_s
from planner.costs.layer.layer_cost import NORM_LLAMA, ROTARY_LLAMA
from planner.hardware import load_accelerator
from planner.layouts import Precision

# Columns, or tokens: milliseconds forward and backward.
NORMS = {
    "h100-sxm": {
        4096: (0.182016, 0.467168), 8192: (0.327936, 0.845248), 16384: (0.615072, 1.590720),
        32768: (1.185792, 3.073136),
    },
    "a100-pcie-80gb": {
        4096: (0.282624, 0.752640), 8192: (0.523264, 1.376256), 16384: (0.992256, 2.624512),
        32768: (1.933312, 5.118976),
    },
}  # fmt: skip
ROTARY = {
    "h100-sxm": {4096: (0.635264, 0.790592), 8192: (1.231376, 1.528096), 16384: (2.415056, 2.984176)},
    "a100-sxm-80gb": {4096: (1.0, 1.2), 8192: (1.9, 2.3), 16384: (3.8, 4.5)},
}


def milliseconds(gpu: str, elements: float, passes: tuple[float, float, float]) -> list[float]:
    device = Device.of(load_accelerator(gpu), np.array([int(Precision.BF16)]))
    there, back, kernels = passes
    moved = ((there, kernels), (back, 1.5 * kernels))
    return [1e3 * float(stream_s(device, 2.0 * elements * times, n)) for times, n in moved]


@pytest.mark.parametrize(("gpu", "columns"), [(gpu, n) for gpu, sizes in NORMS.items() for n in sizes])
def test_eager_norms_are_within_11_percent(gpu, columns):
    assert milliseconds(gpu, 2048 * columns, NORM_LLAMA) == pytest.approx(NORMS[gpu][columns], rel=0.11)


@pytest.mark.parametrize(("gpu", "tokens"), [(gpu, n) for gpu, sizes in ROTARY.items() for n in sizes])
def test_turned_halves_are_within_12_percent(gpu, tokens):
    assert milliseconds(gpu, tokens * 40 * 256, ROTARY_LLAMA) == pytest.approx(ROTARY[gpu][tokens], rel=0.12)


def test_a_norm_on_h200():
    assert milliseconds("h200", 8192 * 4096, NORM_LLAMA)[0] == pytest.approx(0.45, rel=0.08)
