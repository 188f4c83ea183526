"""A simulated step drawn: on every stream slices follow one another, and memory peaks where the simulation says."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from planner.base.units import GIB
from planner.exporters.perfetto import host_spans, step_trace
from planner.hardware import load_cluster, load_framework
from planner.layouts import Layouts
from planner.models import load_model
from planner.setup import Setup
from planner.step.timeline.step import simulate
from tests.export.test_perfetto import nanoseconds, tracks

LAYOUT = {"tp": 8, "micro_batch": 1, "sequence_parallel": True}
LAYOUTS = {
    "1f1b": {"schedule": "1f1b", "dp": 4, "pp": 4, "global_batch": 64, "zero": 1},
    "zb-v": {"schedule": "zb-v", "dp": 2, "pp": 4, "virtual_stages": 2, "global_batch": 64, "zero": 1},
    "breadth-first": {
        "schedule": "breadth-first",
        "dp": 8,
        "pp": 2,
        "virtual_stages": 4,
        "global_batch": 64,
        "zero": 3,
    },
    "no data parallelism": {"schedule": "interleaved", "dp": 1, "pp": 4, "virtual_stages": 2, "global_batch": 8},
    "offload": {"schedule": "1f1b", "dp": 2, "pp": 4, "global_batch": 16, "offload_layers": 4},
    "no pipeline": {"schedule": "1f1b", "dp": 8, "pp": 1, "global_batch": 64, "zero": 3},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_trace_is_the_step(tmp_path: Path, name: str) -> None:
    cluster = load_cluster("dgx-a100-80gb")
    layouts = Layouts.of(**LAYOUT, **LAYOUTS[name])
    step = simulate(Setup(load_model("llama-13b"), cluster, load_framework(cluster.framework)), layouts)

    (tmp_path / "trace.json").write_text(step_trace(step))

    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for slices in tracks(events).values():
        for before, after in pairwise(slices):
            assert nanoseconds(before["ts"]) + nanoseconds(before["dur"]) <= nanoseconds(after["ts"])
    peaks = [max(e["args"]["value"] for e in events if e["ph"] == "C" and e["pid"] == r) for r in range(step.pipe.p)]
    assert peaks == pytest.approx(step.peak_bytes / GIB)
    slices = [e for e in events if e["ph"] == "X"]
    # ZeRO-3 gathers and scatters within the passes; a chunk at a time its last reduction comes after them.
    named = {e["name"] for e in slices}
    assert ("reduce gradients" in named) == (layouts.dp[0] > 1 and (layouts.zero[0] < 3 or name == "breadth-first"))
    assert "update" in named
    if not step.schedule.unsynchronised_end:
        assert max(e["ts"] + e["dur"] for e in slices) * 1e-6 == pytest.approx(step.step_time_s)


def test_activations_pass_the_host_link_in_lanes_of_their_own() -> None:
    cluster = load_cluster("dgx-a100-80gb")
    layouts = Layouts.of(**LAYOUT, **LAYOUTS["offload"])
    step = simulate(Setup(load_model("llama-13b"), cluster, load_framework(cluster.framework)), layouts)
    spans = host_spans(step)
    order, timeline = step.timeline.order, step.timeline
    # One each way for every pass; it lies within its own pass and lasts as long as four layers' activations take.
    assert len(spans) == len(order)
    assert {span.stream for span in spans} == {"to the host", "from the host"}
    for i, span in enumerate(spans):
        assert span.end_s - span.start_s == pytest.approx(float(step.moved_s[order.stage[i]]))
        assert timeline.start_s[i] <= span.start_s + 1e-12
        assert span.end_s <= timeline.end_s[i] + 1e-12
