"""Traces and memory snapshots of runs: how devices spend a step and what memory holds, beside the prediction."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from planner.base.units import GIB
from planner.imports.memory_snapshot import read_snapshot
from planner.imports.trace import read_trace
from planner.imports.trace_kinds import rules
from planner.step.estimate import Estimate

LATE = 0.03  # a rank's time beside communication over the median's, from which on others wait for it
GROUPS = {
    "computing": (
        ("matmul", "attention", "scan", "pointwise", "recompute", "embedding_head"),
        "kernels are slower or more than planned: clocks and power, unfused norms, recomputation",
    ),
    "optimizer": (("optimizer",), "it is not the fused one, or its state is not sharded as planned"),
    "collectives": (
        ("tensor_comm", "expert_comm", "sharding_comm", "data_comm"),
        "less of them hides, or they are slower than planned: switches of overlap, the network, late ranks",
    ),
    "sends": (
        ("context_comm", "pipeline_comm", "bubble", "imbalance"),
        "stages wait for each other: uneven stages, the schedule, a late rank",
    ),
    "idle": (
        ("host", "host_comm"),
        "the GPU waits for the host: small kernels, synchronization, data; the profiler slows a host, too",
    ),
}
"""Parts of a traced step: the prediction's that are in each, which add up to the step; what a longer one may mean."""


def trace_record(paths: Sequence[Path], result: Estimate | None) -> dict[str, Any]:
    """The devices of traces, which are late, and their mean step beside the prediction. Raises as `read_trace`."""
    traces = [trace for path in paths for trace in read_trace(path)]
    if not traces:
        return {}
    steps = [_grouped(trace) for trace in traces]
    own = np.array([step["computing"] + step["optimizer"] + step["idle"] for step in steps])
    alike = len({(trace["rank"], trace["device"]) for trace in traces}) == len(traces)  # else not ranks of one run
    usual = float(np.median(own))  # 0 where nothing but communication was traced
    for trace, seconds in zip(traces, own, strict=True):
        trace["late"] = float(seconds / usual - 1.0) if alike and seconds > (1.0 + LATE) * usual > 0.0 else 0.0
    if result is None:
        return {"traces": traces}
    rows = {
        name: [float(np.mean([s[name] for s in steps])), float(sum(getattr(result.time, f"{p}_s")[0] for p in parts))]
        for name, (parts, _) in GROUPS.items()
    }
    off = max(rows, key=lambda name: abs(rows[name][0] - rows[name][1]))
    means = GROUPS[off][1] if rows[off][0] > rows[off][1] else "less than planned: is it that run, and whole steps?"
    return {"traces": traces, "step_parts_s": rows, "most_off": off, "may_mean": means}


def _grouped(trace: dict[str, Any]) -> dict[str, float]:
    """Seconds of a device's step by the names of `GROUPS`."""
    out = dict.fromkeys(GROUPS, 0.0) | {"idle": trace["idle_s"]}
    for name, (seconds, _, _) in trace["parts"].items():
        kernels = "optimizer" if name == "optimizer" else "computing"
        out[kernels if name in rules("operations") else "sends" if name.startswith("send") else "collectives"] += (
            seconds
        )
    return out


def snapshot_record(paths: Sequence[Path], result: Estimate | None) -> dict[str, Any]:
    """The peaks of snapshots by who asked for the memory, beside the prediction. Raises as `read_snapshot`.

    What the context and communicators take no snapshot sees.
    """
    snapshots = [snapshot for path in paths for snapshot in read_snapshot(path)]
    if result is not None:
        m = result.memory
        states, whole = m.parameters_bytes + m.optimizer_bytes, m.total_bytes - m.reserved_bytes
        predicted = {"states": float(states[0]) / GIB, "peak": float(whole[0]) / GIB}
        for one in snapshots:
            kinds = one["kinds_gib"]
            seen = {"states": kinds.get("parameters", 0.0) + kinds.get("optimizer", 0.0), "peak": one["peak_gib"]}
            one["memory_parts_gib"] = {name: [seen[name], predicted[name]] for name in seen}
    return {"snapshots": snapshots} if snapshots else {}
