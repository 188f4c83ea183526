"""Rings of context ranks in an outer ring over nodes: seconds by hand, what is legal, memory, search, frameworks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner import Cluster, Model, estimate, recommend
from planner.base.errors import InputError, LayoutError
from planner.costs.case import Case
from planner.costs.network.groups import RINGS, groups
from planner.costs.network.traffic import context_s
from planner.hardware import load_cluster, load_framework
from planner.layouts import Layouts
from planner.models import load_model
from planner.setup import Setup

LONG = {"model": Model("llama2-7b", seq_len=65536), "cluster": Cluster("dgx-h100"), "batch": 4}


def seconds(nic: float, **choices: int) -> float:
    """Keys and values forward, on node links of 10 GB/s and a NIC of so many GB/s for each of a node's 8 GPUs."""
    cluster = load_cluster("dgx-h100")

    def link(of, rate):
        return replace(of, bandwidth_bytes_per_s=rate, latency_s=0.0, fraction=1.0, send_fraction=1.0, ring_step_s=0.0,
                       small_fraction=None, small_latency_s=None)  # fmt: skip

    cluster = replace(cluster, node_link=link(cluster.node_link, 1e10), network=link(cluster.network, nic * 1e9))
    layouts = Layouts.of(global_batch=8, micro_batch=1, **choices)
    case = Case.of(Setup(load_model("llama3-8b"), cluster, load_framework("megatron-core")), layouts)
    return float(context_s(case, groups(cluster, layouts, ("context", *RINGS)))[0][0])


def test_every_nic_of_a_node_sends_once_a_turn_beside_the_inner_rings():
    """Gu et al. 2024 (LoongTrain, arXiv 2406.18485): 8,192 tokens, 8 key heads of 128 and as many values, 2 bytes."""
    part = 8192 * 8 * 256 * 2 / 16
    # One ring over two nodes: all 15 hops wait for the one between nodes, by one NIC.
    assert seconds(nic=1, cp=16) == pytest.approx(15 * part / 1e9)
    # Two turns of 7 hops inside a node, beside one hop to the other node from each GPU's own NIC.
    assert seconds(nic=1, cp=16, inner_ring=8) == pytest.approx(2 * 7 * part / 1e10)
    assert seconds(nic=0.1, cp=16, inner_ring=8) == pytest.approx(part / 1e8)
    # Inner rings of 4, two to a node: the outer ring of 4 crosses nodes in each of its 3 hops.
    assert seconds(nic=0.1, cp=16, inner_ring=4) == pytest.approx(3 * part / 1e8)
    # Pairs that exchanged heads pass half of them around.
    assert seconds(nic=0.1, cp=32, ulysses=2, inner_ring=4) == pytest.approx(3 * part / 2 / 1e8)
    # Inside a node both rings turn at the links' rate.
    assert seconds(nic=1, cp=8, inner_ring=4) == pytest.approx(2 * 3 * (2 * part) / 1e10)


@pytest.mark.parametrize(
    ("choices", "allowed"),
    [
        ({"cp": 16, "inner_ring": 8}, True),
        ({"cp": 16, "inner_ring": 2}, True),
        ({"cp": 16, "ulysses": 2, "inner_ring": 4}, True),
        ({"cp": 16, "inner_ring": 16}, False),
        ({"cp": 16, "inner_ring": 3}, False),
        ({"cp": 16, "ulysses": 2, "inner_ring": 8}, False),
        ({"inner_ring": 2}, False),
    ],
)
def test_what_is_legal(choices, allowed):
    question = LONG | choices | {"recompute": "full"}
    if allowed:
        assert estimate(**question).layout["inner_ring"] == choices["inner_ring"]
    else:
        with pytest.raises(LayoutError, match="inner_ring must divide cp / ulysses, and be less"):
            estimate(**question)


def test_memory_has_the_next_rings_keys_values_and_gradients():
    one, rings = (estimate(**LONG, cp=16, recompute="full", inner_ring=n) for n in (1, 8))
    more = (rings.memory_gib - one.memory_gib) * 2**30
    both = 2 * 65536 / 16 * 4096 * 2  # keys and values of a rank's tokens, 2 bytes; with fragmentation
    assert 2 * both <= more <= 2.2 * both


def test_a_search_finds_them_where_a_ring_over_nodes_outlasts_attention():
    found = recommend(**LONG, gpus=16, tp=1, pp=1, cp=16, ulysses=1, inner_ring=[1, 2, 4, 8])
    one = recommend(**LONG, gpus=16, tp=1, pp=1, cp=16, ulysses=1)
    assert found.best.layout["inner_ring"] == 8
    assert one.best.layout["inner_ring"] == 1
    assert found.best.step_time_s < one.best.step_time_s / 2


def test_frameworks_have_one_ring_or_gather_keys():
    with pytest.raises(InputError, match="inner_ring is 8; allowed: 1 with torchtitan, whose context ranks gather"):
        estimate(**LONG, cp=16, inner_ring=8, framework="torchtitan")
    plan = estimate(**LONG, cp=16, inner_ring=8, recompute="full")
    assert "inner_ring 8: its context ranks have one ring; exported as inner_ring 1" in plan.export("megatron").text
    with pytest.raises(LayoutError, match="inner_ring is 8; allowed on Megatron-LM: 1"):
        recommend(**LONG, gpus=16, cp=16, inner_ring=8, framework="megatron")
