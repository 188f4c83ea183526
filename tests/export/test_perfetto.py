"""The trace is one that viewers draw: slices nest, arrows pair, times are microseconds."""

import json
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings

from planner.exporters.perfetto import Counter, Span, trace_events, trace_json
from planner.schedules import Operation, Order, Pipeline, get_schedule
from planner.step.timeline.timeline import Timeline, durations, run
from tests.schedules.cases import named_pipelines


def timeline_of(name: str, pipe: Pipeline, transfer_s: float = 0.0) -> Timeline:
    order = get_schedule(name).order(pipe)
    return run(order, durations(order, 1.0, 0.9, 1.0 / 3.0, (0.3, 0.6, 0.7, 0.2)), transfer_s)


def tracks(events: list[dict]) -> dict[tuple[int, int], list[dict]]:
    out = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            out[event["pid"], event["tid"]].append(event)
    return {key: sorted(slices, key=lambda e: e["ts"]) for key, slices in out.items()}


def nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1e3)


def test_a_trace_in_full() -> None:
    order = get_schedule("1f1b").order(Pipeline(p=2, m=1))
    timeline = run(order, np.array([1.0, 2.0, 1.5, 2.5]) * 1e-6, 0.5e-6)
    events = trace_events(
        timeline,
        spans=[Span(rank=1, stream="network", name="reduce gradients", start_s=6e-6, end_s=7e-6)],
        counters=[Counter(name="activations", values=timeline.held(), base=np.array([0.0, 2.0]))],
    )
    drawn = [(e["name"], e["pid"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert drawn == [
        ("0F0", 0, 0, 0.0, 1.0),
        ("0B0", 0, 0, 6.0, 2.0),
        ("1F0", 1, 0, 1.5, 1.5),
        ("1B0", 1, 0, 3.0, 2.5),
        ("reduce gradients", 1, 1, 6.0, 1.0),
    ]
    arrows = [(e["ph"], e["name"], e["id"], e["pid"], e["ts"]) for e in events if e["ph"] in "sf"]
    assert arrows == [
        ("s", "gradients", 0, 1, 5.499),
        ("f", "gradients", 0, 0, 6.0),
        ("s", "activations", 1, 0, 0.999),
        ("f", "activations", 1, 1, 1.5),
    ]
    counts = [(e["pid"], e["ts"], e["args"]["value"]) for e in events if e["ph"] == "C"]
    assert counts == [(0, 0.0, 1.0), (1, 1.5, 3.0), (0, 8.0, 0.0), (1, 5.5, 2.0)]
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["name"].endswith("_name")}
    assert names == {
        (0, None): "rank 0", (0, 0): "compute", (0, 1): "network",
        (1, None): "rank 1", (1, 0): "compute", (1, 1): "network",
    }  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(named_pipelines())
def test_any_schedule_gives_a_valid_trace(case: tuple[str, Pipeline]) -> None:
    name, pipe = case
    timeline = timeline_of(name, pipe, transfer_s=0.1)
    trace = json.loads(trace_json(timeline, counters=[Counter(name="held", values=timeline.held())]))
    events = trace["traceEvents"]
    lanes = tracks(events)
    for (rank, _), slices in lanes.items():
        for before, after in pairwise(slices):
            assert nanoseconds(before["ts"]) + nanoseconds(before["dur"]) <= nanoseconds(after["ts"])
        assert sum(e["dur"] for e in slices) * 1e-6 == pytest.approx(timeline.busy_s[rank], rel=1e-6)
    ends = {kind: {e["id"]: e for e in events if e["ph"] == kind} for kind in "sf"}
    rank = timeline.order.rank
    sends = (timeline.waits >= 0) & (rank[timeline.waits] != rank[:, None])
    assert set(ends["s"]) == set(ends["f"]) == set(range(int(sends.sum())))
    for number, leaves in ends["s"].items():
        arrives = ends["f"][number]
        assert leaves["pid"] != arrives["pid"]
        assert leaves["ts"] < arrives["ts"]
        assert any(e["ts"] <= leaves["ts"] < e["ts"] + e["dur"] for e in lanes[leaves["pid"], 0])
        assert any(e["ts"] == arrives["ts"] for e in lanes[arrives["pid"], 0])
    assert max(e["args"]["value"] for e in events if e["ph"] == "C") == pytest.approx(timeline.peak().max())
    assert min(e["ts"] for e in events if e["ph"] != "M") == 0.0


def test_operations_that_run_as_one_are_one_slice() -> None:
    order = Order.of_rows([[Operation.parse(cell) for cell in ["0F0", "0F1&", "0B0", "0B1"]]])
    timeline = run(order, np.ones(4))
    drawn = [
        e for e in trace_events(timeline, counters=[Counter(name="held", values=timeline.held())]) if e["ph"] in "XC"
    ]
    assert [e["name"] for e in drawn if e["ph"] == "X"] == ["0F0", "0F1&0B0", "0B1"]
    assert [e["args"]["value"] for e in drawn if e["ph"] == "C"] == [1.0, 2.0, 1.0, 0.0]


def test_what_starts_before_the_schedule_starts_at_zero() -> None:
    gather = Span(rank=0, stream="network", name="gather parameters", start_s=-2.0, end_s=0.5)
    events = trace_events(timeline_of("1f1b", Pipeline(p=1, m=1)), spans=[gather])
    starts = {e["name"]: e["ts"] for e in events if e["ph"] == "X"}
    assert starts == {"0F0": 2e6, "0B0": 3e6, "gather parameters": 0.0}


def test_times_are_shown_in_milliseconds() -> None:
    assert json.loads(trace_json(timeline_of("zb-h1", Pipeline(p=2, m=4))))["displayTimeUnit"] == "ms"
