"""Closed forms of generated orders: equal to the timeline where they say that they are exact; elsewhere not used."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.schedules import Pipeline, get_schedule
from planner.step.timeline.timeline import durations, run

seconds = st.floats(0.05, 20.0)


def step_less_work(name: str, pipe: Pipeline, f: float, i: float, w: float) -> float:
    schedule = get_schedule(name)
    order = schedule.order(pipe)
    timeline = run(order, durations(order, f / pipe.v, i / pipe.v, w / pipe.v))
    step = timeline.span_s if schedule.unsynchronised_end else timeline.makespan_s
    return step - pipe.m * (f + i + w)


def check(name: str, pipe: Pipeline, f: float, i: float, w: float) -> None:
    bubble, exact = get_schedule(name).closed_form(pipe, f, i, w)
    assert exact
    assert float(bubble) == pytest.approx(step_less_work(name, pipe, f, i, w), abs=1e-9 * pipe.m * (f + i + w))


@pytest.mark.parametrize("name", ["zb-1p", "zb-2p"])
@settings(max_examples=120, deadline=None)
@given(st.integers(1, 12), st.integers(1, 50), seconds, seconds, seconds)
def test_zero_bubble_lists_for_all_pipelines_and_times(name, p, m, f, i, w):
    check(name, Pipeline(p=p, m=m), f, i, w)


@settings(max_examples=150, deadline=None)
@given(st.integers(3, 14), st.integers(1, 40), seconds, seconds, seconds)
def test_1f1b_v_for_more_micro_batches_than_ranks(p, more, f, i, w):
    check("1f1b-v", Pipeline(p=p, m=p + more, v=2), f, i, w)


@settings(max_examples=120, deadline=None)
@given(st.integers(2, 16), st.integers(1, 60), seconds, st.floats(0, 1), st.floats(0, 1))
def test_chronospipe_around_its_own_durations(p, m, f, share, at):
    back = f * (2 + 3 * at * (1 - 1e-12) / p)
    i = share * back
    while f + f > i + (back - i):
        back = float(np.nextafter(back, np.inf))
    check("chronospipe", Pipeline(p=p, m=m, v=2), f, i, back - i)


@settings(max_examples=120, deadline=None)
@given(st.integers(1, 12), st.data(), seconds, st.floats(2.001, 30), st.floats(0, 1))
def test_hanayo_of_one_wave(p, data, f, longer, share):
    m = data.draw(st.integers(1, p))
    check("hanayo", Pipeline(p=p, m=m, v=2), f, share * longer * f, (1 - share) * longer * f)


@pytest.mark.parametrize("name", ["v-half", "v-min", "v-half-vocab-1", "v-half-vocab-2"])
@settings(max_examples=60, deadline=None)
@given(st.integers(3, 14), st.integers(0, 20), seconds)
def test_v_half_and_v_min_of_equal_passes(name, p, more, f):
    check(name, Pipeline(p=p, m=2 * p + more, v=2), f, f, f)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 14), st.integers(1, 40), seconds, st.floats(1.0, 5.0), st.floats(0, 1))
def test_interlaced_where_forwards_take_no_longer_than_backwards(p, m, f, longer, share):
    i = share * longer * f
    check("interlaced", Pipeline(p=p, m=m), f, i, max(longer * f, float(np.nextafter(f, np.inf))) - i)


@pytest.mark.parametrize(
    ("name", "size", "times"),
    [
        ("interlaced", {"p": 4, "m": 12}, (1.0, 0.4, 0.4)),
        ("v-half-vocab-1", {"p": 4, "m": 12, "v": 2}, (1.0, 1.3, 1.0)),
        ("v-half-vocab-2", {"p": 4, "m": 12, "v": 2}, (1.0, 1.3, 1.0)),
        ("v-half", {"p": 4, "m": 12, "v": 2}, (1.0, 1.1, 1.0)),
        ("v-min", {"p": 4, "m": 12, "v": 2}, (1.0, 1.1, 1.0)),
        ("chronospipe", {"p": 7, "m": 21, "v": 2}, (1.0, 1.3, 1.3)),
        ("chronospipe", {"p": 9, "m": 27, "v": 2}, (1.0, 0.9, 0.9)),
        ("chronospipe", {"p": 7, "m": 42, "v": 2}, (1.0, 1.275, 1.275)),  # 19 B - 26.5 F, a little beyond the law's end
        ("hanayo", {"p": 4, "m": 4, "v": 2}, (1.0, 0.9, 0.9)),
        ("hanayo", {"p": 4, "m": 8, "v": 2}, (1.0, 1.0, 1.0)),
        ("hanayo", {"p": 4, "m": 4, "v": 4}, (1.0, 1.0, 1.0)),
        ("1f1b-v", {"p": 6, "m": 6, "v": 2}, (1.0, 0.5, 0.5)),
    ],
)
def test_elsewhere_the_formula_is_wrong_and_the_longest_path_is_taken(name, size, times):
    pipe, schedule = Pipeline(**size), get_schedule(name)
    formula, exact = schedule.closed_form(pipe, *times)
    timeline = step_less_work(name, pipe, *times)
    assert not exact
    assert abs(float(formula) - timeline) > 0.01 * timeline
    assert float(schedule.bubble_s(pipe, *times)) == pytest.approx(timeline, rel=1e-9)


def test_a_table_mixes_rows_with_and_without_a_formula():
    schedule = get_schedule("v-half")
    pipe = Pipeline(p=np.array([3, 3, 4]), m=np.array([6, 6, 4]), v=2)
    f, i, w = np.array([[1.0, 1.0, 1.0], [1.0, 1.5, 1.0], [1.0, 1.0, 1.0]])
    one = [
        step_less_work("v-half", Pipeline(p=a, m=b, v=2), *x) for a, b, *x in zip(pipe.p, pipe.m, f, i, w, strict=True)
    ]
    assert schedule.closed_form(pipe, f, i, w)[1].tolist() == [True, False, False]
    assert schedule.bubble_s(pipe, f, i, w) == pytest.approx(one, rel=1e-9)


@pytest.mark.parametrize(("m", "passes"), [(2, 5), (3, 4), (4, 3), (9, 3)])
def test_breadth_first_waits_between_chunks_where_ranks_outnumber_micro_batches(m, passes):
    """Four ranks of two chunks: three chunk passes fill and drain the pipeline, p - m more are waited for."""
    pipe = Pipeline(p=4, m=m, v=2)
    assert float(get_schedule("breadth-first").bubble_s(pipe, 2.0, 3.0, 1.0)) == passes * 6.0 / 2
    assert step_less_work("breadth-first", pipe, 2.0, 3.0, 1.0) == pytest.approx(passes * 6.0 / 2, rel=1e-12)
