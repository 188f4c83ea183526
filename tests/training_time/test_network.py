"""`planner network`: a faster link never hurts, limits by hand, what is asked again on other networks."""

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import planner
from planner.base.errors import InputError, LayoutError, UnknownNameError
from planner.base.units import GBIT
from planner.cli import app
from planner.costs.case import Case
from planner.costs.network.data_parallel import data_traffic
from planner.hardware import load_cluster
from planner.layouts import Layouts
from planner.question import load_setup, search_request
from planner.report.tables import layout_text
from planner.step.estimate import estimate
from planner.training_time.network import (
    AXES,
    BASELINE,
    NEAR,
    NetworkCase,
    axis_of,
    curve,
    need_of,
    with_bandwidth,
    with_latency,
)

SHORT = replace(AXES["bandwidth"], marks={1.0: "", 25.0: "", 400.0: "", 3200.0: ""})
DELAYS = replace(AXES["latency"], marks={1.0: "", 50.0: "", 10_000.0: ""})
CLUSTER = load_cluster("dgx-a100-80gb")


def case(axis=SHORT, gpus=32, batch=64, model="llama-7b", **choices):
    setup, asked = search_request(
        load_setup(model, CLUSTER, framework="megatron-core"), gpus=gpus, batch=batch, **choices
    )
    return NetworkCase(setup=setup, axis=axis, request=asked, given=choices)


def test_the_bandwidths_reach_the_clusters_own():
    rack = axis_of("bandwidth", load_cluster("gb200-nvl72"))
    assert rack.values[-5:] == (3200.0, 6400.0, 12800.0, 25600.0, 28800.0)
    assert rack.marks[28800.0] == "the cluster's own"
    own = load_cluster("gb200-nvl72").network.bandwidth_bytes_per_s
    assert rack.change(load_cluster("gb200-nvl72"), 28800.0).network.bandwidth_bytes_per_s == pytest.approx(own)
    assert axis_of("bandwidth", load_cluster("dgx-h100")) is AXES["bandwidth"]
    assert axis_of("latency", load_cluster("gb200-nvl72")) is AXES["latency"]


@pytest.mark.parametrize("axis", [SHORT, DELAYS], ids=lambda a: a.name)
def test_the_curve_is_monotone_and_each_point_its_layouts_own_step(axis):
    one = case(axis)
    found = curve(one)
    assert list(found.values) == sorted(axis.marks, reverse=axis.name == "latency")
    assert (np.diff(found.step_s) <= 1e-12).all()
    worst, best = found.values[0], found.values[-1]
    assert min(worst, best) <= found.enough <= max(worst, best)
    for k, value in enumerate(found.values):
        again = curve(replace(one, axis=replace(axis, marks={value: ""})))
        assert found.step_s[k] <= again.step_s[0] * (1 + 1e-9)


def test_what_is_enough_is_within_five_percent_of_the_fastest():
    one = case()
    found = curve(one)
    there = curve(replace(one, axis=replace(SHORT, marks={found.enough: "", 3200.0: ""})))
    assert there.step_s[0] <= (1 + NEAR) * found.step_s[-1] * (1 + 1e-9)


LAYOUTS = st.sampled_from([
    {"tp": 8, "pp": 1, "dp": 4, "zero": 0}, {"tp": 2, "pp": 4, "dp": 4, "zero": 1},
    {"tp": 1, "pp": 1, "dp": 32, "zero": 3},
    {"tp": 16, "pp": 2, "dp": 1, "zero": 0}, {"tp": 4, "pp": 8, "dp": 1, "zero": 0},
    {"tp": 1, "pp": 4, "dp": 8, "zero": 2, "schedule": "breadth-first", "virtual_stages": 4},
])  # fmt: skip


@given(LAYOUTS, st.floats(0, 3.5), st.floats(1.0, 10.0))
@settings(max_examples=60, deadline=None)
def test_a_faster_link_never_hurts_a_layout(layout, power, factor):
    setup = load_setup("llama-7b", CLUSTER, framework="megatron-core")
    one = Layouts.of(micro_batch=1, global_batch=64, **layout)
    slow = replace(setup, cluster=with_bandwidth(CLUSTER, 10.0**power))
    fast = replace(setup, cluster=with_bandwidth(CLUSTER, 10.0**power * factor))
    assert estimate(fast, one).step_time_s[0] <= estimate(slow, one).step_time_s[0] * (1 + 1e-12)
    late = replace(setup, cluster=with_latency(CLUSTER, 10.0**power * factor))
    soon = replace(setup, cluster=with_latency(CLUSTER, 10.0**power))
    assert estimate(soon, one).step_time_s[0] <= estimate(late, one).step_time_s[0] * (1 + 1e-12)


def test_the_limits_by_hand():
    """Without latency a reduction over two nodes takes as long as its bytes through the node's network."""
    setup = load_setup("llama-7b", CLUSTER, framework="megatron-core")
    one = Layouts.of(tp=8, pp=1, dp=2, micro_batch=1, global_batch=2, zero=0)
    steps = [
        float(estimate(replace(setup, cluster=with_bandwidth(CLUSTER, gbit)), one).step_time_s[0])
        for gbit in (1.0, 2.0)
    ]
    none = float(estimate(replace(setup, cluster=with_bandwidth(CLUSTER, 1e9)), one).step_time_s[0])
    assert (steps[0] - none) == pytest.approx(2.0 * (steps[1] - none), rel=0.02)
    fixed = with_bandwidth(CLUSTER, 200.0)
    assert fixed.network.bandwidth_bytes_per_s * fixed.nics_per_node == pytest.approx(200.0 * GBIT)
    assert fixed.nics_per_node == CLUSTER.nics_per_node
    assert with_latency(CLUSTER, 7.0).network.latency_s == pytest.approx(7e-6)


def test_each_bucket_of_gradients_starts_later_where_the_latency_is_longer():
    """6.74e9 parameters in buckets of 4e7: 168 more sums and gathers, each by what the latency is longer."""
    setup = load_setup("llama-7b", CLUSTER, framework="megatron-core")
    one = Layouts.of(tp=1, pp=1, dp=16, micro_batch=1, global_batch=16, zero=1)
    own_us = CLUSTER.network.latency_s * 1e6

    def seconds(microseconds, parameters):
        framework = replace(setup.framework, large_bucket_parameters=parameters)
        late = Case.of(replace(setup, cluster=with_latency(CLUSTER, microseconds), framework=framework), one)
        return np.array(data_traffic(late, late.ranks.rank(setup.model.num_layers, True, True))[:2]).ravel()

    for microseconds in (own_us, own_us / 2):
        assert np.array_equal(seconds(microseconds, 4e7), seconds(microseconds, 0.0))
    more = {times: seconds(times * own_us, 4e7) - seconds(times * own_us, 0.0) for times in (2.0, 101.0)}
    once = seconds(101.0 * own_us, 0.0) - seconds(own_us, 0.0)
    assert more[101.0] == pytest.approx(168 * once)
    assert more[101.0] == pytest.approx(100.0 * more[2.0])
    assert np.all(seconds(101.0 * own_us, 4e7) > seconds(101.0 * own_us, 4e8))


def test_a_latency_that_is_given_counts_buckets_as_the_axis_does():
    given_ = load_cluster("dgx-a100-80gb", changes={"network": {"latency_us": 500.0}}).network
    assert given_.stretched == pytest.approx(with_latency(CLUSTER, 500.0).network.stretched)
    own = load_cluster("dgx-a100-80gb", changes={"network": {"latency_us": CLUSTER.network.latency_s * 1e6}})
    assert own.network.stretched is None


def test_a_strategy_says_what_it_needs_or_why_it_is_none():
    one = case()
    need = need_of(one, "baseline", BASELINE)
    assert need.enough in SHORT.marks
    asked = one.held(BASELINE)
    at = asked.quickest(need.enough)[0]
    assert at <= (1 + NEAR) * need.step_s
    below = [v for v in SHORT.values if v < need.enough]
    assert not below or asked.quickest(below[-1])[0] > (1 + NEAR) * need.step_s
    assert need_of(one, "experts", {"ep": (2,)}).none == "the model has no experts"
    assert need_of(case(zero=1), "ZeRO 3", {"zero": (3,)}).none == "zero is given"
    assert (
        "fits" in need_of(case(gpus=16, batch=16, model="llama-65b"), "a", {"zero": (0,), "tp": (1,), "pp": (1,)}).none
    )


def test_python_answers_as_the_command_does():
    asked = {"gpus": 16, "batch": 64, "exclude": ["schedule=zb-*"]}
    on = planner.Cluster("dgx-a100-80gb", figures={"accelerator.memory_gib": 64, "network.latency_us": 9.5})
    answer = planner.network(planner.Model("llama-7b", seq_len=4096), on, price=2.0, network_price=0.01, **asked)
    record = answer.to_dict()
    assert [p["value"] for p in record["curve"]] == sorted(p["value"] for p in record["curve"])
    dear, cheap = (record["curve"][k] for k in (-1, 0))
    hourly = 2.0 * 16 + 0.01 * 3200 * 2
    assert dear["usd_per_million_tokens"] == pytest.approx(hourly / 3600 / dear["tokens_per_s"] * 1e6)
    assert cheap["step_time_s"] >= dear["step_time_s"]
    base, better, free = record["first_question"]
    assert (base["network"], better["network"], free["network"]) == (CLUSTER.network.name, *["ethernet-25g"] * 2)
    assert (better["settles"], free["settles"]) == ("--schedule layered,modular,breadth-first --zero 1,2,3", "")
    for way in (base, better, free):
        assert "--exclude 'schedule=zb-*'" in way["command"]
        again = told(way)
        assert (way["step_time_s"], way["layout_text"]) == (again["step_time_s"], layout_text(again["layout"]))
    said = f"what the framework runs, on ethernet-25g, 8 x 25 Gb/s per node: {free['step_time_s']:.4g} s per step"
    assert said in repr(answer)
    longer = min(better["step_time_s"], free["step_time_s"]) / base["step_time_s"] - 1.0
    verdict = f"{'Yes' if longer > NEAR else 'No'}: on ethernet-25g the fastest takes {abs(longer):.1%}"
    assert f"Is the fast network needed? {verdict}" in repr(answer)
    assert "8 x 200 Gb/s per node." in repr(answer), "what is assumed is of the cluster's own network"
    assert "8 NICs per node" in repr(answer)
    assert "latency and the achieved share stay the cluster's own" in repr(answer)
    assert answer.draw().axes[0].get_xlabel() == "bandwidth (Gb/s per node)"
    late = planner.network("llama-7b", "dgx-a100-80gb", gpus=16, batch=32, along="latency", tp=1, pp=1)
    assert late.to_dict()["first_question"] == []


def told(way):
    """What a printed command answers."""
    return json.loads(CliRunner().invoke(app, [*shlex.split(way["command"])[1:], "--json"]).stdout)["best"][0]


@pytest.mark.parametrize("framework", ["torchtitan", "accelerate"])
def test_only_what_the_named_framework_runs_is_named_and_the_commands_agree(framework, tmp_path):
    """From a config.json, on another network: a printed command names the file, and the framework as it was named."""
    path = tmp_path / "own model" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps({
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    }))  # fmt: skip
    model, on = planner.Model(path, seq_len=2048), planner.Cluster("dgx-a100-80gb", network="ethernet-100g")
    record = planner.network(model, on, gpus=16, batch=64, framework=framework).to_dict()
    assert not any("zb-" in p["layout_text"] for p in record["curve"])
    base, better, free = record["first_question"]
    own = next(p for p in record["curve"] if p["value"] == 800)
    assert base["step_time_s"] >= own["step_time_s"] * (1 - 1e-9)
    for way in (base, better, free):
        assert f"recommend '{path}' --seq-len 2048 --cluster dgx-a100-80gb --network {way['network']}" in way["command"]
        assert f"--framework {framework} " in way["command"] + " "
        if way["layout_text"] is not None:
            assert (way["step_time_s"], way["layout_text"]) == (
                told(way)["step_time_s"],
                layout_text(told(way)["layout"]),
            )
    assert ("schedule is layered" in better["none"]) == (framework == "accelerate")  # it has no such schedule


PODS = planner.Cluster("dgx-a100-80gb", figures={"pod_nodes": 2})


@pytest.mark.parametrize(("changes", "error", "text"), [
    ({"gpus": 8}, InputError, "more than the 8 of one node"),
    ({"gpus": 0}, InputError, "gpus is 0"),
    ({"cluster": PODS, "along": "oversubscription"}, InputError, r"gpus is 16; allowed: more than the 16 of one pod"),
    ({"batch": 0}, InputError, "batch is 0"),
    ({"along": "width"}, UnknownNameError, "bandwidth"),
    ({"slow": "ether"}, UnknownNameError, "ethernet"),
    ({"price": -1.0}, InputError, "price is -1"),
    ({"network_price": float("nan")}, InputError, "network_price is nan"),
    ({"network_price": 0.1}, InputError, "network_price is 0.1 without a price; allowed: beside a price per GPU-hour"),
    ({"tp": 3}, LayoutError, "tp"),
    ({"max_memory_gib": 2.0}, LayoutError, "the least needs [0-9.]+ GiB per GPU, of 2.00 GiB"),
])  # fmt: skip
def test_bad_questions_are_refused_by_name(changes, error, text):
    with pytest.raises(error, match=text):
        planner.network("llama-7b", **({"cluster": "dgx-a100-80gb", "gpus": 16, "batch": 32} | changes))


def test_along_oversubscription_the_least_ratio_is_the_best():
    """Pods of one node, where nothing is said of them: all that leaves a node shares the pod's links."""
    answer = planner.network("llama-7b", "dgx-a100-80gb", gpus=32, batch=32, along="oversubscription", tp=1, pp=1)
    record = answer.to_dict()
    assert [p["value"] for p in record["curve"]] == [32.0, 16.0, 7.0, 4.0, 3.0, 2.0, 1.5, 1.0]
    assert np.all(np.diff([p["step_time_s"] for p in record["curve"]]) <= 0)
    assert record["curve"][0]["step_time_s"] > 1.05 * record["curve"][-1]["step_time_s"]
    assert (record["nodes_per_pod"], record["first_question"]) == (1, [])
    assert "the largest oversubscription within 5 % of the fastest is" in repr(answer)
