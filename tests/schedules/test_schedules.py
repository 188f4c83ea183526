"""Schedules: literal orders, completeness, and closed forms equal to the timeline of the same operations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.base.errors import ScheduleError, UnknownNameError
from planner.schedules import SCHEDULES, Loads, Operation, Order, Pipeline, get_schedule
from planner.schedules.dependencies import dependencies
from planner.schedules.zero_bubble_fitted import fitted_order
from planner.schedules.zero_bubble_v import fitted_v_order
from planner.step.timeline.timeline import TimedOrder, durations, run, run_all
from tests.schedules.cases import named_pipelines, pipelines


def cells(name: str, **size: int) -> list[str]:
    return [" ".join(map(str, row)) for row in get_schedule(name).order(Pipeline(**size)).rows()]


LITERALS = [
    ("gpipe", {"p": 2, "m": 3}, ["0F0 0F1 0F2 0B2 0B1 0B0", "1F0 1F1 1F2 1B2 1B1 1B0"]),
    (
        "1f1b",
        {"p": 3, "m": 4},
        ["0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3", "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3", "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3"],
    ),
    ("interleaved", {"p": 2, "m": 2, "v": 2}, ["0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"]),
    (
        "breadth-first",
        {"p": 2, "m": 2, "v": 2},
        ["0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1"],
    ),
    ("layered", {"p": 1, "m": 2, "v": 2}, ["0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1"]),
    ("seq1f1b", {"p": 2, "m": 1, "k": 2}, ["0F0 0F0.1 0B0.1 0B0", "1F0 1F0.1 1B0.1 1B0"]),
    ("terapipe", {"p": 1, "m": 1, "k": 2}, ["0F0 0F0.1 0B0.1 0B0"]),
    ("zb-h1", {"p": 2, "m": 3}, ["0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"]),
    (
        "zb-h2",
        {"p": 2, "m": 3},
        ["0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2"],
    ),
    (
        "seq1f1b-zb",
        {"p": 2, "m": 2, "k": 2},
        [
            "0F0 0F0.1 0F1 0I0.1 0W0.1 0F1.1 0I0 0W0 0I1.1 0W1.1 0I1 0W1",
            "1F0 1F0.1 1I0.1 1F1 1I0 1W0.1 1F1.1 1I1.1 1W0 1I1 1W1.1 1W1",
        ],
    ),
    (
        "zb-v",
        {"p": 2, "m": 3, "v": 2},
        [
            "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2",
            "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2",
        ],
    ),
    (
        "v-min",
        {"p": 3, "m": 2, "v": 2},
        [
            "0F0 0F1 5F0 5I0 5W0 5F1 0I0 5I1 5W1 0W0 0I1 0W1",
            "1F0 1F1 4F0 4F1 4I0 4W0 1I0 1W0 4I1 4W1 1I1 1W1",
            "2F0 3F0 2F1 3F1 3I0 2I0 3W0 2W0 3I1 2I1 3W1 2W1",
        ],
    ),
    (
        "v-half",
        {"p": 3, "m": 2, "v": 2},
        [
            "0F0 0F1 5F0 5I0 5W0 5F1 5I1 5W1 0I0 0W0 0I1 0W1",
            "1F0 1F1 4F0 4F1 4I0 4W0 1I0 4I1 4W1 1W0 1I1 1W1",
            "2F0 3F0 2F1 3F1 3I0 3W0 2I0 2W0 3I1 3W1 2I1 2W1",
        ],
    ),
    (
        "dualpipe",
        {"p": 4, "m": 8},
        [
            "0F0 0F2 0F4 3F1 3I1 3W1 3F3 0F6& 3B3 3F5& 0B0 3B5 3F7& 0B2 3B7 0I4 0W4 0I6 0W6",
            "1F0 2F1 1F2 2F3 1F4 2B1 2F5& 1B0 1F6& 2B3 2F7& 1B2 2B5 1B4 2I7 1I6 2W7 1W6",
            "1F1 2F0 1F3 2F2 1F5 2B0 2F4& 1B1 1F7& 2B2 2F6& 1B3 2B4 1B5 2I6 1I7 2W6 1W7",
            "0F1 0F3 0F5 3F0 3I0 3W0 3F2 0F7& 3B2 3F4& 0B1 3B4 3F6& 0B3 3B6 0I5 0W5 0I7 0W7",
        ],
    ),
    (
        "dualpipev",
        {"p": 2, "m": 4, "v": 2},
        [
            "0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3& 3B1 3F2& 0B0 3B2 3F3& 0B1 3B3 0I2 0W2 0I3 0W3",
            "1F0 2F0 1F1 2F1 1F2 2B0 2F2& 1B0 1F3& 2B1 2F3& 1B1 2B2 1B2 2I3 1I3 2W3 1W3",
        ],
    ),
    (
        "chimera",
        {"p": 4, "m": 4},
        [
            "0F0 0F2 3F1 3B1 3F3 3B3 0B0 0B2",
            "1F0 2F1 1F2 2F3 2B1 1B0 2B3 1B2",
            "1F1 2F0 1F3 2F2 2B0 1B1 2B2 1B3",
            "0F1 0F3 3F0 3B0 3F2 3B2 0B1 0B3",
        ],
    ),
    (
        "bitpipe",
        {"p": 4, "m": 4, "v": 2},
        [
            "0F0 0F2 3F1 4F1 3F3 4F3 7F0 7B0 7F2 7B2 4B1 3B1 4B3 3B3 0B0 0B2",
            "1F0 2F1 1F2 2F3 5F1 6F0 5F3 6F2 6B0 5B1 6B2 5B3 2B1 1B0 2B3 1B2",
            "1F1 2F0 1F3 2F2 5F0 6F1 5F2 6F3 6B1 5B0 6B3 5B2 2B0 1B1 2B2 1B3",
            "0F1 0F3 3F0 4F0 3F2 4F2 7F1 7B1 7F3 7B3 4B0 3B0 4B2 3B2 0B1 0B3",
        ],
    ),
    (
        "hanayo",
        {"p": 2, "m": 2, "v": 4},
        [
            "0F0 0F1 3F0 4F0 3F1 4F1 7F0 7B0 7F1 7B1 4B0 3B0 4B1 3B1 0B0 0B1",
            "1F0 2F0 1F1 2F1 5F0 6F0 5F1 6F1 6B0 5B0 6B1 5B1 2B0 1B0 2B1 1B1",
        ],
    ),
    ("2bp", {"p": 2, "m": 3}, ["0F0 0F1 0I0 0F2 0I1 0W0 0I2 0W1 0W2", "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2"]),
    (
        "chronospipe",
        {"p": 2, "m": 3, "v": 2},
        ["0F0 2F0 0F1 2B0 2F1 0F2 2B1 2F2 0B0 2B2 0B1 0B2", "1F0 3F0 3B0 1F1 3F1 3B1 1F2 1B0 3F2 3B2 1B1 1B2"],
    ),
    (
        "1f1b-v",
        {"p": 2, "m": 3, "v": 2},
        ["0F0 3F0 3B0 0F1 3F1 3B1 0F2 0B0 3F2 3B2 0B1 0B2", "1F0 2F0 1F1 2F1 2B0 1B0 1F2 2F2 2B1 1B1 2B2 1B2"],
    ),
    ("zb-1p", {"p": 2, "m": 3}, ["0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"]),
    (
        "vocab-1",
        {"p": 2, "m": 4},
        [
            "0F0 0F1 0F2 0S0 0F3 0T0 0S1 0T1 0S2 0B0 0T2 0S3 0B1 0T3 0B2 0B3",
            "1F0 1F1 1S0 1F2 1T0 1S1 1B0 1T1 1S2 1F3 1B1 1T2 1S3 1B2 1T3 1B3",
        ],
    ),
    (
        "vocab-2",
        {"p": 2, "m": 4},
        [
            "0F0 0F1 0F2 0U0 0V0 0U1 0B0 0V1 0U2 0F3 0B1 0V2 0U3 0B2 0V3 0B3",
            "1F0 1F1 1U0 1B0 1V0 1U1 1F2 1B1 1V1 1U2 1F3 1B2 1V2 1U3 1B3 1V3",
        ],
    ),
    # Figure "Interlaced Pipeline" of the authors' README, without the input layers.
    (
        "interlaced",
        {"p": 4, "m": 8},
        [
            "0F0 0F1 0F2 0F3 0F4 0F5 0S0 0T0 0S1 0T1 0S2 0T2 0S3 0T3 0B0 0S4 "
            "0T4 0F6 0B1 0S5 0T5 0F7 0B2 0S6 0T6 0B3 0S7 0T7 0B4 0B5 0B6 0B7",
            "1F0 1F1 1F2 1F3 1F4 1S0 1T0 1S1 1T1 1S2 1T2 1B0 1S3 1T3 1B1 1F5 "
            "1S4 1T4 1B2 1F6 1S5 1T5 1B3 1F7 1S6 1T6 1B4 1S7 1T7 1B5 1B6 1B7",
            "2F0 2F1 2F2 2F3 2S0 2T0 2S1 2T1 2B0 2S2 2T2 2B1 2S3 2T3 2F4 2B2 "
            "2S4 2T4 2F5 2B3 2S5 2T5 2F6 2B4 2S6 2T6 2F7 2B5 2S7 2T7 2B6 2B7",
            "3F0 3F1 3F2 3S0 3T0 3B0 3S1 3T1 3B1 3S2 3T2 3B2 3F3 3S3 3T3 3B3 "
            "3F4 3S4 3T4 3B4 3F5 3S5 3T5 3B5 3F6 3S6 3T6 3B6 3F7 3S7 3T7 3B7",
        ],
    ),
    (
        "v-half-vocab-1",
        {"p": 2, "m": 4, "v": 2},
        [
            "0F0 3F0 0F1 0S0 3F1 0F2 0T0 0S1 3F2 0F3 3I0 0T1 0S2 3W0 3F3 0T2 "
            "0S3 0I0 3I1 3W1 0W0 0T3 0I1 3I2 3W2 0W1 0I2 3I3 3W3 0W2 0I3 0W3",
            "1F0 2F0 1F1 1S0 2F1 1F2 1T0 1S1 2F2 1F3 1T1 1S2 2F3 2I0 2W0 1I0 "
            "1T2 1S3 1W0 2I1 2W1 1T3 1I1 1W1 2I2 2W2 1I2 1W2 2I3 2W3 1I3 1W3",
        ],
    ),
    (
        "v-half-vocab-2",
        {"p": 2, "m": 4, "v": 2},
        [
            "0F0 3F0 0F1 0U0 3F1 0F2 3I0 0V0 0U1 3W0 3F2 0F3 0V1 0U2 0I0 3I1 "
            "3W1 3F3 0W0 0V2 0U3 0I1 3I2 3W2 0W1 0V3 0I2 3I3 3W3 0W2 0I3 0W3",
            "1F0 2F0 1F1 1U0 2F1 1F2 1V0 1U1 2F2 2I0 2W0 1I0 1V1 1U2 1W0 1F3 "
            "2F3 2I1 2W1 1I1 1V2 1U3 1W1 2I2 2W2 1V3 1I2 1W2 2I3 2W3 1I3 1W3",
        ],
    ),
    ("zb-2p", {"p": 2, "m": 3}, ["0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2"]),
]


@pytest.mark.parametrize(("name", "size", "rows"), LITERALS)
def test_orders_as_literals(name, size, rows):
    assert cells(name, **size) == rows


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@settings(max_examples=10, deadline=None)
@given(st.data(), st.integers(0, 2**32 - 1))
def test_closed_forms_broadcast_over_arrays(name, data, seed):
    schedule = get_schedule(name)
    pipes = data.draw(st.lists(pipelines(name), min_size=2, max_size=4))
    many = Pipeline(**{x: np.array([getattr(pipe, x) for pipe in pipes]) for x in "pmvk"})
    rng = np.random.default_rng(seed)
    passes = rng.uniform(0.3, 2.0, size=(3, len(pipes)))
    ranks = rng.integers(0, many.p)
    rows = range(len(pipes))
    one = [float(schedule.bubble_s(pipes[n], *passes[:, n])) for n in rows]
    assert schedule.bubble_s(many, *passes) == pytest.approx(one, rel=1e-12, abs=1e-12)
    one = [float(schedule.in_flight(pipes[n], int(ranks[n]), 0.4)) for n in rows]
    assert schedule.in_flight(many, ranks, 0.4) == pytest.approx(one, rel=1e-12)
    one = [float(schedule.weight_versions(pipes[n], int(ranks[n]))) for n in rows]
    assert schedule.weight_versions(many, ranks).tolist() == one
    assert schedule.messages(many).tolist() == [float(schedule.messages(pipe)) for pipe in pipes]
    assert all(not np.any(rule.broken) for rule in schedule.rules(many))


@pytest.mark.parametrize("name", sorted(n for n, s in SCHEDULES.items() if not s.steady))
@settings(max_examples=10, deadline=None)
@given(st.data(), st.floats(0.2, 3.0), st.floats(0.2, 3.0), st.floats(0.2, 3.0))
def test_ranks_that_need_not_wait_for_one_another_take_the_span(name, data, f, i, w):
    """Steps on end without a barrier follow one another after the longest of any rank's first to last operation."""
    pipe = data.draw(pipelines(name))
    orders = [get_schedule(name).steps_order(pipe, steps) for steps in (1, 4, 5)]
    one, four, five = (run(order, durations(order, f, i, w)) for order in orders)
    assert five.makespan_s - four.makespan_s == pytest.approx(one.span_s, rel=1e-9)


@pytest.mark.parametrize("name", sorted(n for n, s in SCHEDULES.items() if s.synchronous))
def test_a_synchronous_gradient_updates_the_weights_that_it_is_of(name):
    assert int(get_schedule(name).updates_behind(Pipeline(p=4, m=8), 2, 5)) == 0


@pytest.mark.parametrize("name", sorted(n for n, s in SCHEDULES.items() if s.steady))
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_updates_behind_are_those_of_the_order(name, data):
    pipe = data.draw(pipelines(name))
    schedule = get_schedule(name)
    assert not schedule.synchronous
    every = 1 if name in ("pipedream", "spectrain") else pipe.m
    versions = [set() for _ in range(pipe.p)]
    for r, row in enumerate(schedule.steps_order(pipe, 4).rows()):
        backwards, alive = 0, {}
        for op in row:
            if op.kind == "B":
                backwards += 1
                del alive[op.micro_batch]
                continue
            behind = int(schedule.updates_behind(pipe, r, op.micro_batch))
            version = op.micro_batch // every - behind
            # What is done by then may be newer than what 2BW uses, never older.
            assert version <= backwards // every
            if name != "2bw":
                assert version == backwards // every
            alive[op.micro_batch] = version
            versions[r].add(len(set(alive.values()) | {backwards // every}))
        stored = float(schedule.weight_versions(pipe, r))
        if name in ("pipedream", "2bw"):
            assert max(versions[r]) <= stored


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@settings(max_examples=40, deadline=None)
@given(st.data(), st.floats(0.2, 3.0), st.floats(0.2, 3.0), st.floats(0.2, 3.0), st.floats(0.0, 1.0))
def test_bubble_and_peak_equal_the_timeline(name, data, f, i, w, kept):
    pipe = data.draw(pipelines(name))
    schedule = get_schedule(name)
    parts = pipe.v * pipe.k
    # One step; of a pipeline that is never drained, as many as fill it, less all but the last.
    steps = -(-2 * pipe.p // pipe.m) if schedule.steady else 1
    order = schedule.steps_order(pipe, steps)
    timeline = run(order, durations(order, f / parts, i / parts, w / parts))
    step = timeline.span_s if schedule.unsynchronised_end else timeline.makespan_s
    work = pipe.m * (f + i + w)
    assert timeline.busy_s == pytest.approx(np.full(pipe.p, steps * work), rel=1e-9)
    if schedule.steady:
        longer = schedule.steps_order(pipe, steps + 1)
        step = run(longer, durations(longer, f / parts, i / parts, w / parts)).makespan_s - step
    assert step - work == pytest.approx(float(schedule.bubble_s(pipe, f, i, w)), rel=1e-9, abs=1e-9 * work)
    closed = schedule.makespan(pipe, Loads.equal(f, i, w))
    assert step == pytest.approx(float(closed), rel=1e-9)
    expected = [float(schedule.in_flight(pipe, r, kept)) for r in range(pipe.p)]
    assert timeline.peak(kept=kept) / parts == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ["v-half", "v-min", "1f1b-v", "chronospipe", "hanayo", "zb-1p", "zb-2p"])
@pytest.mark.parametrize("p", [2, 3, 4])
def test_generated_bubbles_hold_for_many_micro_batches(name, p):
    schedule = get_schedule(name)
    v = schedule.chunks or 2
    pipe = Pipeline(p=p, m=18 * p + 7, v=v)
    order = schedule.order(pipe)
    for f, i, w in np.random.default_rng(p).uniform(0.3, 2.0, size=(10, 3)):
        timeline = run(order, durations(order, f / v, i / v, w / v))
        step = timeline.span_s if schedule.unsynchronised_end else timeline.makespan_s
        bubble = float(schedule.bubble_s(pipe, f, i, w))
        assert step == pytest.approx(pipe.m * (f + i + w) + bubble, rel=1e-9)
    assert timeline.peak(kept=0.5) / v == pytest.approx(schedule.in_flight(pipe, np.arange(p), 0.5))


@settings(max_examples=200, deadline=None)
@given(named_pipelines())
def test_every_operation_is_there_once_and_prints_and_parses(case):
    name, pipe = case
    schedule = get_schedule(name)
    rows = schedule.order(pipe).rows()
    flat = [op for row in rows for op in row]
    stages = pipe.p * pipe.v
    kinds = "FIW" if schedule.splits_backward else "FB"
    seen = {op[:4] for op in flat}
    expected = {(s, k, m, j) for s in range(stages) for k in kinds for m in range(pipe.m) for j in range(pipe.k)}
    whole = {(s, "B", m, j) for s, k, m, j in expected if k == "I" and (s, "B", m, j) in seen}
    parts = {(s, k, m, j) for s, _, m, j in whole for k in "IW"}
    of_head = {(r, k, m, 0) for r in range(pipe.p) for k in getattr(schedule, "parts", "") for m in range(pipe.m)}
    assert bool(of_head) == bool(schedule.barriers)
    assert seen == (expected | whole | of_head) - parts
    assert len(flat) == len(seen)
    assert all(Operation.parse(str(op)) == op for op in flat)
    assert Order.of_rows(rows).rows() == rows


@pytest.mark.parametrize(("name", "limit"), [("zb-1p", 1), ("zb-2p", 2), ("zb-v", 1)])
@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(0, 2**32 - 1))
def test_fitted_orders_are_complete_and_keep_their_memory(name, limit, data, seed):
    pipe = data.draw(pipelines(name))
    schedule, rng = get_schedule(name), np.random.default_rng(seed)
    seconds, transfer, kept = tuple(rng.uniform(0.3, 2.0, size=3)), float(rng.uniform(0.0, 0.3)), float(rng.uniform())
    order = schedule.fitted(pipe, seconds, transfer, kept)
    assert len(order) == len(schedule.order(pipe))
    timeline = run(order, durations(order, *seconds), transfer)
    assert np.array_equal(schedule.rank_of(pipe, order.stage, order.micro_batch), order.rank)
    assert timeline.peak(kept=kept).max() / schedule.chunks <= limit * pipe.p + 1e-9


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.integers(1, 9), st.sampled_from([1, 2]), st.integers(0, 2**32 - 1))
def test_orders_fitted_to_ranks_of_their_own_pace_are_complete(p, m, depth, seed):
    """Each rank has each pass of all micro-batches, none waits for itself, and no rank holds more than it may."""
    rng = np.random.default_rng(seed)
    seconds, transfer, kept = rng.uniform(0.3, 2.0, size=(3, p)), float(rng.uniform(0.0, 0.5)), float(rng.uniform())
    order = get_schedule(f"zb-{depth}p").fitted(Pipeline(p=p, m=m), tuple(seconds), transfer, kept)
    assert (
        np.bincount(order.rank * 8 + order.kind, minlength=8 * p).reshape(p, 8)[:, [0, 2, 3]].tolist() == [[m] * 3] * p
    )
    timeline = run(order, durations(order, *seconds), transfer)
    assert timeline.peak(kept=kept).max() <= depth * p + 1e-9


@pytest.mark.parametrize("name", ["zb-1p", "zb-2p", "zb-v"])
def test_a_fitted_order_does_not_depend_on_the_unit_of_time(name):
    """Of seconds with few binary digits, so that every sum is exact in either unit."""
    seconds, pipe, unit = np.array([2.0, 1.0, 1.5, 0.25]), Pipeline(p=4, m=6, v=get_schedule(name).chunks), 2.0**-60
    order, again = (get_schedule(name).fitted(pipe, tuple(x[:3]), x[3]) for x in (seconds, seconds * unit))
    assert again.rows() == order.rows()


@pytest.mark.parametrize(
    ("p", "m", "seconds", "limit"),
    [
        (3, 5, (5.0, 0.5, 1.0), 4.5),
        (4, 8, (5.0, 1.0, 3.0), 4.0),
        (5, 9, (3.0, 0.5, 1.0), 7.5),
        (6, 12, (2.0, 1.0, 1.0), 6.0),
    ],
)
def test_no_rank_of_a_fitted_order_gets_further_ahead_of_the_next(p, m, seconds, limit):
    """Before each input gradient a rank has done so many forwards more than the next, and never more than before."""
    order = fitted_order(p, m, seconds, 0.001, limit=limit)
    kinds = [np.array([op.kind for op in row]) for row in order.rows()]
    done = np.array([np.cumsum(row == "F")[row == "I"] for row in kinds])
    assert np.all(np.diff(done[:-1] - done[1:], axis=1) <= 0)


@pytest.mark.parametrize("name", ["zb-1p", "zb-2p"])
def test_a_fitted_order_idles_no_longer_than_it_must(name):
    """F 4 s, I 1 s, W 4 s, three ranks and micro-batches: rank 0's first gradient is there at 3 F + 2 I = 14 s.

    No W can come before it, so rank 0 can but do its three F, 12 s: of its 29 s it idles the 2 s that it must.
    """
    pipe = Pipeline(p=3, m=3)
    order = get_schedule(name).fitted(pipe, (4.0, 1.0, 4.0))
    timeline = run(order, durations(order, 4.0, 1.0, 4.0))
    ends = timeline.end_s[order.start[1:] - 1] - timeline.start_s[order.start[:-1]]
    assert ends.max() == pytest.approx(29.0)


def test_a_fitted_v_takes_no_longer_than_its_last_rank_must():
    """Stages of F 2 s, I 1 s, W 2 s on three ranks, two a rank: the last begins at 4 s and works on four micro-batches
    for 40 s. Weight gradients before forward passes leave room for that, in none of the lists without them."""
    order = fitted_v_order(3, 4, (2.0, 1.0, 2.0), limit=6.0)
    assert run(order, durations(order, 2.0, 1.0, 2.0)).end_s.max() == 44.0


def test_a_weight_gradient_may_overrun_a_wait_where_idling_costs_more():
    """Rank 1's first gradient is there at 9 s, before which it does two F from 1 s on: 4 s idle, and 18 s of work.

    So it takes 22 s at least; and no more where its W of 5 s fills the wait of 4 s for the second gradient, at 15 s.
    """
    seconds = np.array([[1.0, 2.0, 5.0], [1.0, 2.0, 1.0], [2.0, 5.0, 4.0]])
    order = get_schedule("zb-1p").fitted(Pipeline(p=3, m=2), tuple(seconds))
    timeline = run(order, durations(order, *seconds))
    lasted = timeline.end_s[order.start[1:] - 1] - timeline.start_s[order.start[:-1]]
    assert (lasted[1], lasted.max()) == (22.0, 22.0)


@settings(max_examples=150, deadline=None)
@given(named_pipelines())
def test_operations_lie_where_rank_of_says(case):
    name, pipe = case
    order = get_schedule(name).order(pipe)
    assert np.array_equal(get_schedule(name).rank_of(pipe, order.stage, order.micro_batch), order.rank)


@settings(max_examples=150, deadline=None)
@given(named_pipelines(), st.integers(0, 2**32 - 1))
def test_no_schedule_beats_the_busiest_rank(case, seed):
    name, pipe = case
    order = get_schedule(name).order(pipe)
    f, i, w = np.random.default_rng(seed).uniform(0.3, 2.0, size=(3, pipe.p * pipe.v))
    timeline = run(order, durations(order, f, i, w))
    step = timeline.span_s if get_schedule(name).unsynchronised_end else timeline.makespan_s
    assert step >= timeline.busy_s.max() * (1 - 1e-12)


def broken(name: str, **size: int) -> list[str]:
    return [r.text for r in get_schedule(name).rules(Pipeline(**size)) if np.any(r.broken)]


def test_illegal_choices_say_the_rule():
    assert broken("interleaved", p=4, m=6, v=2) == ["interleaved needs a number of micro-batches divisible by pp"]
    assert broken("1f1b", p=4, m=6, v=2) == ["1f1b has one virtual stage per rank"]
    assert broken("seq1f1b", p=4, m=6) == ["seq1f1b needs at least 2 sequence slices"]
    assert broken("zb-v", p=4, m=6, v=3) == [
        "zb-v has exactly 2 virtual stages per rank",
        "zb-v needs at least 2 pp - 1 micro-batches",
    ]
    assert broken("zb-h1", p=4, m=2) == ["zb-h1 needs at least pp micro-batches"]
    assert broken("zb-h2", p=4, m=6) == ["zb-h2 needs at least 2 pp - 1 micro-batches"]
    assert broken("seq1f1b-zb", p=4, m=2, k=2) == ["seq1f1b-zb needs at least pp - 1 + k slices of all micro-batches"]
    assert broken("chimera", p=3, m=7) == [
        "chimera needs an even pp",
        "chimera needs a number of micro-batches divisible by pp",
    ]
    assert broken("bitpipe", p=4, m=6, v=2) == ["bitpipe needs a number of micro-batches divisible by pp"]
    assert broken("dualpipe", p=4, m=7) == ["dualpipe needs an even number of micro-batches, at least 2 pp"]
    assert broken("dualpipev", p=4, m=7, v=2) == ["dualpipev needs at least 2 pp micro-batches"]
    assert broken("hanayo", p=4, m=7, v=3) == ["hanayo needs an even number of virtual stages"]
    assert broken("2bw", p=4, m=3) == ["2bw needs at least pp micro-batches"]
    assert broken("breadth-first", p=1, m=3, v=2) == ["breadth-first needs at least 2 pipeline ranks"]
    assert broken("chronospipe", p=1, m=3, v=2) == ["chronospipe needs at least 2 pipeline ranks"]
    with pytest.raises(UnknownNameError, match="interleaved"):
        get_schedule("interleave")
    assert get_schedule("pipedream-flush") is SCHEDULES["1f1b"]


def order_of(text: str) -> Order:
    return Order.of_rows([[Operation.parse(cell) for cell in row.split()] for row in text.split(";")])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("0F0 0F0 0B0; 1F0 1B0", "stage 0, micro-batch 0 has more than one F"),
        ("0F0 0B0; 1F0", "stage 1, micro-batch 0 has no B or I"),
        ("0F0 0I0; 1F0 1B0", "stage 0, micro-batch 0 has I but no W"),
        ("0F0 0B0 0W0; 1F0 1B0", "stage 0, micro-batch 0 has W but no I"),
        ("0F0 0F900000000 0B0 0B900000000", "micro-batch 899999999 has no operation"),
    ],
)
def test_incomplete_orders_say_what_is_missing(rows, message):
    with pytest.raises(ScheduleError, match=message):
        dependencies(order_of(rows))


@settings(max_examples=60, deadline=None)
@given(named_pipelines(["vocab-1", "vocab-2", "interlaced"]), st.floats(0.0, 3.0), st.floats(0.0, 3.0))
def test_a_shared_head_adds_its_passes_alone_where_backwards_take_twice_the_forwards(case, s, t):
    """Yeung et al. 2024, figure 10: no bubble but 1F1B's, (p - 1)(F + B), and one micro-batch more for each barrier.

    A last barrier may leave a rank a forward's time, or let it fill the drain with its share of the head. Ranks that
    do the head at once have 1F1B's bubble to the second, whatever the passes (F <= B), and hold half as much again.
    """
    name, pipe = case
    order = get_schedule(name).order(pipe)
    timeline = run(order, durations(order, 1.0, 1.0, 1.0, (s, t, s + t / 2, t / 2)))
    beyond = timeline.makespan_s - pipe.m * (3.0 + s + t) - (pipe.p - 1) * 3.0
    assert -(s + t) - 1e-9 <= beyond <= 1.0 + s + 1e-9
    if name == "interlaced":
        assert beyond == pytest.approx(0.0, abs=1e-9)
    more = {"vocab-1": 2, "vocab-2": 1, "interlaced": pipe.p // 2}[name]
    assert timeline.peak().tolist() == [min(pipe.p - r + more, pipe.m) for r in range(pipe.p)]


@pytest.mark.parametrize(("name", "barriers"), [("v-half-vocab-1", 2), ("v-half-vocab-2", 1)])
@pytest.mark.parametrize("p", [2, 4, 5, 8])
def test_a_shared_head_in_v_half_keeps_a_micro_batch_more_for_each_barrier(name, barriers, p):
    """As in 1F1B, on every rank alike."""
    pipe = Pipeline(p=p, m=4 * p, v=2)
    held = [get_schedule(x).in_flight(pipe, np.arange(p)) for x in (name, "v-half")]
    assert held[0].tolist() == (held[1] + barriers).tolist()
    order = get_schedule(name).order(pipe)
    assert (run(order, durations(order, 1.0, 1.0, 1.0, (0.1, 0.2, 0.2, 0.1))).peak() / 2).tolist() == held[0].tolist()


def test_an_incomplete_head_says_what_is_missing():
    whole = get_schedule("vocab-1").order(Pipeline(p=2, m=3)).rows()
    without = [[op for op in row if (op.kind, op.micro_batch) != ("T", 1)] for row in whole[:1]]
    with pytest.raises(ScheduleError, match="micro-batch 1 has no T or V on rank 0"):
        dependencies(Order.of_rows([*without, whole[1]]))


def test_a_deadlock_is_reported_with_its_circle():
    order = order_of("0F0 0B0 0F1 0B1; 1F0 1F1 1B0 1B1")
    with pytest.raises(ScheduleError, match=r"rank 0 at 0B0 waits for 1B0 of rank 1; rank 1 at 1F1 waits for 0F1"):
        run(order, durations(order, 1.0, 1.0, 1.0))
    backwards = order_of("0B0 0F0")
    with pytest.raises(ScheduleError, match="rank 0 at 0B0 waits for 0F0 of rank 0"):
        run(backwards, durations(backwards, 1.0, 1.0, 1.0))
    with pytest.raises(ScheduleError, match="'0X0' is no operation"):
        Operation.parse("0X0")


def test_of_several_orders_the_one_that_deadlocks_says_the_circle_that_it_says_alone():
    fine = get_schedule("1f1b").order(Pipeline(p=3, m=2))
    stuck = order_of("0F0 0B0 0F1 0B1; 1F0 1F1 1B0 1B1")
    timed = [TimedOrder(order=o, duration_s=durations(o, 1.0, 1.0, 1.0), release_s=None) for o in (fine, fine, stuck)]
    with pytest.raises(ScheduleError, match=r"rank 0 at 0B0 waits for 1B0 of rank 1; rank 1 at 1F1 waits for 0F1"):
        run_all(timed)
