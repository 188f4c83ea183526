"""Schedules: literal orders, and closed forms equal to the timeline of the same operations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import UnknownNameError
from planner.schedules import SCHEDULES, get_schedule
from tests.schedules.timeline import run


def cells(name: str, p: int, m: int, v: int = 1) -> list[str]:
    return [" ".join(map(str, row)) for row in get_schedule(name).order(p, m, v)]


def test_orders_as_literals():
    assert cells("gpipe", 2, 3) == ["0F0 0F1 0F2 0B2 0B1 0B0", "1F0 1F1 1F2 1B2 1B1 1B0"]
    assert cells("1f1b", 3, 4) == [
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
    ]
    assert cells("interleaved", 2, 2, 2)[1] == "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"


shape = st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4))


def legal_case(name: str, p: int, group: int, v: int) -> tuple[int, int, int]:
    """p, m and v that the schedule allows."""
    if name == "interleaved":
        return max(p, 2), max(p, 2) * group, max(v, 2)
    return p, p * group, 1


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(sorted(SCHEDULES)), shape, st.floats(0.1, 3.0), st.floats(0.1, 3.0))
def test_makespan_and_peak_equal_the_timeline(name, case, f, b):
    p, m, v = legal_case(name, *case)
    schedule = get_schedule(name)
    assert not any(np.any(rule.broken) for rule in schedule.rules(p, m, v))
    order = schedule.order(p, m, v)
    span, peak = run(order, [f / v] * (p * v), [b / v] * (p * v))
    assert span == pytest.approx(schedule.makespan(p * (f + b), f + b, m, v), rel=1e-9)
    assert 1.0 - m * (f + b) / span == pytest.approx(schedule.bubble_fraction(p, m, v), abs=1e-9)
    for r in range(p):
        assert peak[r] / v == pytest.approx(schedule.in_flight(p, m, v, r), rel=1e-12)
        ops = order[r]
        assert len(set(ops)) == len(ops) == 2 * m * v
        assert all(op.stage % p == r for op in ops)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["gpipe", "1f1b"]), shape, st.lists(st.floats(0.5, 2.0), min_size=6, max_size=6))
def test_no_uneven_pipeline_beats_the_busiest_rank_and_the_closed_form_is_close(name, case, weights):
    p, m, v = legal_case(name, *case)
    forward, backward = weights[:p], [2 * w for w in weights[:p]]
    span, _ = run(get_schedule(name).order(p, m, v), forward, backward)
    closed = float(get_schedule(name).makespan(3 * sum(forward), 3 * max(forward), m, v))
    assert span >= 3 * m * max(forward) - 1e-9
    assert span <= closed + 1e-9
    assert span >= 0.8 * closed


def test_illegal_choices_say_the_rule():
    broken = [r.text for r in get_schedule("interleaved").rules(4, 6, 2) if r.broken]
    assert broken == ["interleaved needs a number of micro-batches divisible by pp"]
    with pytest.raises(UnknownNameError, match="interleaved"):
        get_schedule("interleave")
