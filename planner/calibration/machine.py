"""A profile of the machine at hand: the figures of the cost models fitted to timed layers, written as profile files.

The cost models are those of GPUs with fused kernels; numpy on a processor runs other passes over memory, so the fit
says by its errors how far they carry. What isn't measured is marked as assumed in the files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from planner.base.files import make_folder, read_toml, shipped_folder, write_text
from planner.calibration.profile_text import profile_text
from planner.costs.case import Case
from planner.costs.kernels.device import Device
from planner.costs.layer.layer_cost import layer_cost
from planner.hardware import Accelerator, load_cluster, load_framework
from planner.layouts import Attention, Layouts, Precision
from planner.models import Transformer, stack
from planner.setup import Setup

# Figure: start, lowest, highest. The rate in FLOP/s.
FIGURES: dict[str, tuple[float, float, float]] = {
    "matrix_rate": (5e10, 1e8, 1e13),
    "memory_fraction": (0.7, 0.05, 1.0),
    "kernel_latency_s": (1e-5, 1e-7, 1e-2),
    "flash_forward": (0.2, 1e-3, 1.0),
    "flash_backward": (0.2, 1e-3, 1.0),
    "depth_half": (20.0, 1.0, 1000.0),
}


@dataclass(frozen=True, kw_only=True)
class TimedLayer:
    """A layer's measured seconds for one micro-batch of b sequences, in fp32 on one rank."""

    model: Transformer
    b: int
    forward_s: float
    backward_s: float


@dataclass(frozen=True, kw_only=True)
class MachineFit:
    """Fitted figures, and relative errors over all timed passes."""

    figures: Mapping[str, float]
    copy_rate: float
    median_error: float
    worst_error: float
    measured: int


def _device(figures: Mapping[str, float], base: Accelerator, layouts: Layouts, copy_rate: float) -> Device:
    kernels = ("flash1", "flash2", "flash3")
    efficiency = replace(
        base.efficiency,
        matrix_fraction={**base.efficiency.matrix_fraction, "fp32": 1.0},
        memory_fraction=figures["memory_fraction"],
        kernel_latency_s=figures["kernel_latency_s"],
        flash_forward=dict.fromkeys(kernels, figures["flash_forward"]),
        flash_backward=dict.fromkeys(kernels, figures["flash_backward"]),
        depth_half=figures["depth_half"],
        tile_rows=TILE,
        tile_columns=TILE,
    )
    accelerator = replace(
        base,
        efficiency=efficiency,
        peak_flops={**base.peak_flops, "fp32": figures["matrix_rate"]},
        memory_bandwidth_bytes_per_s=copy_rate,
        num_compute_units=1,
    )
    return Device.of(accelerator, layouts.precision)


TILE = 16  # an output tile of a processor's matrix kernel


def fit_machine(layers: Sequence[TimedLayer], copy_rate: float) -> MachineFit:
    """The figures with the least mean logarithm of predicted over measured, by pattern search within bounds.

    Each figure in turn is tried larger and smaller by a factor; when none helps, the factor shrinks.
    copy_rate: measured bytes per second of a large copy, read and written.
    """
    models = stack([x.model for x in layers], np.arange(len(layers)))
    b = np.array([x.b for x in layers])
    layouts = Layouts.of(
        global_batch=b, micro_batch=b, zero=0, precision=Precision.FP32, attention=Attention.FLASH2, fused_norm=False
    )
    measured = np.array([[x.forward_s for x in layers], [x.backward_s for x in layers]])
    cluster = load_cluster("workstation-cpu")
    base = cluster.accelerator
    case = Case.of(Setup(models, cluster, load_framework(cluster.framework)), layouts)

    def errors(log_figures: Any) -> Any:
        figures = dict(zip(FIGURES, np.exp(log_figures).tolist(), strict=True))
        cost = layer_cost(replace(case, device=_device(figures, base, layouts, copy_rate)))
        return np.log(np.stack([cost.forward_s, cost.backward_s]) / measured)

    start, low, high = np.log(np.array(list(FIGURES.values()))).T
    best, at = np.abs(errors(start)).mean(), start
    factor = 1.0
    while factor > 0.005:
        improved = False
        for i in range(len(start)):
            for sign in (1.0, -1.0):
                tried = at.copy()
                tried[i] = np.clip(tried[i] + sign * factor, low[i], high[i])
                if (value := np.abs(errors(tried)).mean()) < best - 1e-9:
                    best, at, improved = value, tried, True
        factor = factor if improved else factor / 2
    off = np.abs(np.expm1(errors(at)))
    return MachineFit(
        figures=dict(zip(FIGURES, np.exp(at).tolist(), strict=True)),
        copy_rate=copy_rate,
        median_error=float(np.median(off)),
        worst_error=float(off.max()),
        measured=off.size,
    )


def write_profile(folder: Path, fit: MachineFit, messages: Mapping[str, Sequence[float]], about: str) -> Path:
    """Write cluster, accelerator, efficiency, link and framework; returns the cluster's path, for `--cluster`.

    messages: seconds fixed and per megabyte of `all_reduce` between two ranks and of `send`; without them the link is
    assumed. about: where and when it was measured.

    Raises OutputError if the folder can't be written.
    """
    make_folder(folder)
    measured = (
        f"planner calibrate: {about}; median error of the fit {fit.median_error:.0%}, worst {fit.worst_error:.0%}"
    )
    sources = {
        "calibration": measured,
        "assumed": "assumed: not measured by planner calibrate",
        "machine": "asked of the operating system; memory shared evenly by the processors, a rank on each",
        "shipped": "as in the shipped profile of Megatron Core",
        "trainer": "the mini-trainer: fp32, nothing overlapped",
    }
    for name, (figures, tables) in _files(fit, messages).items():
        write_text(folder / f"{name}.toml", _toml(f"{folder.name}-{name}", figures, tables, sources))
    return folder / "cluster.toml"


Table = dict[str, Any]


def _files(fit: MachineFit, messages: Mapping[str, Sequence[float]]) -> dict[str, tuple[Table, dict[str, Table]]]:
    """Each file's figures, as (value, source), and its tables of figures."""
    x = fit.figures
    fixed_s, per_mb_s = messages.get("all_reduce", (4e-6, 2e-4))
    send_per_mb_s = messages.get("send", (0.0, per_mb_s))[1]
    link = "calibration" if messages else "assumed"
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 if hasattr(os, "sysconf") else 8.0
    ranks = os.cpu_count() or 1
    return {
        "efficiency": (
            {
                "tile_rows": (TILE, "assumed"), "tile_columns": (TILE, "assumed"),
                "depth_half": (x["depth_half"], "calibration"),
                "kernel_latency_us": (x["kernel_latency_s"] * 1e6, "calibration"),
                "memory_fraction": (x["memory_fraction"], "calibration"), "attention_matrix_fraction": (0.3, "assumed"),
            },
            {
                "matrix_fraction": {"fp32": (1.0, "calibration")},
                "flash_forward": {f"flash{i}": (x["flash_forward"], "calibration") for i in (1, 2, 3)},
                "flash_backward": {f"flash{i}": (x["flash_backward"], "calibration") for i in (1, 2, 3)},
            },
        ),
        "accelerator": (
            {
                "efficiency": "./efficiency.toml", "num_compute_units": (1, "assumed"),
                "memory_gib": (memory_gib / ranks, "machine"),
                "memory_bandwidth_gbyte_per_s": (fit.copy_rate / 1e9, "calibration"), "power_w": (50, "assumed"),
            },
            {"peak_tflops": {"fp32": (x["matrix_rate"] / 1e12, "calibration")}},
        ),
        "link": (
            {
                "kind": "memory", "bandwidth_gbyte_per_s": (1e-3 / per_mb_s, link),
                "latency_us": (fixed_s / 2 * 1e6, link), "fraction": (1.0, link),
                "send_fraction": (min(per_mb_s / send_per_mb_s, 1.0), link),
            },
            {},
        ),
        "framework": (
            _framework(),
            {},
        ),
        "cluster": (
            {
                "accelerator": "./accelerator.toml", "node_link": "./link.toml", "network": "ethernet-10g",
                "host_link": "pcie-4", "framework": "./framework.toml", "gpus_per_node": (ranks, "machine"),
                "nics_per_node": (1, "assumed"), "max_gpus": (ranks, "machine"),
                "storage_bandwidth_gbyte_per_s": (0.5, "assumed"),
            },
            {},
        ),
    }  # fmt: skip


def _framework() -> Table:
    """The mini-trainer as a framework: fp32, nothing hidden, no launches; the rest as Megatron Core's profile."""
    shipped = read_toml(shipped_folder("hardware_profiles") / "frameworks" / "megatron-core.toml")
    out: Table = {}
    for name, given in shipped.items():
        if not isinstance(given, dict) or "value" not in given:
            continue
        if name.startswith(("overlap_", "host_")) or name == "fragmentation":
            out[name] = (0.0, "trainer")
        elif name.endswith("_bytes"):
            out[name] = (4.0, "trainer")
        else:
            out[name] = (0.1, "trainer") if name == "reserved_gib" else (given["value"], "shipped")
    return {"layer_split": "even"} | out


def _toml(name: str, figures: dict[str, Any], tables: dict[str, dict[str, Any]], sources: dict[str, str]) -> str:
    """A profile file's text; a figure is given as (value, source)."""

    def told(rows: dict[str, Any]) -> dict[str, Any]:
        return {k: {"value": v[0], "source": v[1]} if isinstance(v, tuple) else v for k, v in rows.items()}

    return profile_text({"name": name, **told(figures), **{k: told(v) for k, v in tables.items()}, "sources": sources})
