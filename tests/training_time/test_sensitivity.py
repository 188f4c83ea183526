"""Elasticities and intensities: signs, sums, identities."""

import math
from dataclasses import replace

import pytest

from planner.hardware import load_cluster, load_framework
from planner.layouts import Layouts
from planner.models import load_model
from planner.search import Fixed, default_attention, default_precision, recommend
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.training_time.assumptions import assume
from planner.training_time.goal import goal
from planner.training_time.sensitivity import COSTS, FAILURES, QUANTITIES, RIVALS, network_operations, sensitivity
from planner.training_time.training import TrainingCase


@pytest.fixture(scope="module")
def found():
    model, cluster = load_model("gpt3-13b"), load_cluster("dgx-a100-80gb")
    framework = load_framework(cluster.framework)
    best = recommend(
        Setup(model, cluster, framework), gpus=128, global_batch=512, precision=default_precision(cluster),
        attention=default_attention(cluster), fixed=Fixed(tp=(4,), pp=(4,)), top=1, rivals=RIVALS,
    )  # fmt: skip
    setup = Setup(model, cluster, framework)
    return sensitivity(TrainingCase(setup=setup, goal=goal(model), assumptions=assume(cluster)), best)


def test_more_of_a_good_thing_never_hurts(found):
    effects = {e.name: e for e in found.effects}
    for name in QUANTITIES:
        e = effects[name]
        assert e.elasticity >= -1e-9 if name in COSTS else e.elasticity <= 1e-9, name
        assert e.twofold >= -1e-9
        assert e.replanned >= e.twofold - 1e-9
    assert effects["matrix peak"].elasticity < -0.5


def test_what_the_plainest_layout_gives_up_is_no_gain_of_the_hardware():
    """The plainest layout, which is run, is slower than the fastest; twice the host's link says nothing to either."""
    setup = Setup(load_model("llama3-70b"), load_cluster("dgx-h100"), load_framework("megatron-core"))
    best = recommend(
        setup, gpus=256, global_batch=512, precision=default_precision(setup.cluster),
        attention=default_attention(setup.cluster), fixed=Fixed(zero=(1,), dp=(8, 16)), plainest=True, rivals=RIVALS,
    )  # fmt: skip
    step = best.estimate.step_time_s
    assert step[best.best[0]] > 1.005 * step[best.fastest]
    case = TrainingCase(setup=setup, goal=goal(setup.model), assumptions=assume(setup.cluster))
    effects = {e.name: e for e in sensitivity(case, best).effects}
    assert effects["host link bandwidth"].replanned == pytest.approx(0.0, abs=1e-9)
    assert effects["matrix peak"].replanned > 0.1


def test_seconds_that_show_are_counted_once():
    """A gather and a reduction of ZeRO 1 have one row: what shows of both together is known."""
    setup = Setup(load_model("llama3-8b"), load_cluster("dgx-h100"), load_framework("megatron-core"))
    layouts = Layouts.of(dp=32, tp=2, zero=1, global_batch=512)
    time = estimate(setup, layouts).time
    rows = {o.name: o.exposed_s for o in network_operations(setup, layouts)}
    assert rows["gradient reduction and parameter gather"] == float(time.data_comm_s[0])
    assert sum(rows.values()) <= float(time.data_comm_s[0] + time.tensor_comm_s[0]) + 1e-12


def test_elasticities_of_rates_and_latencies_sum_to_one_at_most(found):
    """A step is homogeneous in all rates but the host's: faster links, memory and products by 1 %, the step by 1 %."""
    total = sum(abs(e.elasticity) for e in found.effects if not math.isnan(e.elasticity))
    assert 0.9 < total <= 1.001


def test_the_training_follows_its_step_and_its_failures(found):
    effects = {e.name: e for e in found.effects}
    for name in QUANTITIES:
        assert effects[name].training == pytest.approx(effects[name].elasticity, rel=1e-3, abs=1e-6), name
    for name in FAILURES:
        e = effects[name]
        assert e.elasticity == 0.0
        assert e.training > 0 if name in COSTS else e.training < 0
        assert 0 < e.twofold < 0.2
    # Rarer failures shorten both what is done again and the restarts: more than restarts alone.
    assert effects["time between failures"].twofold > effects["restart time"].twofold


def test_layout_quantities_are_there(found):
    names = {e.name for e in found.effects}
    assert {"node size", "batch", "GPUs, by replicas", "GPUs and batch, by replicas"} <= names
    gpus = next(e for e in found.effects if e.name == "GPUs and batch, by replicas")
    assert 0.3 < gpus.twofold < 0.5


def one(schedule="1f1b", micro_batches=8, **choices):
    model, cluster = load_model("gpt3-13b"), load_cluster("dgx-a100-80gb")
    layouts = Layouts.of(schedule=schedule, global_batch=4 * micro_batches, dp=4, tp=4, pp=4, zero=0, **choices)
    return {o.name: o for o in network_operations(Setup(model, cluster, load_framework("megatron-lm")), layouts)}


def test_intensity_of_data_parallelism_grows_with_the_micro_batches_only_layer_at_a_time():
    plain = [one(micro_batches=m)["gradient reduction"].intensity for m in (8, 16)]
    layered = [one("breadth-first", m, virtual_stages=10)["gradient reduction"].intensity for m in (8, 16)]
    assert plain[1] == pytest.approx(plain[0])
    assert layered[1] == pytest.approx(2 * layered[0])
    assert layered[0] == pytest.approx(8 * plain[0], rel=0.2)


def test_intensity_of_tensor_parallelism_is_the_papers():
    """Per byte that is sent: 24 h^2 + ... FLOP of three passes over 8 (t - 1)/t hidden states of 2 bytes."""
    model = load_model("gpt3-13b")
    h, s, t = model.hidden, model.seq_len, 4
    flop = 3 * (24 * h * h + 2 * s * h) / t  # a token and layer, causal attention halved
    sent = 8 * (t - 1) / t * h * 2
    assert one()["tensor-parallel collectives"].intensity == pytest.approx(flop / sent, rel=0.05)


def test_threshold_is_peak_over_the_links_bandwidth():
    cluster = load_cluster("dgx-a100-80gb")
    link = cluster.node_link
    o = one()["tensor-parallel collectives"]
    assert o.link == link.name
    assert o.threshold == pytest.approx(312e12 / (link.bandwidth_bytes_per_s * link.fraction))


def test_a_faster_network_shortens_what_it_bounds():
    model, cluster = load_model("gpt3-13b"), load_cluster("dgx-a100-80gb", network="ethernet-25g")
    framework = load_framework(cluster.framework)
    layouts = Layouts.of(global_batch=64, dp=16, tp=4, zero=0)
    slow = estimate(Setup(model, cluster, framework), layouts).step_time_s[0]
    network = replace(cluster.network, bandwidth_bytes_per_s=8 * cluster.network.bandwidth_bytes_per_s)
    assert estimate(Setup(model, replace(cluster, network=network), framework), layouts).step_time_s[0] < slow


def test_of_a_training_that_never_ends_nothing_is_a_number_that_it_is_not():
    """With a failure every two minutes it never ends; with one every four it does: all is saved."""
    model, cluster = load_model("gpt3-13b"), load_cluster("dgx-a100-80gb")
    setup = Setup(model, cluster, load_framework(cluster.framework))
    best = recommend(
        setup, gpus=128, global_batch=512, precision=default_precision(cluster), attention=default_attention(cluster),
        fixed=Fixed(tp=(4,), pp=(4,)), top=1, rivals=4,
    )  # fmt: skip
    hours = 128 * 2 / 60  # of a GPU; restarts take 15 minutes
    q = TrainingCase(setup=setup, goal=goal(model), assumptions=assume(cluster, {"mtbf_hours": hours}))
    effects = {e.name: e for e in sensitivity(q, best).effects}
    one = best.estimate.take(best.best[:1])
    assert math.isinf(q.runs(one.step_time_s, one.layouts).wall_s[0])
    assert effects["time between failures"].twofold == 1.0
    assert math.isnan(effects["matrix peak"].twofold)
    assert all(math.isnan(e.training) for e in effects.values())
