"""The shortest time: monotone, optimal against the plain search, bounded, quick."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.base.errors import InputError, LayoutError, UnknownNameError
from planner.base.units import DAY
from planner.hardware import load_cluster, load_framework
from planner.layouts import Recompute
from planner.models import load_model
from planner.scaling.lamy_poirier import critical_batch
from planner.search import Fixed, default_attention, default_precision, recommend
from planner.search.scan import bounds_all, totals_all
from planner.search.space import allows
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.legality import legal
from planner.training_time import fastest as search_of_sizes
from planner.training_time.assumptions import assume
from planner.training_time.fastest import job_bounds, plan_fastest
from planner.training_time.goal import goal
from planner.training_time.joint import coarse, families, octaves, strategy
from planner.training_time.training import TrainingCase
from tests.training_time.conftest import NEVER_FAILS, usual

CLUSTER = "dgx-a100-80gb"
SMALL = {"tokens": 1e11, "max_gpus": 512}


@pytest.fixture(scope="module")
def small(fastest):
    return fastest("llama-7b", CLUSTER, **SMALL)


def test_fronts_descend_and_the_best_is_their_end(small):
    run = small.run
    for front, price in ((small.by_gpus, run.gpus), (small.by_cost, run.gpu_hours)):
        assert np.all(np.diff(price[front]) > 0)
        assert np.all(np.diff(run.wall_s[front]) < 0)
    assert small.best == small.by_gpus[-1]
    assert len(small.binding) == len(small.by_gpus)
    assert all(b.gain >= 0 for b in small.binding)


def test_every_point_is_legal_fits_and_estimates_alike(small):
    model, cluster = load_model("llama-7b"), load_cluster(CLUSTER)
    layouts = small.estimate.layouts.take(small.by_gpus)
    assert legal(model, cluster, layouts).all()
    again = estimate(Setup(model, cluster, load_framework(cluster.framework)), layouts)
    assert again.fits.all()
    np.testing.assert_allclose(again.step_time_s, small.estimate.step_time_s[small.by_gpus])


@pytest.mark.parametrize(
    ("name", "cluster", "fixed", "aim"),
    [
        ("llama-7b", CLUSTER, Fixed(), {}),
        ("mixtral-8x7b", "dgx-h100", Fixed(), {}),
        ("gpt2-xl", "dgx-a100-40gb", Fixed(schedule=("gpipe",)), {"rule": "cap"}),
        ("llama-7b", "dgx-h100", Fixed(recompute=(Recompute.FULL,), recompute_layers=(1,)), {}),
    ],
)
def test_what_bounds_leave_out_is_not_promising(monkeypatch, name, cluster, fixed, aim):
    """The coarse candidates that are kept are those that are kept where all are estimated."""
    model, hardware = load_model(name), load_cluster(cluster)
    setup = Setup(model, hardware, load_framework(hardware.framework))
    q = TrainingCase(setup=setup, goal=goal(model, tokens=1e11, **aim), assumptions=assume(hardware))
    asked, sizes = usual(setup, fixed), job_bounds(model, q.goal, 128)
    first = coarse(model, hardware, families(model, hardware, asked, sizes), asked, sizes)
    monkeypatch.setattr(search_of_sizes, "HOPEFUL", 10**9)
    every = search_of_sizes._promising(q, first)
    monkeypatch.setattr(search_of_sizes, "HOPEFUL", 8)
    np.testing.assert_array_equal(search_of_sizes._promising(q, first), every)
    bound, (step_s, peak_bytes) = bounds_all(setup, first), totals_all(setup, first)
    assert len(every)
    assert np.all(bound.step_time_s <= step_s)
    assert np.all(bound.memory_bytes <= peak_bytes)


def test_as_good_as_the_search_of_every_layout(small):
    """At a point's GPUs and batch, `recommend` finds nothing 2 % faster: the simulation and other degrees are left."""
    model, cluster = load_model("llama-7b"), load_cluster(CLUSTER)
    for i in small.by_gpus[[len(small.by_gpus) // 2, -1]]:
        layouts = small.estimate.layouts
        found = recommend(
            Setup(model, cluster, load_framework(cluster.framework)), gpus=int(layouts.gpus[i]),
            global_batch=int(layouts.global_batch[i]), precision=default_precision(cluster),
            attention=default_attention(cluster), top=1,
        )  # fmt: skip
        assert small.estimate.step_time_s[i] <= 1.02 * found.estimate.step_time_s[found.best[0]]


@given(st.integers(8, 2048), st.floats(1.1, 4))
@settings(max_examples=4, deadline=None)
def test_more_gpus_are_never_slower_at_the_optimum(fastest, gpus, more):
    """Exactly along a search's own curve; between two searches within the grain of the grid, a few per cent."""
    few = fastest("llama-7b", CLUSTER, gpus, tokens=1e11, given=NEVER_FAILS)
    many = fastest("llama-7b", CLUSTER, int(gpus * more), tokens=1e11, given=NEVER_FAILS)
    for found in (few, many):
        assert np.all(np.diff(found.run.gpus[found.by_gpus]) > 0)
        assert np.all(np.diff(found.run.wall_s[found.by_gpus]) < 0)
        assert (
            found.run.wall_s[found.best]
            == found.run.wall_s[np.isfinite(found.run.wall_s)][found.estimate.fits[np.isfinite(found.run.wall_s)]].min()
        )
    assert many.run.wall_s[many.best] <= 1.05 * few.run.wall_s[few.best]


def test_a_point_on_an_odd_number_of_gpus_is_no_worse_than_its_neighbours():
    """Few candidates have 208 GPUs, and only their ranks were searched there: it took 8 % more GPU-hours than 216."""
    answer = planner.fastest("llama3-8b", "dgx-h100", tokens=1e12, max_gpus=512)
    points = [p for p in answer.to_dict()["results"][0]["time_against_gpus"] if p["gpus"] >= 64]
    hours = np.array([p["gpu_hours"] for p in points])
    assert len(points) >= 4
    assert np.all(hours[:-1] < 1.03 * hours[1:])


def test_other_sizes_of_job_are_no_shorter():
    """ZeRO 0 isn't tried at first and suits more GPUs than ZeRO 1: 197 s on 16,416 had been named, 55,224 take 164."""
    model, cluster = load_model("x-40"), load_cluster("gb200-nvl72")
    graphs = Fixed(shared=(("cuda_graphs", True), ("fused_norm", True)))
    setup, plan = Setup(model, cluster, load_framework(cluster.framework)), strategy("data+tensor")
    case = TrainingCase(setup=setup, goal=goal(model), assumptions=assume(cluster))
    found = plan_fastest(case, plan, usual(setup, graphs), max_gpus=100_000)
    request = usual(setup, plan.within(graphs))
    for gpus in (12_312, 16_416, 20_520, 27_648, 32_832, 49_248, 65_664):
        for batch in (gpus // 2, gpus, 2 * gpus):
            fits = search_of_sizes.search(setup, request.sized(gpus, batch)).fits
            other = estimate(setup, fits.layouts)
            seconds = case.wall_s(other.step_time_s, other.fits, other.layouts).min()
            assert found.run.wall_s[found.best] <= 1.01 * seconds, (gpus, batch)


@pytest.mark.parametrize(("model", "cluster"), [("gpt2", "dgx-h100"), ("x-40", "gb200-nvl72")])
def test_small_models_have_micro_batches_that_keep_gpus_busy(model, cluster):
    """Where launches bind a micro-batch has many sequences: gpt2 had taken 420 s, and 270 with those of 32 alone."""

    def days(**choices):
        result = planner.fastest(model, cluster, max_gpus=64, **choices).to_dict()["results"][0]
        return result["time_against_gpus"][-1]["days"]

    free = days()
    for size in (8, 16, 32, 64):
        assert free <= 1.01 * days(micro_batch=size)


def test_free_gpus_cost_their_hours(fastest):
    free = fastest("llama-7b", CLUSTER, **SMALL, given={"price_usd_per_hour": 0.0})
    unpriced = fastest("llama-7b", CLUSTER, **SMALL)
    assert (free.by_cost == unpriced.by_cost).all()


def test_a_cost_bounds_and_a_strategy_restricts(fastest, small):
    priced = {"price_usd_per_hour": 2.0}
    free = fastest("llama-7b", CLUSTER, **SMALL, given=priced)
    middle = float(np.median(free.run.cost_usd[free.by_cost]))
    bounded = fastest("llama-7b", CLUSTER, **SMALL, given=priced, max_cost=middle)
    assert (bounded.run.cost_usd[bounded.by_cost] <= middle).all()
    assert bounded.run.wall_s[bounded.best] >= free.run.wall_s[free.best]
    data = fastest("llama-7b", CLUSTER, **SMALL, plan="data")
    layouts = data.estimate.layouts.take(data.by_gpus)
    assert (layouts.tp == 1).all()
    assert (layouts.pp == 1).all()
    assert data.run.wall_s[data.best] >= 0.999 * small.run.wall_s[small.best]


def test_what_the_user_settles_holds_at_every_point(fastest):
    fixed = Fixed(tp=(2,), micro_batch=(2,), recompute=(Recompute.SELECTIVE,), sequence_parallel=(True,))
    found = fastest("llama-7b", CLUSTER, 64, tokens=1e11, fixed=fixed)
    layouts = found.estimate.layouts
    assert allows(fixed, layouts).all()
    with pytest.raises(InputError, match="tp is given, and settled by strategy data"):
        fastest("llama-7b", CLUSTER, 64, plan="data", tokens=1e11, fixed=fixed)


def test_a_cap_keeps_batches_under_the_critical(fastest):
    found = fastest("llama-7b", CLUSTER, 512, tokens=1e11, rule="cap", critical_batch=1e6)
    assert (found.run.batch_tokens[found.by_gpus] <= 1e6).all()
    assert found.run.tokens[found.best] == pytest.approx(1e11, rel=1e-3)


@pytest.mark.parametrize("plan", ["3d:modular", "3d:breadth-first", "3d:zb-h1", "3d:seq1f1b", "3d:2bw"])
def test_schedules_by_name(fastest, plan):
    found = fastest("llama-65b", CLUSTER, 256, plan=plan, tokens=1e11)  # 13B is fastest without a pipeline
    used = {found.estimate.layouts.row(int(i))["schedule"] for i in found.by_gpus}
    assert used <= {"1f1b", "layered", plan.split(":")[1]}
    assert plan.split(":")[1] in used


def test_x_160_up_to_100_000_gpus_in_under_ten_seconds(fastest):
    began = time.process_time()
    found = fastest("x-160", CLUSTER, 100_000)
    assert time.process_time() - began < 10.0
    assert found.run.gpus[found.best] > 50_000


def test_the_improved_schedule_wins_with_our_models_too():
    model = load_model("x-160")
    cluster = load_cluster(CLUSTER).with_node_size(16)
    from planner.training_time.assumptions import assume
    from planner.training_time.goal import goal

    aim = goal(model, tokens=1e5 * float(critical_batch(160)) * 2560, batch_law="lamy-poirier-2021", rule="cap")
    days = {}
    for plan, gpus in (("3d:1f1b", 35_840), ("3d:modular", 38_640)):
        setup = Setup(model, cluster, load_framework("megatron-core"))
        case = TrainingCase(setup=setup, goal=aim, assumptions=assume(cluster, NEVER_FAILS))
        found = plan_fastest(case, strategy(plan), usual(setup), max_gpus=gpus)
        days[plan] = float(found.run.wall_s[found.best]) / DAY
    # 10.5 % over the paper's 13.4 days since Megatron-Core keeps gradients in fp32, as its code does.
    assert days["3d:1f1b"] == pytest.approx(13.4, rel=0.12)
    assert 1.4 < days["3d:1f1b"] / days["3d:modular"] < 2.1


def test_nodes_of_another_size_keep_their_share_of_network_and_storage():
    cluster = load_cluster("dgx-a100-80gb")
    for size in (1, 3, 16, 72, 0):
        other = cluster.with_node_size(size)
        share = other.network.bandwidth_bytes_per_s * other.nics_per_node / other.gpus_per_node
        assert share == pytest.approx(cluster.network.bandwidth_bytes_per_s)
        assert other.storage_bandwidth_bytes_per_s / other.gpus_per_node == pytest.approx(1.2e9 / 8)
        assert other.host_memory_bytes / other.gpus_per_node == pytest.approx(2**41 / 8)
        assert other.gpus_per_host == min(8, size or 8)  # a larger node joins hosts, as NVL72 does
    assert [load_cluster("gb200-nvl72").with_node_size(n).gpus_per_host for n in (2, 36, 0)] == [2, 4, 4]
    with pytest.raises(InputError, match="node-size is -1"):
        cluster.with_node_size(-1)


def test_octaves():
    assert octaves(1, 8, 1).tolist() == [1, 2, 4, 8]
    assert octaves(5, 40, 1).tolist() == [8, 16, 32]
    assert octaves(9, 8, 1).tolist() == []


def test_refusals(fastest):
    with pytest.raises(InputError, match="max-gpus is 0"):
        fastest("llama-7b", CLUSTER, 0)
    with pytest.raises(LayoutError, match="more GPUs"):
        fastest("x-160", CLUSTER, 64)
    with pytest.raises(InputError, match="give --price"):
        fastest("llama-7b", CLUSTER, 64, max_cost=10.0)
    with pytest.raises(LayoutError, match=r"max-cost is 1 USD; allowed: about [1-9][0-9,]+ or more"):
        fastest("llama-7b", CLUSTER, 64, given={"price_usd_per_hour": 2.0}, max_cost=1.0)
    with pytest.raises(InputError, match="up to the"):
        fastest("llama-7b", "selene", 100_000)
    for bad in ("4d", "3d:gpip", ""):
        with pytest.raises(UnknownNameError):
            strategy(bad)
