"""Sharded states in several copies, each over neighbours: bytes and seconds by hand, as in `test_traffic_by_hand`.

Eight data ranks on two nodes of four: with two copies each node has one. Rings get 5 B/s inside a node and start in
4 s; two ranks in two nodes get 0.75 B/s and start in 11 s.
"""

from dataclasses import replace

import pytest

from planner.costs.memory.bytes_per_parameter import accumulated_bytes
from planner.costs.network.data_parallel import data_traffic, gather_pieces
from planner.costs.network.groups import groups
from planner.costs.network.traffic import layer_traffic, traffic
from planner.costs.optimizer import offloaded_bytes
from planner.costs.parameters import RankParts, state_parameters
from planner.hardware import load_cluster, load_framework
from planner.layouts import Layouts
from planner.models import load_model
from planner.models.counts import total_params
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.legality import first_broken
from tests.costs.toy import BYTES, CLUSTER, FRAMEWORK, GPT, LLAMA, MOE, case, device, layout, own

TWO = {"dp": 8, "dp_replicate": 2}
GATHER = 2000 * 3 / 4 / 5 + 4  # of 1,000 parameters, in a node
SCATTER = 4000 * 3 / 4 / 5 + 4


def between(size):
    """Seconds in which two ranks on two nodes sum so many bytes."""
    return 2 * (size / 2 / 0.75 + 11)


def in_all(params=1000.0, experts=0.0, **choices):
    found = data_traffic(case(layouts=layout(**choices)), own(params, experts))
    return [float(x[0]) for x in found[:2]]


def test_groups_of_copies():
    by = groups(CLUSTER, layout(tp=2, dp=8, ep=2, dp_replicate=4))
    sizes = {name: (float(by[name].ranks[0]), float(by[name].local[0])) for name in ("data", "replica")}
    assert sizes == {"data": (2, 2), "replica": (4, 1)}
    # An expert's four replicas, two apart, are four copies of one part each.
    assert [float(by[name].ranks[0]) for name in ("expert_data", "expert_replica")] == [1, 4]


def test_as_many_copies_as_replicas_shard_over_the_sequence_group():
    """InternEvo's ISP (Chen et al. 2024, arXiv 2401.09149): parameters are gathered over the ranks of a sequence alone.

    Of 1,000 parameters on four context ranks, neighbours in a node, each gather takes 2,000 B x 3/4 at 5 B/s and 4 s.
    """
    isp = layout(dp=2, cp=4, dp_replicate=2, zero=3)
    by = groups(CLUSTER, isp)
    assert (by["data"].ranks.tolist(), by["data"].local.tolist()) == ([4], [4]) == (
        by["context"].ranks.tolist(), by["context"].local.tolist(),
    )  # fmt: skip
    found = traffic(case(layouts=isp), layer_traffic(case(layouts=isp)), own(1000.0))
    assert float(found.layer_gather_s[0]) == pytest.approx(GATHER)
    # Gradients are scattered there, and their quarters summed over the two copies, on two nodes.
    assert float(found.layer_reduce_s[0]) == pytest.approx(SCATTER + between(1000))
    rank = RankParts(model=GPT, layouts=isp).rank(2.0, True, True)
    assert float(state_parameters(rank, isp, 3)[0]) == float(rank.total[0]) / 4


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_states_are_sharded_over_one_copy_s_ranks(zero):
    own = RankParts(model=GPT, layouts=layout(**TWO)).rank(2.0, True, True)
    once, twice = (
        [float(state_parameters(own, layout(zero=zero, dp=8, dp_replicate=n), stage)[0]) for stage in (1, 2, 3)]
        for n in (1, 2)
    )
    whole = float(own.total[0])
    assert once == [whole / 8 if zero >= stage else whole for stage in (1, 2, 3)]
    assert twice == [whole / 4 if zero >= stage else whole for stage in (1, 2, 3)]
    added = [float(accumulated_bytes(case(layouts=layout(zero=zero, dp=8, dp_replicate=n)))[0]) for n in (1, 2)]
    assert added[1] == (2 if zero >= 2 else 1) * added[0]


def test_experts_are_sharded_over_their_own_part_of_a_copy():
    """Eight replicas, experts in two: four of each expert, two to a copy."""
    chosen = layout(zero=3, ep=2, **TWO)
    own = RankParts(model=MOE, layouts=chosen).rank(2.0, False, False)
    assert float(state_parameters(own, chosen, 3)[0]) == float(own.dense[0]) / 4 + float(own.experts[0]) / 2


def test_gradients_are_summed_inside_a_copy_and_then_over_copies():
    """A quarter of 4,000 B of gradients goes between the nodes; parameters are gathered inside them."""
    assert in_all(zero=1, **TWO) == pytest.approx([SCATTER + between(1000), GATHER])
    assert in_all(zero=2, **TWO) == pytest.approx([SCATTER + between(1000), GATHER])
    assert in_all(zero=3, **TWO) == [0.0, 0.0]
    assert in_all(zero=1, dp=8) == pytest.approx([4000 * 7 / 8 / 3 + 9.5, 2000 * 7 / 8 / 3 + 9.5])


def test_experts_gradients_over_copies():
    """600 parameters over four ranks and two copies, 400 of experts over two ranks, two apart, and two copies."""
    dense = 600 * 4 * 3 / 4 / 5 + 4 + between(600)
    sparse = 400 * 4 / 2 / 5 + 2 + between(800)
    assert in_all(experts=0.4, zero=1, ep=2, **TWO)[0] == pytest.approx(dense + sparse)


def test_zero_3_gathers_inside_a_copy():
    chosen = layout(zero=3, **TWO)
    d = device(BYTES, chosen)
    layer = layer_traffic(case(d, LLAMA, chosen))
    found = traffic(case(d, LLAMA, chosen), layer, own(1000.0))
    assert float(found.layer_gather_s[0]) == pytest.approx(GATHER)
    assert float(found.layer_reduce_s[0]) == pytest.approx(SCATTER + between(1000))
    # Embedding and head: 8,192 B gathered, 16,384 B of gradients.
    ends = 8192 * 3 / 4 / 5 + 4 + 16384 * 3 / 4 / 5 + 4 + between(4096)
    assert float(found.ends_sharding_s[0]) == pytest.approx(ends)


def test_a_piece_for_each_rank_of_a_copy():
    assert gather_pieces(case(model=GPT, layouts=layout(zero=1, **TWO)), 2.0).tolist() == [(2 * 6 + 3) * 4]


def test_offloaded_states_are_on_the_hosts_once_a_copy():
    chosen = layout(zero=1, offload_optimizer=True, **TWO)
    assert offloaded_bytes(GPT, chosen, 1).tolist() == [2 * 16 * int(total_params(GPT))]
    assert offloaded_bytes(GPT, chosen, 2).tolist() == [4 * 16 * int(total_params(GPT))]


@pytest.mark.parametrize(
    ("choices", "wrong"),
    [
        ({"dp": 8, "dp_replicate": 2}, False),
        ({"dp": 8, "dp_replicate": 2, "zero": 0}, True),
        ({"dp": 8, "dp_replicate": 3}, True),
        ({"dp": 8, "dp_replicate": 0}, True),
        ({"dp": 4, "cp": 2, "dp_replicate": 8}, True),
        ({"dp": 8, "ep": 2, "dp_replicate": 4}, False),
        ({"dp": 8, "ep": 4, "dp_replicate": 4}, True),  # an expert has two replicas
    ],
)
def test_legal_copies(choices, wrong):
    table = Layouts.of(global_batch=64, attention=3, **({"zero": 1} | choices))
    text = first_broken(MOE, CLUSTER, table)[0]
    assert text.startswith("dp_replicate must be 1 without ZeRO") == wrong


def test_a_copy_in_each_node_helps_where_the_network_is_slow():
    """LLaMA 7B under FSDP on 16 nodes with 100 Gb/s each: gathers inside a node, at the price of memory."""
    cluster = load_cluster("aws-p4d", network="ethernet-25g-rdma")
    table = Layouts.of(dp=128, zero=3, dp_replicate=[1, 16], global_batch=128, recompute=2)
    found = estimate(Setup(load_model("llama2-7b"), cluster, load_framework("fsdp")), table)
    assert found.step_time_s[1] < 0.9 * found.step_time_s[0]
    assert found.memory_bytes[1] > 2 * found.memory_bytes[0]


def test_what_copies_take_from_compute():
    """As if the network were no slower, but with a start there: half of 1,000 B twice through links of 5 B/s."""
    chosen = layout(zero=3, **TWO)
    d = device(BYTES, chosen)
    layer = layer_traffic(case(d, LLAMA, chosen))
    found = traffic(case(d, LLAMA, chosen), layer, own(1000.0))
    assert float(found.layer_gather_taken_s[0]) == pytest.approx(2000 * 3 / 4 / 5)
    assert float(found.layer_reduce_taken_s[0]) == pytest.approx(4000 * 3 / 4 / 5 + 2 * (1000 / 2 / 5 + 10))
    for overlap in (0.0, 0.6, 1.0):
        of = case(layouts=layout(zero=1, dp=8), framework=replace(FRAMEWORK, overlap_param_gather=overlap))
        _, gather, taken = data_traffic(of, own(1000.0))
        # A share of what its bytes take of the links, and the ring's steps whole.
        want = 2000 * 7 / 8 / 3 + 9.5, (1.0 - overlap) * 2000 * 7 / 8 / 5 + 5.5
        assert (float(gather[0]), float(taken[0])) == pytest.approx(want)
