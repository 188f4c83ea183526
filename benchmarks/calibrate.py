"""Fit the efficiency figures of one GPU's profiles to measured runs: robust least squares, physical bounds.

    python -m pip install '.[calibrate]'
    python benchmarks/calibrate.py --cluster dgx-a100 measured_runs/*.csv

Prints each figure with its bounds, start, fit and standard error (from the Jacobian), then the scores by source.
Nothing depends on a row, a model or a source: the same figures serve every run of the cluster. Copy the figures
into hardware_profiles/ with the provenance line that the last line of the output gives.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from planner.hardware import Cluster, Framework, load_cluster, load_framework
from planner.validation import Predictions, Run, predict, read_runs, scores


@dataclass(frozen=True)
class Parameter:
    """A figure under calibration: `kind[,kind]:field[.key,key]`, its bounds in the profile's own (SI) unit."""

    path: str
    low: float
    high: float


A100 = [
    Parameter("efficiency:matrix_fraction.fp16,bf16", 0.5, 0.95),
    Parameter("efficiency:kernel_latency_s", 1e-6, 15e-6),
    Parameter("efficiency:memory_fraction", 0.4, 0.95),
    Parameter("efficiency:flash_forward.flash2", 0.15, 0.75),
    Parameter("efficiency:flash_backward.flash2", 0.15, 0.7),
    Parameter("node_link:fraction", 0.2, 0.9),
    Parameter("node_link:latency_s", 1e-6, 300e-6),
    Parameter("network:fraction", 0.1, 0.95),
    Parameter("efficiency:flash_forward.flash1", 0.1, 0.6),
    Parameter("efficiency:flash_backward.flash1", 0.1, 0.6),
    Parameter("efficiency:attention_matrix_fraction", 0.1, 0.8),
    Parameter("megatron-lm,megatron-deepspeed:host_layer_forward_s", 0.0, 3e-3),
    Parameter("megatron-lm,megatron-deepspeed:host_layer_backward_s", 0.0, 3e-3),
    Parameter("megatron-lm,megatron-deepspeed,fsdp:network_startup_s", 0.0, 295e-6),
    Parameter("megatron-deepspeed:tensor_slowdown", 1.0, 5.0),
    Parameter("megatron-deepspeed:sharded_nodes", 1.0, 40.0),
]
H100 = [
    Parameter("efficiency:matrix_fraction.fp16,bf16", 0.5, 0.95),
    Parameter("efficiency:matrix_fraction.fp8", 0.2, 0.9),
    Parameter("efficiency:flash_forward.flash2", 0.15, 0.75),
    Parameter("efficiency:flash_backward.flash2", 0.1, 0.7),
    Parameter("megatron-core:overlap_tensor", 0.0, 0.95),
    Parameter("fsdp,megatron-core:overlap_param_gather", 0.0, 1.0),
    Parameter("efficiency:rate_spread", 0.0, 0.08),
]
ROBUST = 0.05  # relative error from which on a row counts by its size rather than its square
SETS = {"dgx-a100": A100, "dgx-h100": H100}


def get(thing: object, field: str) -> float:
    name, _, keys = field.partition(".")
    value = getattr(thing, name)
    return float(value[keys.split(",")[0]] if keys else value)


def put(thing: object, field: str, value: float) -> object:
    name, _, keys = field.partition(".")
    if keys:
        table = dict(getattr(thing, name)) | dict.fromkeys(keys.split(","), value)
        return replace(thing, **{name: table})
    return replace(thing, **{name: value})


def applied(cluster: Cluster, parameters: list[Parameter], x: np.ndarray) -> Cluster:
    """The cluster with its links' and efficiency's figures replaced."""
    for p, value in zip(parameters, x, strict=True):
        kind, field = p.path.split(":")
        if kind == "efficiency":
            efficiency = put(cluster.accelerator.efficiency, field, value)
            cluster = replace(cluster, accelerator=replace(cluster.accelerator, efficiency=efficiency))
        elif kind in ("node_link", "network"):
            cluster = replace(cluster, **{kind: put(getattr(cluster, kind), field, value)})
    return cluster


def framework_with(framework: Framework, parameters: list[Parameter], x: np.ndarray) -> Framework:
    for p, value in zip(parameters, x, strict=True):
        kind, field = p.path.split(":")
        if framework.name in kind.split(","):
            framework = put(framework, field, value)
    return framework


def start_of(p: Parameter, cluster: Cluster) -> float:
    kind, field = p.path.split(":")
    if kind == "efficiency":
        return get(cluster.accelerator.efficiency, field)
    if kind in ("node_link", "network"):
        return get(getattr(cluster, kind), field)
    return get(load_framework(kind.split(",")[0]), field)


def show_scores(predictions: Predictions) -> None:
    by_source, overall = scores(predictions)
    for name, s in [*by_source.items(), ("overall", overall)]:
        cells = [
            f"{key} {s[key]:.3f}" if isinstance(s[key], float) else f"{key} {s[key]}"
            for key in ("mape", "bias", "max_error", "rank_correlation", "regret", "oom_accuracy")
        ]
        print(f"  {name:32s} {s['timed_rows']:5d}  " + "  ".join(cells))


@dataclass(frozen=True)
class Fit:
    """Figures fitted to runs: their start, value and standard error, and how to predict with them."""

    parameters: list[Parameter]
    start: np.ndarray
    value: np.ndarray
    error: np.ndarray
    timed_rows: int

    def predict(self, runs: list[Run]) -> Predictions:
        return predict_with(self.parameters, self.value, runs)


def predict_with(parameters: list[Parameter], x: np.ndarray, runs: list[Run]) -> Predictions:
    return predict(
        runs,
        lambda name: applied(load_cluster(name), parameters, x),
        lambda name: framework_with(load_framework(name), parameters, x),
    )


def fit(runs: list[Run], parameters: list[Parameter], max_evaluations: int) -> Fit:
    """Robust least squares over the runs of one GPU, every source counting alike."""
    base = load_cluster(runs[0]["cluster"])
    low = np.array([p.low for p in parameters])
    span = np.array([p.high for p in parameters]) - low
    start = np.clip((np.array([start_of(p, base) for p in parameters]) - low) / span, 0.02, 0.98)
    source = np.array([r["source"] for r in runs])
    size = {name: int(np.sum(source == name)) for name in set(source)}
    weight = np.array([size[s] ** -0.5 for s in source])  # each set counts the same
    measured = predict(runs).measured_s
    use = np.isfinite(measured)

    def residuals(unit: np.ndarray) -> np.ndarray:
        p = predict_with(parameters, low + unit * span, runs)
        error = np.log(p.step_time_s / measured)[use & np.isfinite(p.step_time_s)]
        # Soft absolute error of every row on one scale, then the weight of its set (scipy's own loss would come after
        # the weight, and forgive a row of a small set what it holds against one of a large set).
        robust = ROBUST * np.sqrt(2.0 * (np.sqrt(1.0 + (error / ROBUST) ** 2) - 1.0))
        return (weight[use & np.isfinite(p.step_time_s)]) * robust

    found = least_squares(residuals, start, bounds=(0, 1), diff_step=1e-3, max_nfev=max_evaluations)
    variance = 2 * found.cost / max(len(found.fun) - len(parameters), 1)
    error = np.sqrt(np.clip(np.diag(np.linalg.pinv(found.jac.T @ found.jac)) * variance, 0, None))
    return Fit(parameters, low + start * span, low + found.x * span, error * span, int(use.sum()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--cluster", choices=sorted(SETS), required=True, help="prefix of the rows' clusters")
    parser.add_argument("--hold-out", default="", help="leave out sources whose name contains this, then score them")
    parser.add_argument("--max-evaluations", type=int, default=20)
    args = parser.parse_args()
    parameters = SETS[args.cluster]
    runs = [r for f in args.files for r in read_runs(f) if r["cluster"].startswith(args.cluster)]
    held = [r for r in runs if args.hold_out and args.hold_out in r["source"]]
    runs = [r for r in runs if r not in held]
    found = fit(runs, parameters, args.max_evaluations)
    for p, start, value, error in zip(parameters, found.start, found.value, found.error, strict=True):
        print(f"{p.path:45s} start {start:<11.5g} fit {value:<11.5g} +- {error:<10.2g} in [{p.low:g}, {p.high:g}]")
    show_scores(found.predict(runs))
    if held:
        print("held out:")
        show_scores(found.predict(held))
    files = ", ".join(sorted({f.name for f in args.files}))
    print(f"calibration: benchmarks/calibrate.py --cluster {args.cluster} on {files}; {found.timed_rows} timed rows")


if __name__ == "__main__":
    main()
