"""Links of a job and the flows on them, counted by hand."""

from dataclasses import replace

import numpy as np
import pytest

from planner.costs.network.fabric import fabric
from planner.layouts import Layouts
from tests.costs.toy import CLUSTER

NIC = CLUSTER.network.bandwidth_bytes_per_s
POD = replace(CLUSTER, gpus_per_node=4, nics_per_node=4, pod_nodes=2, oversubscription=4.0)
"""Pods of eight accelerators, whose links carry what two of their NICs do."""


def links(cluster, layouts, bundles):
    """Every kind of link by its name: how many there are, NICs' worth, flows of each bundle."""
    f = fabric(cluster, layouts, bundles)
    columns = zip(f.names, f.alike.tolist(), (f.capacity_bytes_per_s / NIC).tolist(), f.flows.tolist(), strict=True)
    return {name: (alike, nics, flows) for name, alike, nics, flows in columns}


def test_a_ring_goes_on_to_the_next_node_from_all_its_members_and_leaves_a_pod_once():
    """16 replicas on four nodes in two pods: four flows out of each node, of which those of one leave the pod."""
    assert links(POD, Layouts.of(dp=16, tp=1, pp=1, global_batch=16), [("data", 0, 0)]) == {
        "out of NICs of node 0, pipeline rank 0": (8, 4.0, [4.0]),
        "out of pod 0": (4, 2.0, [4.0]),
    }


def test_rings_of_tensor_ranks_parts_each_have_a_flow():
    """Four rings of four replicas, a rank of each in every node."""
    assert links(POD, Layouts.of(dp=4, tp=4, pp=1, global_batch=16), [("data", 0, 0)]) == {
        "out of NICs of node 0, pipeline rank 0": (8, 4.0, [4.0]),
        "out of pod 0": (4, 2.0, [4.0]),
    }


def test_of_an_all_to_all_a_part_leaves_the_pod():
    """Of each rank's 15 others 12 are in other nodes, 8 of these in the other pod."""
    found = links(POD, Layouts.of(dp=16, tp=1, pp=1, ep=16, global_batch=16), [("expert", 0, 0)])
    assert found["out of NICs of node 0, pipeline rank 0"] == (8, 4.0, [4.0])
    assert found["out of pod 0"] == (4, 2.0, [pytest.approx(8 * 8 / 12)])


def test_a_pipeline_sends_from_each_rank_to_its_like():
    """Stages of one node each: forward from the second to the third node leaves their pods, and nothing else does."""
    layouts = Layouts.of(dp=4, tp=1, pp=4, global_batch=16)
    found = links(POD, layouts, [("pipeline", 0, 1), ("pipeline", 1, 2), ("pipeline", 2, 1)])
    assert found == {
        "out of NICs of node 0, pipeline rank 0": (1, 4.0, [4.0, 0.0, 0.0]),
        "out of NICs of node 1, pipeline rank 1": (2, 4.0, [0.0, 4.0, 0.0]),  # and into those of the next
        "out of NICs of node 2, pipeline rank 2": (1, 4.0, [0.0, 0.0, 4.0]),
        "into NICs of node 1, pipeline rank 1": (1, 4.0, [4.0, 0.0, 4.0]),
        "out of pod 0": (2, 2.0, [0.0, 4.0, 0.0]),
        "out of pod 1": (2, 2.0, [0.0, 0.0, 4.0]),
    }


def test_stages_that_share_a_node_share_its_one_nic_but_not_nics_of_their_own():
    layouts = Layouts.of(dp=2, tp=1, pp=4, global_batch=16)  # two stages in each of two nodes
    bundles = [("pipeline", 1, 2), ("pipeline", 0, 1)]
    flat = replace(POD, oversubscription=1.0)
    assert links(flat, layouts, bundles) == {
        "out of NICs of node 0, pipeline rank 1": (2, 2.0, [2.0, 0.0]),
    }
    one = links(replace(flat, nics_per_node=1), layouts, bundles)
    assert one == {"out of NICs of node 0": (2, 1.0, [2.0, 0.0])}


def test_other_jobs_have_flows_of_their_own_on_each_link_of_pods():
    beside = replace(POD, neighbour_flows=6, neighbour_bandwidth_bytes_per_s=3.0 * NIC)
    f = fabric(beside, Layouts.of(dp=16, tp=1, pp=1, global_batch=16), [("data", 0, 0)])
    assert f.others == 1
    assert f.flows.tolist() == [[4.0, 0.0], [4.0, 6.0]]
    assert f.most_bytes_per_s / NIC == pytest.approx([1.0, 3.0])
    assert np.sum(f.alike) == 12
