"""Drawn trainings beside the closed form: the same mean where there is one, and what each way to be safe costs."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.base.units import HOUR
from planner.scaling.drawn import MOST, drawn_wall_s, elastic_wall_s
from planner.scaling.goodput import Reliability, goodput, waiting_share
from planner.scaling.training import Prices, Storage, training_time

STORE = Storage(checkpoint_bytes=1e12, bandwidth_bytes_per_s=5e9, gpus_per_node=8)
BEHIND = replace(STORE, host_copies=1, copy_bytes_per_s=1e11, neighbour_bytes_per_s=5e10)
NEAR = replace(BEHIND, host_copies=2)
OFTEN = Reliability(mtbf_s=64 * 6 * HOUR, restart_s=600.0)
SLOW = {"slow_mtbf_s": 64 * 20 * HOUR, "slow_s": 5 * HOUR, "slow_by": 0.5}


def run_of(reliability, storage=STORE, gpus=64, days=20):
    steps = days * 86400 / 10.0
    prices = Prices(price_per_hour=2.0, power_w=400.0, site_factor=1.5)
    return training_time(10.0, gpus, 1e6, steps * 1e6, reliability=reliability, storage=storage, prices=prices)


@pytest.mark.parametrize(
    ("known", "storage"),
    [
        (OFTEN, STORE),
        (replace(OFTEN, restart_s=6 * HOUR), STORE),  # a restart fails as often as not
        (OFTEN, BEHIND),
        (OFTEN, replace(BEHIND, bandwidth_bytes_per_s=1e8)),  # 1,250 s until a checkpoint counts
        (OFTEN, NEAR),
        (replace(OFTEN, repair_s=12 * HOUR), STORE),
        (replace(OFTEN, repair_s=12 * HOUR, spares=1), STORE),
        (replace(OFTEN, repair_s=48 * HOUR, spares=6), BEHIND),
        (replace(OFTEN, **SLOW), STORE),
        (replace(OFTEN, repair_s=12 * HOUR, spares=2, **SLOW), NEAR),
        (replace(OFTEN, mtbf_s=math.inf, **SLOW), STORE),
    ],
)
def test_the_mean_of_drawn_runs_is_the_closed_form(known, storage):
    run = run_of(known, storage)
    walls = drawn_wall_s(run, known)
    error = 4.0 * walls.std() / math.sqrt(len(walls))
    ends = run.interval_s[0] + run.behind_s[0] if np.isfinite(run.interval_s[0]) else 0.0  # a run ends within a segment
    # Spares are all whole at the start, where the closed form has them as they are in the long run.
    ends += known.repair_s * waiting_share(known.repair_s, run.mtbf_s[0], known.spares)
    assert abs(walls.mean() - run.wall_s[0]) < error + ends
    assert error < 0.05 * run.wall_s[0]


def test_drawn_runs_are_the_same_each_time_and_none_where_they_cannot_be():
    run = run_of(OFTEN)
    assert np.array_equal(drawn_wall_s(run, OFTEN), drawn_wall_s(run, OFTEN))
    assert not np.array_equal(drawn_wall_s(run, OFTEN), drawn_wall_s(run, OFTEN, seed=1))
    never = Reliability(mtbf_s=math.inf, restart_s=600.0)
    assert np.all(drawn_wall_s(run_of(never), never) == run_of(never).busy_s[0])
    lost = replace(OFTEN, mtbf_s=64.0)
    assert drawn_wall_s(run_of(lost), lost) is None  # never ends
    many = replace(OFTEN, mtbf_s=64.0 * 1200)
    long = run_of(many, days=400)
    assert long.wall_s[0] / long.mtbf_s[0] > MOST
    assert drawn_wall_s(long, many) is None


def test_spares_by_hand():
    """One line: repairs over repairs and work. Two lines: (r^2 / 2) / (1 + r + r^2 / 2)."""
    assert waiting_share(12.0, 6.0, 0) == pytest.approx(12 / 18)
    assert waiting_share(12.0, 6.0, 1) == pytest.approx(2 / 5)
    assert waiting_share(0.0, 6.0, 3) == 0.0
    assert waiting_share(12.0, math.inf, 0) == 0.0


def test_behind_the_training_only_the_copy_stops_it_and_a_neighbour_spares_the_read():
    waits, behind, near = (run_of(OFTEN, s) for s in (STORE, BEHIND, NEAR))
    assert waits.checkpoint_s[0] == pytest.approx(1e12 / 8 / 5e9)
    assert (behind.checkpoint_s[0], behind.behind_s[0]) == (pytest.approx(1.25), waits.checkpoint_s[0])
    assert (near.behind_s[0], near.restart_s[0]) == (pytest.approx(2.5), pytest.approx(600 - 25 + 2.5))
    assert waits.wall_s[0] > behind.wall_s[0] > near.wall_s[0]
    assert STORE.host_bytes(8) == 0.0
    assert BEHIND.host_bytes(8) == 1.25e11
    assert NEAR.host_bytes(8) == 5e11
    assert NEAR.host_bytes(1) == 1e12
    alone = [run_of(OFTEN, s, gpus=8) for s in (BEHIND, NEAR)]
    assert alone[0].wall_s[0] == alone[1].wall_s[0]  # one node has no neighbour


def test_no_checkpoint_begins_before_the_last_counts_or_within_a_step():
    slow = replace(BEHIND, bandwidth_bytes_per_s=1e8)
    assert run_of(OFTEN, slow).interval_s[0] == run_of(OFTEN, slow).behind_s[0] == 1250.0
    quick = replace(NEAR, copy_bytes_per_s=1e16)
    assert run_of(OFTEN, quick).interval_s[0] == 10.0  # each step, as Gemini does


TIMES = st.floats(1.0, 1e5)


@settings(max_examples=200)
@given(TIMES, st.floats(600, 1e7), TIMES, st.integers(0, 20))
def test_spares_help_and_repairs_hurt(repair_s, mtbf_s, more_s, spares):
    share = waiting_share(repair_s, mtbf_s, spares)
    assert 0.0 <= waiting_share(repair_s, mtbf_s, spares + 1) <= share < 1.0
    assert waiting_share(repair_s + more_s, mtbf_s, spares) >= share
    assert waiting_share(repair_s, 2.0 * mtbf_s, spares) <= share


@settings(max_examples=200)
@given(st.floats(1e9, 1e13), st.floats(1e8, 1e11), st.floats(1.0, 100.0), st.integers(1, 5000), st.floats(1e5, 1e9))
def test_a_copy_faster_than_storage_never_costs_time(size, bandwidth, faster, gpus, mtbf_s):
    """What it saves is at least the stall; the interval at best may differ by what Daly's series leaves out."""
    known = Reliability(mtbf_s=mtbf_s, restart_s=300.0)
    waits = Storage(checkpoint_bytes=size, bandwidth_bytes_per_s=bandwidth, gpus_per_node=8)
    behind = replace(waits, host_copies=1, copy_bytes_per_s=bandwidth * faster)
    one, two = (run_of(known, s, gpus=gpus) for s in (waits, behind))
    assert two.checkpoint_s[0] <= one.checkpoint_s[0] == two.behind_s[0]
    instant = replace(waits, host_copies=2, copy_bytes_per_s=math.inf, neighbour_bytes_per_s=math.inf)
    assert gpus <= 8 or run_of(known, instant, gpus=gpus).goodput[0] >= one.goodput[0] * (1 - 1e-9)


@settings(max_examples=100)
@given(st.floats(1e2, 1e9), st.floats(0, 1e6), st.floats(0, 10), st.integers(1, 5000))
def test_stragglers_slow_by_no_more_than_each_does(slow_mtbf_s, slow_s, slow_by, gpus):
    known = Reliability(mtbf_s=math.inf, restart_s=0.0, slow_mtbf_s=slow_mtbf_s, slow_s=slow_s, slow_by=slow_by)
    run = run_of(known, gpus=gpus)
    assert run.busy_s[0] <= run.wall_s[0] * (1 + 1e-12)
    assert run.wall_s[0] <= run.busy_s[0] * (1 + slow_by) * (1 + 1e-12)


def test_spares_are_paid_for():
    known = replace(OFTEN, repair_s=12 * HOUR, spares=3)
    run = run_of(known)
    assert run.gpu_hours[0] == pytest.approx((64 + 3 * 8) * run.wall_s[0] / HOUR)
    assert run.cost_usd[0] == pytest.approx(2.0 * run.gpu_hours[0])
    assert goodput(run.checkpoint_s, run.mtbf_s, run.restart_s)[0] * (1 - run.waiting_share[0]) == pytest.approx(
        run.goodput[0]
    )


def elastic(known, storage=STORE, gpus=64, replicas=8):
    run = run_of(known, storage, gpus=gpus)
    return run, *elastic_wall_s(run, known, gpus / 8, replicas)


@pytest.mark.parametrize("repair_hours", [1, 12, 48])
def test_elastic_runs_without_loss_work_as_many_nodes_as_are_up(repair_hours):
    """No restart and no stall: each of eight nodes is up M / (M + D) of the time, and so is an eighth of the job."""
    known = replace(OFTEN, restart_s=0.0, repair_s=repair_hours * HOUR)
    run, walls, hands = elastic(known, replace(BEHIND, copy_bytes_per_s=1e18, bandwidth_bytes_per_s=1e18))
    up = 48.0 / (48.0 + repair_hours)  # a node fails every 48 hours
    nodes_at_first = (1.0 - up) * repair_hours * HOUR  # all are up at the start
    assert abs(walls.mean() - run.busy_s[0] / up) < 4.0 * walls.std() / math.sqrt(len(walls)) + nodes_at_first
    assert hands.mean() == pytest.approx(8 * run.busy_s[0], rel=0.01)  # node-seconds of the work itself


def test_elastic_runs_are_those_that_wait_where_repairs_take_no_time():
    known = replace(OFTEN, repair_s=1e-3)
    run, walls, hands = elastic(known)
    assert abs(walls.mean() - run.wall_s[0]) < 4.0 * walls.std() / math.sqrt(len(walls)) + run.interval_s[0]
    assert hands == pytest.approx(8 * walls)


def test_what_is_left_trains_sooner_than_waiting_does_unless_it_is_no_replica():
    known = replace(OFTEN, repair_s=24 * HOUR)
    run, walls, _ = elastic(known)
    assert walls.mean() < 0.6 * run.wall_s[0]
    run, whole, _ = elastic(known, replicas=1)  # of one replica nothing is left: it waits as the others do
    assert abs(whole.mean() - run.wall_s[0]) < 4.0 * whole.std() / math.sqrt(len(whole)) + 24 * HOUR
    spared = elastic(replace(known, spares=2))[1]
    assert spared.mean() < walls.mean()
    lost = replace(OFTEN, mtbf_s=64.0)
    assert elastic_wall_s(run_of(lost), lost, 8, 8) is None
