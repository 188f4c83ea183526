"""Seconds on the wire, worked out by hand on a cluster of 4 accelerators per node and links of a few bytes per second.

Rings get 5 B/s inside a node and 3 B/s between nodes; sends 2 B/s and 0.375 B/s. A pass around a ring starts with 1 s
for each member in the node, its launch counted, and 10 s each time the nodes double; an all-reduce is two passes.
"""

from dataclasses import replace

import numpy as np
import pytest

from planner.costs.network.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    dispatch_s,
    hop,
    reduce_scatter_s,
    send_s,
)
from planner.costs.network.data_parallel import data_traffic, gather_pieces
from planner.costs.network.groups import groups, place
from planner.costs.network.traffic import layer_traffic, traffic
from planner.costs.placement import node_ranks
from planner.layouts import Layouts, Precision, Recompute
from planner.setup import Setup
from planner.step.step_costs import step_costs
from tests.costs.toy import BYTES, CLUSTER, FRAMEWORK, GPT, LLAMA, MLA, MOE, case, device, layout, own


def first(x):
    return float(np.ravel(x)[0])


@pytest.mark.parametrize(
    ("ranks", "stride", "local", "bandwidth", "tree_s", "ring_s"),
    [
        (8, 1, 4, 3.0, 4 + 10, 4 + 3 * 0.5 + 4),  # two whole nodes: both NICs are the ring's, 2 x 1.5 B/s
        (2, 2, 2, 5.0, 2, 2),  # inside a node
        (4, 2, 2, 1.5, 2 + 10, 2 + 0.5 + 4),  # every second rank of two nodes: half of the NICs
        (2, 4, 1, 0.75, 1 + 10, 1 + 4),  # one rank a node
        (4, 8, 1, 0.75, 1 + 20, 1 + 3 * 4),  # one in every second node: four nodes
        (1, 1, 1, 5.0, 1, 1),
    ],
)
def test_a_group_on_its_nodes(ranks, stride, local, bandwidth, tree_s, ring_s):
    """An all-reduce starts as a tree over nodes, a gather as a ring through them."""
    group = place(CLUSTER, np.array([ranks]), np.array([stride]))
    assert [first(x) for x in (group.ranks, group.local, group.bandwidth_bytes_per_s)] == [ranks, local, bandwidth]
    share = (ranks - 1) / ranks
    alone = ranks == 1
    assert first(group.latency_s) == (0.0 if alone else local)
    assert first(all_gather_s(group, 24.0)) == pytest.approx(0 if alone else 24 * share / bandwidth + ring_s)
    assert first(all_reduce_s(group, 24.0)) == pytest.approx(0 if alone else 48 * share / bandwidth + 2 * tree_s)


def test_a_ring_in_a_node_of_slow_links_is_bound_by_them():
    slow = replace(CLUSTER, node_link=replace(CLUSTER.node_link, bandwidth_bytes_per_s=1.0))
    assert first(place(slow, np.array([8]), np.array([1])).bandwidth_bytes_per_s) == 0.5


def test_small_messages_start_sooner_and_travel_slower_inside_a_node():
    """1.5 s and three steps of 0.5 at 1 B/s, or four of 1 s at 5 B/s: of 1 B the first, of 24 the second.

    A pass moves three quarters. Through two nodes rings alone.
    """
    link = replace(CLUSTER.node_link, small_latency_s=1.5, small_fraction=0.1)
    small = replace(CLUSTER, node_link=link)
    inside, plain = (place(c, np.array([4]), np.array([1])) for c in (small, CLUSTER))
    assert first(all_gather_s(inside, 1.0)) == 1.5 + 3 * 0.5 + 0.75
    assert first(all_reduce_s(inside, 1.0)) == 2 * (1.5 + 3 * 0.5 + 0.75)
    assert first(all_gather_s(inside, 24.0)) == first(all_gather_s(plain, 24.0)) == 4 + 18 / 5
    across = [place(c, np.array([8]), np.array([1])) for c in (small, CLUSTER)]
    assert first(all_reduce_s(across[0], 0.5)) == first(all_reduce_s(across[1], 0.5))
    alone = place(small, np.array([1]), np.array([1]))
    assert first(all_gather_s(alone, 1.0)) == 0


def test_switches_of_a_node_sum_what_each_sends_once():
    """3 s and 24 B at 4 B/s, where rings take 2 x (4 + 18 / 5) s; rings where those are sooner, and between nodes."""
    summing = replace(CLUSTER, node_link=replace(CLUSTER.node_link, sum_latency_s=3.0, sum_fraction=0.4))
    inside, across, plain = (
        place(c, np.array([n]), np.array([1])) for c, n in ((summing, 4), (summing, 8), (CLUSTER, 8))
    )
    assert first(all_reduce_s(inside, 24.0)) == 3 + 24 / 4
    assert first(all_gather_s(inside, 24.0)) == 4 + 18 / 5
    assert first(all_reduce_s(across, 24.0)) == first(all_reduce_s(plain, 24.0))
    slow = replace(summing, node_link=replace(summing.node_link, sum_latency_s=10.0))
    assert first(all_reduce_s(place(slow, np.array([4]), np.array([1])), 24.0)) == 2 * (4 + 18 / 5)
    assert first(all_reduce_s(place(summing, np.array([1]), np.array([1])), 24.0)) == 0


def test_all_to_all_takes_the_slower_of_node_and_network():
    """Sends of 2 B/s in a node, and 0.375 B/s per rank between nodes: half of two NICs' 3 B/s, four ranks' share."""
    across = place(CLUSTER, np.array([8]), np.array([1]))
    # Of 24 B a rank, 12 leave the node.
    assert first(all_to_all_s(across, 24.0)) == pytest.approx(12 / 0.375 + 14)
    inside = place(CLUSTER, np.array([4]), np.array([1]))
    assert first(all_to_all_s(inside, 24.0)) == pytest.approx(24 * 3 / 4 / 2 + 4)
    quick = replace(CLUSTER, network=replace(CLUSTER.network, bandwidth_bytes_per_s=1e9))
    assert first(all_to_all_s(place(quick, np.array([8]), np.array([1])), 24.0)) == pytest.approx(24 * 3 / 8 / 2 + 14)
    assert first(all_to_all_s(place(CLUSTER, np.array([1]), np.array([1])), 24.0)) == 0.0


def test_dispatch_sends_one_copy_to_a_node_that_passes_it_on():
    """6 B of tokens, each to 3 of 8 ranks on 1.5 of 2 nodes: half of those nodes are another, three of four ranks."""
    across = place(CLUSTER, np.array([8]), np.array([1]))
    assert first(dispatch_s(across, 6.0, 3.0, 1.5)) == pytest.approx(6 * 0.75 / 0.375 + 14)
    quick = replace(CLUSTER, network=replace(CLUSTER.network, bandwidth_bytes_per_s=1e9))
    assert first(dispatch_s(place(quick, np.array([8]), np.array([1])), 6.0, 3.0, 1.5)) == pytest.approx(
        6 * 3 * 3 / 4 / 2 + 14
    )
    inside = place(CLUSTER, np.array([4]), np.array([1]))
    assert first(dispatch_s(inside, 6.0, 2.0, 1.0)) == pytest.approx(6 * 2 * 3 / 4 / 2 + 4)
    # To every rank, as an all-to-all with a copy for each.
    assert first(dispatch_s(inside, 6.0, 4.0, 1.0)) == pytest.approx(first(all_to_all_s(inside, 24.0)))
    assert first(dispatch_s(place(CLUSTER, np.array([1]), np.array([1])), 6.0, 1.0, 1.0)) == 0.0
    # A kernel that brings 0.5 B/s of all tokens, its own too; between nodes it is another kernel.
    assert first(dispatch_s(inside, 6.0, 2.0, 1.0, 0.5)) == pytest.approx(6 * 2 / 0.5)
    assert first(dispatch_s(inside, 6.0, 2.0, 1.0, 2.0)) == pytest.approx(6 * 2 * 3 / 4 / 2 + 4)
    assert first(dispatch_s(across, 6.0, 3.0, 1.5, 0.5)) == pytest.approx(6 * 0.75 / 0.375 + 14)
    assert first(dispatch_s(place(CLUSTER, np.array([1]), np.array([1])), 6.0, 1.0, 1.0, 0.5)) == 0.0


def test_groups_of_a_layout():
    by = groups(CLUSTER, layout(dp=4, tp=2, cp=2, ep=4))
    sizes = {"tensor": (2, 2), "context": (2, 2), "data": (8, 2), "expert": (4, 2), "expert_data": (2, 1)}
    sizes |= {"ulysses": (1, 1), "replica": (1, 1), "expert_replica": (1, 1)}
    assert {name: (first(g.ranks), first(g.local)) for name, g in by.items()} == sizes


def test_sends_between_stages():
    """8 B whole, 4 B a tensor rank, gathered again inside the node without sequence parallelism: 8 / 2 / 5 + 2."""
    gather = 8 / 2 / 5 + 2

    def seconds(**choices):
        return first(send_s(CLUSTER, layout(**choices), 8.0))

    assert seconds(pp=2, tp=2) == pytest.approx(4 / 2 + 1 + gather)
    assert seconds(pp=2, tp=2, sequence_parallel=True) == pytest.approx(4 / 2 + 1)
    assert seconds(pp=2, tp=2, dp=2, sequence_parallel=True) == pytest.approx(4 / 0.375 + 10)
    # A framework whose tensor ranks each send all of it needs no gather.
    assert first(send_s(CLUSTER, layout(pp=2, tp=2), 8.0, whole=True)) == pytest.approx(8 / 2 + 1)
    shared = layout(pp=2, tp=2, sequence_parallel=True)
    assert first(send_s(CLUSTER, shared, 8.0, whole=True)) == pytest.approx(4 / 2 + 1)
    assert seconds(pp=2, cp=4) == pytest.approx(8 / 0.375 + 10)
    assert seconds(tp=2) == 0.0


def within(model=GPT, framework=FRAMEWORK, **choices):
    chosen = layout(**choices)
    return layer_traffic(case(BYTES, model, chosen, framework=framework))


def test_tensor_parallel_collectives():
    """48 tokens of 8 in two bytes: 768 B; an all-reduce over two ranks takes 768 / 5 + 4 s, two a direction."""
    once = 768 / 5 + 4
    base = within(tp=2)
    assert [first(base.layer_forward_s), first(base.layer_backward_s)] == pytest.approx([2 * once, 2 * once])
    again = within(tp=2, recompute=Recompute.FULL)
    assert [first(again.layer_forward_s), first(again.layer_backward_s)] == pytest.approx([2 * once, 4 * once])
    selective = within(tp=2, recompute=Recompute.SELECTIVE)
    assert first(selective.layer_backward_s) == pytest.approx(2 * once)
    sliced = within(tp=2, sequence_slices=2)
    assert first(sliced.layer_forward_s) == pytest.approx(2 * 2 * (384 / 5 + 4))
    assert first(within(tp=2, precision=Precision.FP32).layer_forward_s) == pytest.approx(2 * (1536 / 5 + 4))
    # In fp8 what sequence parallelism gathers is a byte an element, what it scatters two; an all-reduce has no gather.
    fp8 = {"tp": 2, "precision": Precision.FP8}
    assert first(within(**fp8, sequence_parallel=True).layer_forward_s) == pytest.approx(2 * (0.75 * 768 / 5 + 4))
    assert first(within(**fp8).layer_forward_s) == pytest.approx(2 * (768 / 5 + 4))
    # Embedding and head: two of 768 B; the loss: three of a 4-byte number a token.
    assert first(base.ends_s) == pytest.approx(2 * once + 3 * (192 / 5 + 4))
    assert first(sliced.ends_s) == pytest.approx(2 * (2 * (384 / 5 + 4) + 3 * (96 / 5 + 4)))
    assert first(within().layer_forward_s) == first(within().ends_s) == 0.0


def test_gate_and_up_may_sum_their_input_s_gradient_one_by_one():
    """Three all-reduces backward instead of two, where the MLP is gated and no sequence is split."""
    once = 768 / 5 + 4
    apart = replace(FRAMEWORK, gate_reduces=1.0)

    def seconds(model, **choices):
        return first(within(model, apart, **choices).layer_backward_s)

    assert seconds(LLAMA, tp=2) == pytest.approx(3 * once)
    assert seconds(LLAMA, tp=2, recompute=Recompute.FULL) == pytest.approx(5 * once)
    assert seconds(LLAMA, tp=2, sequence_parallel=True) == seconds(GPT, tp=2) == pytest.approx(2 * once)
    assert seconds(LLAMA) == 0.0


def test_products_may_gather_their_input_one_by_one():
    """Queries, keys and values three times, gate and up twice: three more gathers and sums; compiled, sums alone.

    A gather or a scatter of 768 bytes to two ranks is half of an all-reduce.
    """
    half, own = (768 / 5 + 4) / 2, replace(FRAMEWORK, apart_inputs=True)

    def seconds(model, framework=own, **choices):
        one = within(model, framework, tp=2, **choices)
        return [first(one.layer_forward_s) / half, first(one.layer_backward_s) / half]

    assert seconds(LLAMA, sequence_parallel=True) == pytest.approx([4 + 3, 4 + 3])
    assert seconds(GPT, sequence_parallel=True) == pytest.approx([4 + 2, 4 + 2])
    assert seconds(LLAMA, replace(own, compiled_layers=True), sequence_parallel=True) == pytest.approx([4, 4 + 3])
    assert seconds(LLAMA) == pytest.approx([4, 4 + 2 * 3])


def test_logits_that_are_gathered():
    """48 tokens of 256 columns in two bytes."""
    gathers = replace(FRAMEWORK, gathered_logits=True)
    assert first(within(framework=gathers, tp=2).logits_s) == pytest.approx(48 * 256 * 2 / 2 / 5 + 2)
    assert first(within(framework=gathers, tp=2, sequence_slices=2).logits_s) == pytest.approx(
        48 * 256 * 2 / 2 / 5 + 2 * 2
    )
    assert first(within(framework=gathers).logits_s) == first(within(tp=2).logits_s) == 0.0


def test_the_ring_of_pytorchs_attention():
    """Keys and values of all heads are gathered, 1,536 B of 48 tokens; each rank's fp32 gradients go on once a rank."""
    of = replace(FRAMEWORK, sdpa_context=True)
    for heads in (1, 2):
        ring = within(replace(LLAMA, num_kv_heads=heads), of, cp=2)
        assert first(ring.context_forward_s) == pytest.approx(155.6)
        assert first(ring.context_backward_s) == pytest.approx(155.6 + 2 * (768 * 2 / 2 + 2))  # two hops, 2 B/s, 2 s
    again = within(LLAMA, of, cp=2, recompute=Recompute.FULL)
    assert first(again.context_backward_s) == pytest.approx(2 * 155.6 + 2 * (768 + 2))
    # Between nodes of four tensor ranks: 0.375 B/s by a rank's own NIC, which starts after 10 s more.
    apart = within(replace(LLAMA, num_heads=4, num_kv_heads=4, head_dim=2), of, cp=2, tp=4)
    gather = first(apart.context_forward_s)
    assert first(apart.context_backward_s) == pytest.approx(gather + 2 * (768 * 2 / 4 / 0.375 + 11))


def test_context_ring_and_experts():
    """Keys and values of 48 tokens: 2 x 8 elements each, 1,536 B; backward their gradients too."""
    ring = within(cp=2)
    assert [first(ring.context_forward_s), first(ring.context_backward_s)] == pytest.approx([155.6, 311.2])
    assert first(within(LLAMA, cp=2, tp=2).context_forward_s) == pytest.approx(768 / 2 / 5 + 2)
    assert first(within(replace(LLAMA, num_kv_heads=1), cp=2).context_forward_s) == pytest.approx(768 / 2 / 5 + 2)
    one_head = replace(MLA, num_kv_heads=1)  # latent attention unpacks keys for all its heads
    assert first(within(one_head, cp=2).context_forward_s) == pytest.approx(48 * 2 * (6 + 4) * 2 / 2 / 5 + 2)
    for again in (Recompute.SELECTIVE, Recompute.FULL):  # once more round the ring
        assert first(within(cp=2, recompute=again).context_backward_s) == pytest.approx(3 * 155.6)
    # A head of keys and values on each of two tensor ranks, where there is one for both.
    shared = replace(LLAMA, num_kv_heads=1)
    assert first(within(shared, cp=2, tp=2).context_forward_s) == pytest.approx(48 * 2 * 4 * 2 / 2 / 5 + 2)
    # Each token goes to 2 experts and back, in one of two layers, once its rank has told how many go where.
    to_all, told = 2 * 768 / 2 / 2 + 2, 2 / 2
    expert = within(MOE, dp=2, ep=2)
    assert [first(expert.expert_forward_s), first(expert.expert_backward_s)] == pytest.approx([to_all + told, to_all])
    padded = within(MOE, dp=2, ep=2, capacity_factor=1.0)
    assert [first(padded.expert_forward_s), first(padded.expert_backward_s)] == pytest.approx([to_all, to_all])
    again = within(MOE, dp=2, ep=2, recompute=Recompute.FULL)
    assert first(again.expert_forward_s) == pytest.approx(to_all + told)
    assert first(again.expert_backward_s) == pytest.approx(2 * to_all + told)
    # Recomputation that ends with the last tensor needed repeats no combine, unless outputs are weighted after it.
    early = replace(FRAMEWORK, recompute_stops_early=True, kept_expert_outputs=False)
    x = layout(dp=2, ep=2, recompute=Recompute.FULL)
    ended = layer_traffic(case(BYTES, MOE, x, framework=early))
    # Copies' weights follow them then, and their gradients come back.
    assert first(ended.expert_forward_s) == pytest.approx(to_all + 2 * told)
    assert first(ended.expert_backward_s) == pytest.approx(1.5 * to_all + 3 * told)
    weighted = layer_traffic(case(BYTES, MOE, x, framework=replace(early, kept_expert_outputs=True)))
    assert first(weighted.expert_backward_s) == pytest.approx(2 * to_all + told)
    nodes = replace(FRAMEWORK, node_dispatch=True)
    x = layout(tp=4, dp=2, ep=2)
    by_node, by_copy = (layer_traffic(case(BYTES, MOE, x, framework=f)).expert_forward_s[0] for f in (nodes, FRAMEWORK))
    # A tensor rank's 384 B of copies go to the other node: half of them, or once where either expert is there.
    assert by_copy == pytest.approx(384 / 2 / 0.375 + 11 + 11 / 2)
    assert by_node == pytest.approx(384 / 2 * (1 - 1 / 4) / 0.375 + 11)
    assert first(within(MOE, tp=2, dp=2, ep=2).expert_forward_s) == pytest.approx(768 / 2 / 2 + 2 + told)
    sliced = within(MOE, dp=2, ep=2, sequence_slices=2)
    assert first(sliced.expert_forward_s) == pytest.approx(2 * (768 / 2 / 2 + 2 + told))


def test_a_framework_s_start_up_is_the_network_s():
    slow = replace(FRAMEWORK, network_startup_s=5.0)
    assert first(within(framework=slow, tp=2).layer_forward_s) == first(within(tp=2).layer_forward_s)
    more = first(within(framework=slow, tp=8).layer_forward_s) - first(within(tp=8).layer_forward_s)
    assert more == pytest.approx(2 * 2 * 5.0)


def whole(model=GPT, framework=FRAMEWORK, params=1000.0, experts=0.0, **choices):
    chosen = layout(**choices)
    d = device(BYTES, chosen)
    layer = layer_traffic(case(d, model, chosen, framework=framework))
    return traffic(case(d, model, chosen, framework=framework), layer, own(params, experts))


def test_zero_3_gathers_and_scatters_each_layer():
    """1,000 parameters: 2,000 B gathered, 4,000 B of gradients scattered, over two ranks of a node."""
    sharded = whole(zero=3, dp=2)
    assert [first(sharded.layer_gather_s), first(sharded.layer_reduce_s)] == pytest.approx([202.0, 402.0])
    assert first(whole(zero=2, dp=2).layer_gather_s) == first(whole(zero=2, dp=2).layer_reduce_s) == 0.0
    assert first(whole(zero=3, dp=2, precision=Precision.FP16).layer_reduce_s) == pytest.approx(202.0)
    # Embedding and head are one table of 256 x 8 where tied: 4,096 B gathered, 8,192 B scattered, once a pass and back.
    assert first(sharded.ends_sharding_s) == pytest.approx(4096 / 2 / 5 + 2 + 8192 / 2 / 5 + 2)
    assert first(whole(LLAMA, zero=3, dp=2).ends_sharding_s) == pytest.approx(8192 / 2 / 5 + 2 + 16384 / 2 / 5 + 2)
    assert first(whole(zero=3).ends_sharding_s) == first(whole(zero=2, dp=2).ends_sharding_s) == 0.0


def test_flat_copies_of_what_is_gathered_and_scattered():
    """Out of a flat buffer 2 B read and 2 B written a parameter; into one 2 B read and the 4 B that are summed."""
    copying = replace(FRAMEWORK, flat_copies=True, zero2_by_layer=True)
    for zero in (2, 3):
        found = whole(framework=copying, zero=zero, dp=2)
        assert [first(found.layer_copy_out_s), first(found.layer_copy_in_s)] == [4000.0, 6000.0]
        plain = whole(framework=replace(copying, flat_copies=False), zero=zero, dp=2)
        assert first(found.ends_sharding_s) - first(plain.ends_sharding_s) == pytest.approx(2048 * (4 + 6))
        assert first(found.layer_gather_s) == first(plain.layer_gather_s)
    for other in (whole(framework=copying, zero=1, dp=2), whole(framework=copying, zero=3), whole(zero=3, dp=2)):
        assert first(other.layer_copy_out_s) == first(other.layer_copy_in_s) == 0.0


def test_gradients_of_a_flat_parameter():
    """Put together and divided, 4 B and twice what is summed; of 4 B sums a cast between, 2 B read and 4 written."""
    flat = replace(FRAMEWORK, flat_gradients=True)
    wide, narrow = whole(framework=flat, zero=3, dp=2), whole(framework=flat, zero=3, dp=2, precision=Precision.FP16)
    assert [first(wide.layer_copy_out_s), first(wide.layer_copy_in_s)] == [0.0, 4000.0 + 6000.0 + 8000.0]
    assert first(narrow.layer_copy_in_s) == 4000.0 + 4000.0
    assert first(whole(framework=flat, zero=3).layer_copy_in_s) == 0.0


def test_a_library_may_sum_all_where_each_keeps_a_part():
    """A reduce-scatter then takes two passes, a gather one, an all-reduce two as ever."""
    link = replace(CLUSTER.node_link, scatter_passes=2.0)
    two = place(replace(CLUSTER, node_link=link), np.array([2]), np.array([1]))
    one = place(CLUSTER, np.array([2]), np.array([1]))
    assert first(reduce_scatter_s(one, 24.0)) == first(all_gather_s(one, 24.0)) == first(all_gather_s(two, 24.0))
    assert first(reduce_scatter_s(two, 24.0)) == first(all_reduce_s(two, 24.0)) == first(all_reduce_s(one, 24.0))


def test_zero_2_layer_by_layer():
    """Where a framework does so layers have what data parallelism sends, and the step has nothing more."""
    own_layers = replace(FRAMEWORK, zero2_by_layer=True)
    two, three = whole(framework=own_layers, zero=2, dp=2), whole(zero=3, dp=2)
    assert [first(two.layer_gather_s), first(two.layer_reduce_s)] == pytest.approx([202.0, 402.0])
    assert first(two.ends_sharding_s) == first(three.ends_sharding_s)
    assert in_all(own_layers, dp=2, zero=2) == [0.0, 0.0]
    assert in_all(own_layers, dp=2, zero=1) == in_all(dp=2, zero=1)


def test_sends_and_the_tied_embedding():
    base = whole(pp=2)
    assert first(base.send_s) == 768 / 2 + 1
    assert first(whole(pp=2, sequence_slices=2).send_s) == 2 * (384 / 2 + 1)
    # The table's gradient, 256 rows of 8 in 4 bytes: half of it to the other stage, then half of the sum.
    assert first(base.tied_s) == 2 * (256 * 8 * 4 / 2 / 2 + 1)
    assert first(whole(pp=2, tp=2, sequence_parallel=True).tied_s) == 2 * (256 * 8 * 4 / 2 / 2 / 2 + 1)
    assert first(whole(LLAMA, pp=2).tied_s) == 0.0
    assert first(whole().tied_s) == 0.0
    slow = replace(FRAMEWORK, network_startup_s=5.0)
    assert first(whole(framework=slow, pp=2, dp=4).send_s) == pytest.approx(768 / 0.375 + 10 + 5)


def in_all(framework=FRAMEWORK, params=1000.0, experts=0.0, **choices):
    chosen = layout(**choices)
    return [first(x) for x in data_traffic(case(layouts=chosen, framework=framework), own(params, experts))[:2]]


def test_data_parallel_collectives_by_zero_stage():
    """1,000 gradients of 4 B over two ranks: all-reduced in 804 s, scattered in 402 s; 2,000 B gathered in 202 s."""
    assert in_all(dp=2, zero=0) == pytest.approx([804.0, 0.0])
    assert in_all(dp=2, zero=1) == pytest.approx([402.0, 202.0])
    once, twice = (replace(FRAMEWORK, whole_reduces=stage) for stage in (1, 2))
    assert in_all(once, dp=2, zero=1) == in_all(twice, dp=2, zero=1) == pytest.approx([804.0, 202.0])
    assert in_all(dp=2, zero=2) == in_all(once, dp=2, zero=2) == pytest.approx([402.0, 202.0])
    assert in_all(twice, dp=2, zero=2) == pytest.approx([804.0, 202.0])
    assert in_all(dp=2, zero=3) == [0.0, 0.0]
    assert in_all(dp=1, zero=1) == [0.0, 0.0]
    assert in_all(cp=2, zero=1) == pytest.approx([402.0, 202.0])
    assert in_all(dp=2, zero=0, precision=Precision.FP32) == pytest.approx([804.0, 0.0])
    assert in_all(dp=2, zero=1, precision=Precision.TF32) == pytest.approx([402.0, 402.0])


def test_buckets_of_gradients_start_one_by_one():
    """2,000 B of 16-bit gradients in pieces of 600 B: three more starts of an all-reduce, which is 2 s in a node."""
    pieces = replace(FRAMEWORK, reduce_bucket_bytes=600.0)
    assert in_all(pieces, dp=2, zero=0) == pytest.approx([804.0 + 3 * 2 * 2, 0.0])
    assert in_all(pieces, dp=8, zero=0)[0] == pytest.approx(in_all(dp=8, zero=0)[0] + 3 * 2 * (4 + 10))
    for rest in ({"dp": 2, "zero": 1}, {"dp": 2, "zero": 3}, {"dp": 1, "zero": 0}):
        assert in_all(pieces, **rest) == in_all(**rest)


def test_parameters_in_fp8_are_gathered_in_fp8():
    """Of 1,000 parameters 750 are layers', in a byte each; 250 the embedding's or head's, in two. Two copies, twice."""
    kept = replace(FRAMEWORK, fp8_parameter_bytes=1.0)
    fp8 = layout(dp=2, zero=1, precision=Precision.FP8)

    def gathered(framework, chosen, *of):
        return first(data_traffic(case(layouts=chosen, framework=framework), *of)[1])

    assert gathered(kept, fp8, own(1000.0, ends=0.25)) == pytest.approx((750 + 500) / 2 / 5 + 2)
    assert gathered(kept, fp8, own(1000.0, ends=0.25), 2) == pytest.approx((750 + 500) / 5 + 2)
    assert gathered(kept, layout(dp=2, zero=1), own(1000.0, ends=0.25)) == pytest.approx(2000 / 2 / 5 + 2)
    assert gathered(FRAMEWORK, fp8, own(1000.0, ends=0.25)) == pytest.approx(2000 / 2 / 5 + 2)
    spread = layout(dp=4, ep=2, zero=1, precision=Precision.FP8)
    assert gathered(kept, spread, own(1000.0, experts=0.4)) == pytest.approx(600 * 3 / 4 / 5 + 4 + 400 / 2 / 5 + 2)


def test_experts_gradients_go_to_their_own_replicas():
    """Of 1,000 parameters 400 are experts': 600 over four ranks, 400 over the two of each expert, two apart."""
    dense = 2 * (600 * 4 * 3 / 4 / 5 + 4)
    sparse = 2 * (400 * 4 / 2 / 5 + 2)
    assert in_all(dp=4, ep=2, zero=0, experts=0.4)[0] == pytest.approx(dense + sparse)
    table = Layouts.of(dp=4, ep=[2, 1], global_batch=24, micro_batch=3, zero=0)
    shares = np.array([0.4, 0.0])
    found, _, _ = data_traffic(case(layouts=table), own(np.full(2, 1000.0), shares))
    assert found.tolist() == pytest.approx([dense + sparse, 2 * (4000 * 3 / 4 / 5 + 4)])


def test_sharded_collectives_lose_bandwidth_with_nodes():
    """16 ranks on 4 nodes: a framework that keeps its pace up to 2 nodes has half of it there, but never less than a
    NIC at a send's rate, 0.25 / (0.5 x 2) of the ring's."""
    base = in_all(dp=16, zero=1)
    half = in_all(replace(FRAMEWORK, sharded_nodes=2.0), dp=16, zero=1)
    least = in_all(replace(FRAMEWORK, sharded_nodes=0.01), dp=16, zero=1)
    assert half == pytest.approx([2 * x for x in base])
    assert least == pytest.approx([4 * x for x in base])
    whole = 2 * (4000 * 15 / 16 / 3 + 4 + 20)  # an all-reduce over a tree of four nodes
    assert in_all(replace(FRAMEWORK, sharded_nodes=0.01), dp=16, zero=0)[0] == pytest.approx(whole)
    assert in_all(replace(FRAMEWORK, sharded_nodes=4.0), dp=16, zero=1) == pytest.approx(base)


def test_pieces_of_a_gather():
    """A layer of six tensors, three more besides, a piece of each for every replica that shares the optimizer."""
    assert gather_pieces(case(model=GPT, layouts=layout(dp=4, zero=1)), 2.0).tolist() == [(2 * 6 + 3) * 4]
    assert gather_pieces(case(model=GPT, layouts=layout(cp=2, zero=2)), 2.0).tolist() == [(2 * 6 + 3) * 2]
    assert gather_pieces(case(model=MOE, layouts=layout(dp=4, ep=2, zero=1)), 2.0).tolist() == [
        (2 * (4 + 2 * 2) + 3) * 4
    ]
    for none in (layout(dp=4, zero=0), layout(dp=4, zero=3), layout(zero=1)):
        assert gather_pieces(case(model=GPT, layouts=none), 2.0).tolist() == [0.0]


def test_a_gather_piece_by_piece_takes_the_host_s_time():
    chosen = layout(dp=4, zero=1)
    slow = replace(FRAMEWORK, gather_piece_s=2.0)
    more = (
        step_costs(Setup(GPT, CLUSTER, slow), chosen).gather_s
        - step_costs(Setup(GPT, CLUSTER, FRAMEWORK), chosen).gather_s
    )
    assert first(more) == 2.0 * (2 * 6 + 3) * 4


def test_owners_broadcast_one_after_another():
    """Of fifteen tensors four ranks own some each, sixteen ranks fifteen: each broadcast but the first starts anew."""
    own = replace(FRAMEWORK, owned_tensors=True)
    for dp, later in ((4, 3), (16, 14)):
        chosen = layout(dp=dp, zero=1)
        with_owners, equal = (step_costs(Setup(GPT, CLUSTER, f), chosen).gather_s for f in (own, FRAMEWORK))
        start = all_gather_s(groups(CLUSTER, chosen)["data"], 0.0)
        assert first(with_owners - equal) == pytest.approx(later * first(start))
        assert first(start) > 0
    for none in (layout(dp=4, zero=2), layout(zero=1)):
        assert first(step_costs(Setup(GPT, CLUSTER, own), none).gather_s) == first(
            step_costs(Setup(GPT, CLUSTER, FRAMEWORK), none).gather_s
        )


def test_sends_that_block_wait_for_each_other():
    """A hand-over of two transfers, one after the other; every tensor rank may send all of it, or of gradients."""
    base = first(whole(tp=2, pp=2).send_s)
    assert first(whole(framework=replace(FRAMEWORK, send_turns=2.0), tp=2, pp=2).send_s) == pytest.approx(2 * base)
    assert first(whole(framework=replace(FRAMEWORK, whole_sends=1.0), tp=2, pp=2).send_s) == pytest.approx(768 / 2 + 1)
    half = first(whole(framework=replace(FRAMEWORK, whole_sends=0.5), tp=2, pp=2).send_s)
    assert half == pytest.approx(base + 768 / 4 / 2)
    mask = first(whole(framework=replace(FRAMEWORK, sent_mask_bytes=2.0), tp=2, pp=2).send_s)
    assert mask == pytest.approx(base + GPT.seq_len**2 / 2)  # 2 bytes over 2 bytes/s, one way of two


def test_packing_gradients_passes_over_memory():
    """Where there are replicas: 24 bytes of each of a rank's parameters."""
    packs = replace(FRAMEWORK, reduce_pass_bytes=24.0)

    def more(chosen):
        return first(
            step_costs(Setup(GPT, CLUSTER, packs), chosen).reduce_s
            - step_costs(Setup(GPT, CLUSTER, FRAMEWORK), chosen).reduce_s
        )

    rate = CLUSTER.accelerator.memory_bandwidth_bytes_per_s * CLUSTER.accelerator.efficiency.memory_fraction
    params = first(step_costs(Setup(GPT, CLUSTER, FRAMEWORK), layout(dp=2)).busiest_params)
    assert more(layout(dp=2)) == pytest.approx(24 * params / rate)
    assert more(layout()) == 0.0


def test_groups_that_straddle_nodes_lie_in_their_smallest_part():
    """Nodes of 4: groups of 3 lie 3, 1 + 2, 2 + 1; of 8 every other rank two on each of four nodes."""
    three = place(CLUSTER, np.array([3]), np.array([1]))
    assert [first(three.local), first(three.nodes)] == [1, 3]
    assert first(place(CLUSTER, np.array([8]), np.array([2])).local) == 2
    assert first(place(CLUSTER, np.array([6]), np.array([1])).local) == 2
    # Ranks 0 to 7 of a tensor group of 3 on nodes of 8: members of its replicas' groups lie 3 apart, two on a node.
    assert first(place(replace(CLUSTER, gpus_per_node=8), np.array([16]), np.array([3])).local) == 2


def test_a_job_lies_on_equal_parts_of_nodes():
    """Of racks of 72: 64 each of four, all of two, its own few of one; a part of less than half is not left empty."""
    rack = replace(CLUSTER, gpus_per_node=72)
    assert node_ranks(rack, np.array([256, 144, 16, 97])).tolist() == [64, 72, 16, 72]
    groups_of_32 = groups(rack, layout(dp=256, ep=32))["expert"]
    assert first(groups_of_32.local) == 32


@pytest.mark.parametrize(
    ("choices", "crosses", "share"),
    [
        ({"tp": 2, "pp": 2}, False, None),
        ({"tp": 2, "pp": 4}, True, 1.0),  # two ranks send, each through a NIC of its own
        ({"pp": 8}, True, 1.0),
        ({"tp": 4, "pp": 2}, True, 0.5),  # four ranks send through two NICs
        ({"tp": 4, "dp": 2, "pp": 2}, True, 0.5),
    ],
)
def test_a_pipeline_over_nodes_goes_at_the_pace_of_a_hop_between_them(choices, crosses, share):
    one = hop(CLUSTER, layout(**choices))
    assert bool(first(one.crosses)) == crosses
    assert first(one.bandwidth_bytes_per_s) == pytest.approx(3 * 0.25 * share if crosses else 10 * 0.2)


def test_a_slower_network_slows_a_pipeline_over_nodes():
    """Sends of two ranks a stage on nodes of four, whichever hop leaves its node."""
    slow = replace(CLUSTER, network=replace(CLUSTER.network, bandwidth_bytes_per_s=0.3))
    x = layout(tp=2, pp=4)
    assert first(send_s(slow, x, 24.0)) > 5 * first(send_s(CLUSTER, x, 24.0))


@pytest.mark.parametrize(
    ("ranks", "stride", "ring", "sends"),
    [
        (4, 1, 2.0, 1.5),  # all four: 2 B/s x 4 / 4; two on each side send two thirds across, 2 / (4/3)
        (2, 2, 1.0, 1.0),  # two such groups share the bridges; each member sends all it has across
        (2, 1, 5.0, 2.0),  # neighbours on one side
        (1, 1, 5.0, 2.0),
        (8, 1, 2.0, 1.5),  # two nodes of four
        (2, 8, 5.0, 2.0),  # one in a node
    ],
)
def test_groups_that_lie_on_two_host_bridges_share_what_passes_between(ranks, stride, ring, sends):
    """Rings get 5 B/s and sends 2 B/s of a link; all that passes between the node's halves gets 2 B/s together."""
    bridged = replace(CLUSTER, node_link=replace(CLUSTER.node_link, bridge_fraction=0.2))
    group = place(bridged, np.array([ranks]), np.array([stride]))
    assert first(group.node_bandwidth_bytes_per_s) == ring
    assert first(group.node_send_bytes_per_s) == pytest.approx(sends)
    plain = place(CLUSTER, np.array([ranks]), np.array([stride]))
    assert (first(plain.node_bandwidth_bytes_per_s), first(plain.node_send_bytes_per_s)) == (5.0, 2.0)


@pytest.mark.parametrize(
    ("ranks", "stride", "ring", "sends", "shift"),
    [
        (4, 1, 5.0, 2.0, 2 / 3),  # all four: three links each, a neighbour's is one
        (2, 1, 5 / 3, 2 / 3, 2 / 3),
        (2, 2, 5 / 3, 2 / 3, 2 / 3),
        (8, 1, 5.0, 2.0, 2 / 3),  # two nodes of four
        (2, 8, 5.0, 2.0, 2.0),  # one in a node: it sends to none there
    ],
)
def test_groups_of_a_node_without_a_switch_have_the_links_between_them(ranks, stride, ring, sends, shift):
    """Rings get 5 B/s and sends 2 B/s of all three links of an accelerator to the others of its node."""
    direct = replace(CLUSTER, node_link=replace(CLUSTER.node_link, direct=True))
    group = place(direct, np.array([ranks]), np.array([stride]))
    assert first(group.node_bandwidth_bytes_per_s) == pytest.approx(ring)
    assert first(group.node_send_bytes_per_s) == pytest.approx(sends)
    assert first(group.node_shift_bytes_per_s) == pytest.approx(shift)


def test_rings_of_three_of_four_without_a_switch_reach_what_was_measured_of_them():
    """A tenth of 10 B/s, where their links alone would give 5 x 2 / 3; sends have these."""
    link = replace(CLUSTER.node_link, direct=True, partial_fraction=0.1)
    group = place(replace(CLUSTER, node_link=link), np.array([3]), np.array([1]), 3)
    assert first(group.node_bandwidth_bytes_per_s) == pytest.approx(1.0)
    assert first(group.node_send_bytes_per_s) == pytest.approx(4 / 3)
