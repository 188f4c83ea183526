"""Links between pods that carry less than the nodes send: by hand, and where they must change nothing."""

from dataclasses import fields, replace

import numpy as np
import pytest

from planner.costs.network.collectives import all_gather_s, all_to_all_s, hop, place, shift_s
from planner.hardware import load_cluster
from planner.layouts import Layouts
from tests.costs.toy import CLUSTER

FAST = replace(CLUSTER.node_link, bandwidth_bytes_per_s=1e9)
POD = replace(CLUSTER, node_link=FAST, gpus_per_node=4, nics_per_node=4, pod_nodes=2, oversubscription=4.0)
"""Pods of eight accelerators, whose links carry what two of their NICs do."""
FLAT = replace(POD, oversubscription=1.0)


def seconds(cluster, ranks, stride, collective=all_gather_s):
    """Of a large message, so that latency says nothing."""
    return float(collective(place(cluster, np.array([ranks]), np.array([stride])), 1e12)[0])


@pytest.mark.parametrize(
    ("ranks", "stride", "times"),
    [
        (8, 1, 1.0),  # one pod
        (16, 1, 2.0),  # a node has four of the ring's ranks and their NICs; a pod's links are worth two
        (4, 4, 2.0),  # four rings of two ranks in each pod share the links: half a NIC's worth for each
        (4, 8, 4.0),  # eight rings, a rank of each in the pod: a quarter
    ],
)
def test_a_ring_gets_its_part_of_what_leaves_its_pod(ranks, stride, times):
    assert seconds(POD, ranks, stride) == pytest.approx(times * seconds(FLAT, ranks, stride), rel=1e-3)


def test_of_an_all_to_all_what_goes_to_other_pods_shares_the_links():
    """Of 16 ranks' tokens 12 of 16 leave a node, and 8 the pod: through a quarter of the NICs."""
    assert seconds(POD, 16, 1, all_to_all_s) == pytest.approx(8 / 12 * 4 * seconds(FLAT, 16, 1, all_to_all_s), rel=1e-3)


def test_in_a_ring_of_sends_one_rank_of_each_group_sends_to_another_pod():
    assert seconds(POD, 16, 1, shift_s) == pytest.approx(seconds(FLAT, 16, 1, shift_s), rel=1e-3)
    assert seconds(POD, 4, 8, shift_s) == pytest.approx(4 * seconds(FLAT, 4, 8, shift_s), rel=1e-3)


@pytest.mark.parametrize(("dp", "pp", "times"), [(2, 4, 1.0), (2, 8, 1.0), (4, 4, 2.0), (8, 4, 4.0), (16, 4, 4.0)])
def test_a_pipeline_hop_between_pods(dp, pp, times):
    """Two NICs' worth leave a pod; a stage of eight or more ranks is all of it."""
    layouts = Layouts.of(dp=dp, tp=1, pp=pp, global_batch=64)
    rate = [float(hop(c, layouts).bandwidth_bytes_per_s[0]) for c in (FLAT, POD)]
    assert rate[0] == pytest.approx(times * rate[1])


def counted(job: int, pod: int, ranks: int, stride: int) -> tuple[float, float]:
    """Of the fullest pod: its groups that have ranks elsewhere too; and what its ranks send there, of 1 to all others.

    Every rank is looked at.
    """
    group = [(r // (ranks * stride), r % (ranks * stride) % stride) for r in range(job)]
    leaving, sent = 0, 0.0
    for first in range(0, job, pod):
        inside = range(first, min(first + pod, job))
        held = {g: sum(group[r] == g for r in inside) for g in {group[r] for r in inside}}
        leaving = max(leaving, sum(n < ranks for n in held.values()))
        sent = max(sent, sum(n * (ranks - n) / (ranks - 1) for n in held.values()))
    return leaving, sent


@pytest.mark.parametrize("pod", [1, 2, 3, 4, 5, 6, 7, 8, 11, 12])
@pytest.mark.parametrize(("ranks", "stride"), [(8, 1), (48, 1), (6, 4), (3, 8), (12, 4), (4, 2)])
def test_pods_of_any_size_beside_a_count_of_their_groups(pod, ranks, stride):
    """The links of the fullest pod are what its groups share; where blocks of groups are cut, at most half is lost."""
    job, times = 48, 1e6
    cluster = replace(POD, gpus_per_node=1, nics_per_node=1, pod_nodes=pod, oversubscription=times)
    flat = replace(cluster, oversubscription=1.0)
    leaving, sent = counted(job, pod, ranks, stride)
    (one, wide), (part, narrow) = (
        (float(g.network_bandwidth_bytes_per_s[0]), float(np.ravel(g.network_send_bytes_per_s)[0]))
        for g in (place(c, *np.array([[ranks], [stride], [1], [job]])) for c in (flat, cluster))
    )
    ring, sends = part / one * times, narrow / wide * times  # of a NIC, times the ratio
    if not leaving:
        assert (ring, sends) == (times, times)
        return
    aligned = ranks * stride == job or ranks * stride % pod == 0
    assert ring == pytest.approx(pod / leaving) if aligned and job % pod == 0 else 0.45 <= ring * leaving / pod <= 1.01
    assert 0.45 <= sends * sent / pod <= 2.2


@pytest.mark.parametrize("other", [{"oversubscription": 1.0}, {"pod_nodes": 64}])
def test_one_pod_and_links_that_carry_all_change_nothing(other):
    cluster, plain = replace(POD, **other), replace(POD, pod_nodes=1, oversubscription=1.0)
    for ranks, stride in ((64, 1), (4, 8), (16, 4), (6, 1)):
        one, two = (place(c, *np.array([[ranks], [stride], [4], [192]])) for c in (cluster, plain))
        assert all(np.all(getattr(one, f.name) == getattr(two, f.name)) for f in fields(one))


def test_nodes_of_another_size_leave_the_pod_its_accelerators():
    cluster = replace(load_cluster("dgx-h100"), pod_nodes=18, oversubscription=2.0)
    assert [cluster.with_node_size(n).pod_nodes for n in (4, 16, 72, 0)] == [36, 9, 2, 1]
