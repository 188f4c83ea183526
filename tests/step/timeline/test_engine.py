"""The engine against a naive timeline, compiled against interpreted, and its statement of fused operations."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.base.errors import ScheduleError
from planner.schedules import Operation, Order, Pipeline, get_schedule
from planner.step.timeline import engine
from planner.step.timeline.timeline import durations, run
from tests.schedules.cases import named_pipelines
from tests.step.timeline import oracle


@settings(max_examples=150, deadline=None)
@given(named_pipelines(), st.integers(0, 2**32 - 1), st.floats(0.0, 1.0))
def test_times_equal_a_naive_timeline(case, seed, transfer):
    name, pipe = case
    order = get_schedule(name).order(pipe)
    if order.fused.any():
        return
    f, i, w = np.random.default_rng(seed).uniform(0.1, 2.0, size=(3, pipe.p * pipe.v))
    parts = np.random.default_rng(seed + 1).uniform(0.1, 2.0, 4)
    timeline = run(order, durations(order, f, i, w, parts), transfer)
    head = {kind: [x] * pipe.p for kind, x in zip("STUV", parts.tolist(), strict=True)}
    expected = oracle.run(order.rows(), {"F": f, "B": i + w, "I": i, "W": w} | head, transfer)
    assert timeline.end_s == pytest.approx(np.concatenate([np.array(e) for e in expected]), rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(named_pipelines(), st.integers(0, 2**32 - 1))
def test_compiled_equals_interpreted_bit_for_bit(case, seed):
    name, pipe = case
    order = get_schedule(name).order(pipe)
    f, i, w = np.random.default_rng(seed).uniform(0.1, 2.0, size=(3, pipe.p * pipe.v))
    lasting = durations(order, f, i, w)
    a, b = (run(order, lasting, 0.1, compiled=c) for c in (True, False))
    assert np.array_equal(a.start_s, b.start_s)
    assert np.array_equal(a.end_s, b.end_s)


@settings(max_examples=100, deadline=None)
@given(named_pipelines(), st.integers(0, 2**32 - 1))
def test_waves_equal_interpreted_bit_for_bit(case, seed):
    name, pipe = case
    order = get_schedule(name).order(pipe)
    f, i, w = np.random.default_rng(seed).uniform(0.1, 2.0, size=(3, pipe.p * pipe.v))
    lasting, release = durations(order, f, i, w), np.linspace(0.0, 1.0, pipe.p)
    a = run(order, lasting, 0.1, release, compiled=False)
    with patch.object(engine, "WAVE_S", 0.0), patch.object(engine, "WAVES_S", 0.0):
        b = run(order, lasting, 0.1, release)
    assert np.array_equal(a.start_s, b.start_s)
    assert np.array_equal(a.end_s, b.end_s)


@pytest.mark.parametrize("wave_s", [0.0, 1.0])
def test_a_circle_is_named_alike_by_either(wave_s):
    rows = [["0F0", "0B0", "0F1", "0B1"], ["1F1", "1B1", "1F0", "1B0"]]
    order = Order.of_rows([[Operation.parse(c) for c in row] for row in rows])
    with (
        patch.object(engine, "WAVE_S", wave_s),
        patch.object(engine, "WAVES_S", 0.0),
        pytest.raises(ScheduleError, match="rank 0 at 0B0 waits for 1B0 of rank 1"),
    ):
        run(order, durations(order, 1.0, 1.0, 1.0))


def test_fused_operations_start_and_end_together():
    rows = [["0F0", "0F1&", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]
    order = Order.of_rows([[Operation.parse(c) for c in row] for row in rows])
    timeline = run(order, durations(order, 1.0, 1.0, 1.0))
    # 0F1& waits for 1B0 (at 4), and both run 3 s.
    assert timeline.start_s[[1, 2]].tolist() == [4.0, 4.0]
    assert timeline.end_s[[1, 2]].tolist() == [7.0, 7.0]
    assert timeline.busy_s.tolist() == [6.0, 6.0]


@pytest.mark.parametrize(("compiled_s", "python_s", "compiled"), [(1.0, 2.0, True), (2.0, 1.0, False)])
def test_what_is_expected_to_be_faster_runs(compiled_s, python_s, compiled):
    """Of the two ways the one that these figures say takes less; the answer is the same."""
    order = get_schedule("1f1b").order(Pipeline(p=4, m=8))
    ran = []

    def compile_it():
        ran.append(True)
        return engine._advance

    limits = {"WAVE_S": 1e9, "IMPORT_S": 0.0, "COMPILED_S": compiled_s, "PYTHON_S": python_s, "_compiled": compile_it}
    with patch.multiple(engine, **limits):
        timeline = run(order, durations(order, 1.0, 1.0, 1.0))
    assert ran == [True] * compiled
    assert timeline.makespan_s == 3 * (8 + 3)


def test_a_process_that_lives_long_compiles_at_its_start():
    ran = []
    with patch.object(engine, "_compiled", lambda: lambda *given: ran.append(engine._advance(*given))):
        engine.compile_engine()
    assert ran == [1]


def test_it_compiles_where_no_folder_can_be_written(monkeypatch):
    caching = pytest.importorskip("numba.core.caching")
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    order = get_schedule("1f1b").order(Pipeline(p=4, m=8))
    compiled = engine._compiled.__wrapped__()
    with patch.object(engine, "_compiled", lambda: compiled):
        assert run(order, durations(order, 1.0, 1.0, 1.0), compiled=True).makespan_s == 3 * (8 + 3)
