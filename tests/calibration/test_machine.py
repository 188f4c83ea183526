"""The machine's profile: figures recovered from layers timed by the cost models themselves, files that load."""

from __future__ import annotations

import numpy as np
import pytest

from planner.base.errors import OutputError
from planner.calibration.machine import FIGURES, MachineFit, TimedLayer, _device, fit_machine, write_profile
from planner.costs.layer.layer_cost import layer_cost
from planner.hardware import load_accelerator, load_cluster, load_framework
from planner.layouts import Attention, Layouts, Precision
from planner.models import from_shape
from tests.costs.toy import case

COPY_RATE = 2e10
TRUE = {
    "matrix_rate": 9e10, "memory_fraction": 0.4, "kernel_latency_s": 2e-5, "flash_forward": 0.1, "flash_backward": 0.3,
    "depth_half": 40.0,
}  # fmt: skip


def timed() -> list[TimedLayer]:
    out = []
    for hidden in (64, 128, 256):
        for seq_len, b in ((64, 1), (128, 4), (256, 2)):
            model = from_shape(family="gpt", layers=2, hidden=hidden, ffn=4 * hidden, heads=4, kv_heads=4, vocab=256,
                               seq_len=seq_len)  # fmt: skip
            layout = Layouts.of(global_batch=b, micro_batch=b, zero=0, precision=Precision.FP32,
                                attention=Attention.FLASH2, fused_norm=False)  # fmt: skip
            cost = layer_cost(case(_device(TRUE, load_accelerator("cpu-generic"), layout, COPY_RATE), model, layout))
            out.append(TimedLayer(model=model, b=b, forward_s=float(np.ravel(cost.forward_s)[0]),
                                  backward_s=float(np.ravel(cost.backward_s)[0])))  # fmt: skip
    return out


def test_the_fit_reproduces_layers_that_follow_the_cost_models():
    fit = fit_machine(timed(), COPY_RATE)
    assert set(fit.figures) == set(FIGURES)
    assert fit.measured == 18
    assert fit.median_error < 0.05


def test_the_files_load_as_a_cluster(tmp_path):
    fit = MachineFit(figures=TRUE, copy_rate=COPY_RATE, median_error=0.1, worst_error=0.2, measured=18)
    path = write_profile(tmp_path / "mine", fit, {"all_reduce": (8e-6, 5e-4), "send": (1e-6, 1e-3)}, "here, today")
    cluster = load_cluster(str(path))
    assert cluster.accelerator.peak_flops == {"fp32": pytest.approx(9e10)}
    assert cluster.accelerator.memory_bandwidth_bytes_per_s == pytest.approx(2e10)
    assert cluster.node_link.bandwidth_bytes_per_s == pytest.approx(2e9)
    assert cluster.node_link.send_fraction == pytest.approx(0.5)
    assert load_framework(cluster.framework).overlap_tensor == 0.0
    assert "median error of the fit 10%" in cluster.accelerator.sources["peak_tflops.fp32"]


def test_a_folder_that_cant_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    fit = MachineFit(figures=TRUE, copy_rate=COPY_RATE, median_error=0.1, worst_error=0.2, measured=18)
    with pytest.raises(OutputError, match="can't be made"):
        write_profile(tmp_path / "file" / "mine", fit, {}, "here")
