"""Goodput, fronts, and training time on top of a step time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.base.errors import UnknownNameError
from planner.base.pareto import knee, pareto_front
from planner.base.units import DAY, HOUR
from planner.scaling.goodput import Reliability, checkpoint_interval_s, goodput
from planner.scaling.training import Prices, Storage, tokens_at_batch, training_time

NEVER = Reliability(mtbf_s=math.inf, restart_s=600.0)
STORE = Storage(checkpoint_bytes=1e12, bandwidth_bytes_per_s=5e9, gpus_per_node=8)
PRICES = Prices(price_per_hour=2.0, power_w=400.0, site_factor=1.5)


def test_young_interval_where_checkpoints_are_short():
    assert checkpoint_interval_s(1.0, 1e6) == pytest.approx(math.sqrt(2e6), rel=1e-2)
    assert checkpoint_interval_s(100.0, 10.0) == 10.0


def test_dalys_interval_is_the_best():
    d, M, R = 60.0, 4 * HOUR, 300.0
    best = goodput(d, M, R)
    tries = goodput(d, M, R, interval_s=np.geomspace(10.0, 1e5, 2000))
    assert best == pytest.approx(tries.max(), rel=1e-4)
    assert 0.85 < best < 0.95


def test_goodput_against_simulated_failures():
    rng = np.random.default_rng(0)
    d, M, R, tau = 30.0, 3000.0, 120.0, 400.0
    wall = done = 0.0
    failure = rng.exponential(M)
    while done < 4e6:
        if failure >= tau + d:
            wall, done, failure = wall + tau + d, done + tau, failure - tau - d
            continue
        wall += failure
        failure = rng.exponential(M)
        while failure < R:  # a failure during the restart starts it again
            wall, failure = wall + failure, rng.exponential(M)
        wall, failure = wall + R, failure - R
    assert goodput(d, M, R, interval_s=tau) == pytest.approx(done / wall, rel=0.02)


@given(st.floats(1, 1e4), st.floats(1, 1e8), st.floats(0, 1e5))
def test_goodput_is_a_share_and_falls_with_failures(delta, mtbf, restart):
    share = goodput(delta, mtbf, restart)
    assert 0.0 <= share <= 1.0
    assert goodput(delta, 2 * mtbf, restart) >= share * (1 - 1e-9)
    assert goodput(delta, math.inf, restart) == 1.0


def test_a_run_without_failures_by_hand():
    run = training_time(10.0, 16, 1e6, 1e9, reliability=NEVER, storage=STORE, prices=PRICES)
    assert run.steps[0] == 1000
    assert run.wall_s[0] == 10_000.0
    assert run.gpu_hours[0] == pytest.approx(16 * 10_000 / 3600)
    assert run.cost_usd[0] == pytest.approx(2.0 * run.gpu_hours[0])
    assert run.energy_j[0] == pytest.approx(16 * 10_000 * 600.0)


def test_a_price_that_is_not_known_is_no_cost():
    prices = Prices(price_per_hour=None, power_w=400.0, site_factor=1.0)
    run = training_time(10.0, 16, 1e6, 1e9, reliability=NEVER, storage=STORE, prices=prices)
    assert np.isnan(run.cost_usd[0])


@given(st.floats(1, 1e5), st.integers(1, 100_000), st.floats(1, 1e3))
def test_failures_only_lengthen(mtbf_days, gpus, step):
    often = Reliability(mtbf_s=mtbf_days * DAY, restart_s=600.0)
    one = training_time(step, gpus, 4e6, 1e12, reliability=often, storage=STORE, prices=PRICES)
    two = training_time(step, gpus, 4e6, 1e12, reliability=NEVER, storage=STORE, prices=PRICES)
    assert one.wall_s[0] >= two.wall_s[0]
    assert one.steps[0] == two.steps[0]


@given(st.floats(1e3, 1e9), st.floats(1.01, 100))
def test_larger_batches_never_take_fewer_tokens(batch, more):
    for rule in ("overhead", "cap"):
        assert tokens_at_batch(1e12, batch * more, 4e6, rule) >= tokens_at_batch(1e12, batch, 4e6, rule)


def test_a_rule_for_batches_that_does_not_exist():
    with pytest.raises(UnknownNameError, match="unknown batch rule 'none'; allowed: cap, overhead"):
        tokens_at_batch(1e12, 4e6, 4e6, "none")


@given(st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=1, max_size=40))
def test_nothing_beats_a_front(points):
    time_s, price = np.array(points).T
    front = pareto_front(price, time_s)
    assert np.all(np.diff(price[front]) > 0)
    assert np.all(np.diff(time_s[front]) < 0)
    for t, p in points:
        assert np.any((time_s[front] <= t) & (price[front] <= p))


def test_a_front_leaves_out_what_is_endless_and_takes_one_of_equals():
    assert pareto_front([np.inf, 1.0], [1.0, np.nan]).tolist() == pareto_front([], []).tolist() == []
    assert pareto_front([2.0, 1.0, 2.0, 1.0], [1.0, 3.0, 1.0, 3.0]).tolist() == [1, 0]


def test_the_knee_of_a_law_with_an_overhead():
    gpus = np.geomspace(1, 1e4, 4001)
    time_s = 1.0 / gpus + 0.01  # n t^2 is least where n = 100: there the overhead is as large as the work
    assert gpus[knee(time_s, gpus * time_s)] == pytest.approx(100, rel=0.01)
    assert knee([1.0], [1.0]) == 0
