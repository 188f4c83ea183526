"""The dispatcher of experts' tokens, and how unevenly experts are loaded: what each changes, and what is legal."""

from dataclasses import replace

import numpy as np
import pytest

from planner.api.assumed import assumed
from planner.base.errors import InputError, LayoutError
from planner.costs.case import Case
from planner.costs.layer.expert_routing import dispatchers
from planner.costs.layer.layer_cost import layer_cost
from planner.costs.layer.matmul_shapes import expert_products
from planner.costs.network.traffic import layer_traffic
from planner.hardware import load_framework
from planner.layouts import Dispatcher
from planner.question import load_setup, one_layout
from planner.step.estimate import estimate
from planner.step.legality import first_broken

BASE = {"dp": 64, "pp": 1, "ep": 32, "global_batch": 512, "micro_batch": 2}


def question(model="qwen3-30b-a3b", cluster="dgx-h100", framework="megatron-core", **more):
    setup = load_setup(model, cluster, framework=framework)
    return setup, one_layout(setup.cluster, **BASE | more)


def steps(**more):
    setup, layouts = question(**more)
    assert first_broken(setup.model, setup.cluster, layouts) == [""]
    return float(estimate(setup, layouts).step_time_s[0])


@pytest.mark.parametrize("name", ["deepep", "hybridep"])
def test_a_named_dispatcher_is_that_of_the_framework_that_has_it(name):
    """Of profiles that differ in the dispatch alone."""
    core = replace(load_framework("megatron-core"), flex_dispatch=False)
    nodes = replace(core, node_dispatch=True)
    setup, layouts = question()
    setup = replace(setup, framework=core)
    _, named = question(dispatcher=name)
    _, plain = question(dispatcher="alltoall")
    one = estimate(replace(setup, framework=nodes), layouts)
    assert estimate(setup, named).step_time_s == one.step_time_s
    assert estimate(replace(setup, framework=nodes), plain).step_time_s == estimate(setup, layouts).step_time_s
    assert one.step_time_s < estimate(setup, layouts).step_time_s
    table = type(layouts).concatenate([layouts, named, plain])
    both = estimate(setup, table).step_time_s
    assert both.tolist() == [estimate(setup, x).step_time_s[0] for x in (layouts, named, plain)]


def test_deepep_s_kernels_inside_a_node_are_slower_than_hybridep_s_links():
    """Of 8 ranks a token of 8 copies reaches 8 (1 - (7/8)^8) = 5.25, whose bytes come at 290 GB/s."""
    inside, between = ([question(ep=n, dispatcher=name) for name in ("deepep", "hybridep")] for n in (8, 32))
    slow, fast = (layer_traffic(Case.of(*one)).expert_forward_s[0] for one in inside)
    token_bytes = 2 * 4096 * 2048 * 2.0
    assert slow == pytest.approx(2 * token_bytes * 8 * (1 - (7 / 8) ** 8) / 290e9)
    assert fast < slow
    first_s, second_s = (layer_traffic(Case.of(*one)).expert_forward_s[0] for one in between)
    assert first_s == second_s


def test_the_busiest_rank_has_so_many_more_tokens():
    setup, even = question()
    _, busy = question(expert_imbalance=1.5)
    one, more = (Case.of(setup, x) for x in (even, busy))
    for (rows, *_), (most, *_) in zip(expert_products(one), expert_products(more), strict=True):
        assert most == pytest.approx(1.5 * rows)
    assert layer_traffic(more).expert_forward_s == pytest.approx(1.5 * layer_traffic(one).expert_forward_s)
    # Attention does not change, nor do the products that all tokens meet.
    assert layer_cost(more).forward_attention_s == layer_cost(one).forward_attention_s
    assert layer_cost(one).forward_s < layer_cost(more).forward_s < 1.5 * layer_cost(one).forward_s
    closed, larger = estimate(setup, even), estimate(setup, busy)
    # Experts' inputs, inner elements and outputs of each layer: of a token's 8 copies half as many again.
    assert larger.memory.activations_bytes > closed.memory.activations_bytes
    assert larger.memory.activations_bytes < 1.5 * closed.memory.activations_bytes
    assert larger.memory.parameters_bytes == closed.memory.parameters_bytes
    assert larger.model_flop == closed.model_flop


def test_saved_activations_of_the_busiest_experts_by_hand():
    """Without recomputation a copy keeps its input and, gated, the inner elements: all of it grows.

    By the root of the number of layers less than in one of them, for another rank is each one's busiest.
    """
    setup, even = question(micro_batch=1)
    added = []
    for x in (2.0, 3.0):
        _, busy = question(micro_batch=1, expert_imbalance=x)
        added.append(estimate(setup, busy).memory.activations_bytes - estimate(setup, even).memory.activations_bytes)
    assert added[1] == pytest.approx(2 * added[0], rel=1e-9)
    model = setup.model
    tokens, copies = model.seq_len, model.top_k
    inner = (3 * 2 + 2) * model.moe_ffn  # gate, up and activated gate, and the next product's input
    kept = 2 * model.hidden  # a copy's input; outputs are weighed before the second product
    slack = 1 + setup.framework.fragmentation
    expected = model.num_layers * tokens * copies * (inner + kept) * slack
    less = model.num_layers * tokens * copies * 2 * model.moe_ffn * (4 - setup.framework.gate_tensors) * slack
    assert added[0][0] == pytest.approx((expected - less) / np.sqrt(model.num_layers), rel=1e-9)


RULES = [
    ({"dispatcher": "hybridep", "ep": 32, "micro_batch": 8}, "fewer than 21,845 tokens per rank"),
    ({"dispatcher": "hybridep", "ep": 32, "micro_batch": 4}, ""),
    ({"dispatcher": "hybridep", "ep": 8, "micro_batch": 8}, ""),  # in one NVLink domain
    ({"dispatcher": "deepep", "ep": 32, "micro_batch": 8}, ""),
    ({"dispatcher": "deepep", "model": "deepseek-v3", "dp": 256, "ep": 256}, "settings for groups, ep * etp, of 2, 4,"),
    ({"dispatcher": "deepep", "cluster": "gb200-nvl72"}, "deepep does not run on racks"),
    ({"dispatcher": "hybridep", "cluster": "gb200-nvl72", "micro_batch": 8}, ""),
    ({"dispatcher": "deepep", "cluster": "dgx-b300"}, ""),
    ({"dispatcher": "hybridep", "cluster": "gb300-nvl72"}, ""),
    ({"dispatcher": "deepep", "cluster": "mi300x-server"}, "run on Ampere, Hopper and Blackwell"),
    ({"dispatcher": "deepep", "model": "llama3-8b", "ep": 1}, "need experts"),
    ({"expert_imbalance": 1.2, "model": "llama3-8b", "ep": 1}, "need experts"),
    ({"expert_imbalance": 33.0}, "must not exceed ep"),
]


@pytest.mark.parametrize(("said", "rule"), RULES, ids=[str(said) for said, _ in RULES])
def test_rules(said, rule):
    setup, layouts = question(**said)
    broken = first_broken(setup.model, setup.cluster, layouts)[0]
    assert rule in broken
    assert bool(broken) == bool(rule)


@pytest.mark.parametrize("wrong", [0.5, 65, float("nan"), "much", True])
def test_imbalance_out_of_range(wrong):
    with pytest.raises(InputError, match=r"expert_imbalance is .*; allowed: a number from 1 to 64"):
        question(expert_imbalance=wrong)


def test_a_search_has_the_dispatcher_and_the_load_that_were_asked_for():
    import planner

    asked = {"model": "qwen3-30b-a3b", "cluster": "dgx-h100", "gpus": 16, "batch": 64}
    even = planner.recommend(**asked)
    busy = planner.recommend(**asked, expert_imbalance=1.5, dispatcher="hybridep")
    assert {one.layout["dispatcher"] for one in busy} == {"hybridep"}
    assert {one.layout["expert_imbalance"] for one in busy} == {1.5}
    assert {one.layout["expert_imbalance"] for one in even} == {1.0}
    assert any("1.5 of the mean" in phrase for phrase in busy[0].assumed)
    table = busy.found.estimate.layouts
    assert np.all(table.dispatcher == Dispatcher.HYBRIDEP)


@pytest.mark.parametrize(
    ("model", "said", "message"),
    [
        (
            "gpt2",
            {"dispatcher": "hybridep"},
            "and dispatcher hybridep: dispatcher, expert_imbalance and capacity_factor need experts; leave",
        ),
        ("mixtral-8x7b", {"expert_imbalance": 20.0}, "and expert_imbalance 20.0: expert_imbalance must not exceed ep"),
    ],
)
def test_a_search_without_a_layout_names_what_was_asked_for_all_of_it(model, said, message):
    import planner

    with pytest.raises(LayoutError, match=message):
        planner.recommend(model, "dgx-h100", gpus=16, batch=64, **said)


def dispatcher(more=None, **asked):
    setup, layouts = question(**asked)
    return Dispatcher(int(dispatchers(Case.of(replace(setup, **(more or {})), layouts))[0])).name.lower()


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        ({}, "deepep"),
        ({"dispatcher": "alltoall"}, "alltoall"),
        ({"framework": "megatron-bridge-alltoall"}, "alltoall"),
        ({"framework": "megatron-core-deepep"}, "deepep"),
        ({"framework": "megatron-core-deepep", "cluster": "gb200-nvl72"}, "hybridep"),
        ({"framework": "megatron-lm"}, "alltoall"),
        ({"cluster": "a100-roce"}, "alltoall"),  # its recipes are older than the dispatcher
        ({"cluster": "gb200-nvl72"}, "hybridep"),
        ({"cluster": "aws-p5"}, "alltoall"),  # EFA's sends are the hosts'
        ({"ep": 1}, "alltoall"),  # nothing to send
        ({"capacity_factor": 1.25}, "alltoall"),
        ({"micro_batch": 8}, "deepep"),
        ({"cluster": "dgx-b200"}, "deepep"),
        ({"cluster": "dgx-b300"}, "deepep"),
        ({"cluster": "gb300-nvl72"}, "hybridep"),
        ({"micro_batch": 8, "cluster": "gb200-nvl72"}, "hybridep"),  # within a rack
        ({"model": "deepseek-v3", "dp": 256, "ep": 256}, "alltoall"),  # DeepEP has settings for up to 160
        ({"model": "deepseek-v3", "dp": 256, "ep": 256, "framework": "megatron-core-deepep"}, "alltoall"),
        (
            {"micro_batch": 8, "cluster": "gb200-nvl72", "dp": 512, "ep": 128, "global_batch": 4096},
            "alltoall",
        ),  # too many for InfiniBand
    ],
)
def test_the_usual_dispatcher_is_that_of_public_recipes_where_it_is_legal(asked, taken):
    assert dispatcher(**asked) == taken
    setup, layouts = question(**(asked | {"dispatcher": taken}))
    assert first_broken(setup.model, setup.cluster, layouts) == [""]
    _, own = question(**asked)
    assert estimate(setup, own).step_time_s == estimate(setup, layouts).step_time_s


def test_the_flex_dispatcher_needs_ranks_to_exchange_with():
    setup, layouts = question(ep=1, dispatcher="deepep")
    assert "ep * etp greater than 1" in first_broken(setup.model, setup.cluster, layouts)[0]


def test_the_answer_says_which_dispatcher_it_took():
    setup, layouts = question()
    assert "tokens to experts by DeepEP, a copy to each node (usual on this hardware)" in assumed(setup, layouts)
    setup, layouts = question(dispatcher="alltoall")
    assert "tokens to experts by plain all-to-all (as asked)" in assumed(setup, layouts)
