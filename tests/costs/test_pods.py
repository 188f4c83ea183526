"""Links between pods that carry less than the nodes send: by hand, and where they must change nothing."""

from dataclasses import fields, replace

import numpy as np
import pytest
from scipy.optimize import linprog

from planner.costs.network.collectives import all_gather_s, all_to_all_s, hop, shift_s
from planner.costs.network.groups import place
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


def max_min(flows: np.ndarray, most: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """Max-min fair rates by linear programs: flows (links, n) over links of a capacity, each with a most.

    The least rate of the flows still free is made as large as it gets, then those that can't have more are settled.
    """
    n = len(most)
    rates, free = np.zeros(n), np.ones(n, dtype=bool)
    while free.any():
        # The least rate t, then each flow alone beside all others at t.
        rows = np.column_stack([flows[:, free], np.zeros(len(flows))])
        rest = capacity - flows[:, ~free] @ rates[~free]
        k = int(free.sum())
        least = np.column_stack([-np.eye(k), np.ones(k)])
        bounds = [(0.0, m) for m in most[free]] + [(0.0, None)]
        found = linprog(
            np.r_[np.zeros(k), -1.0], A_ub=np.vstack([rows, least]), b_ub=np.r_[rest, np.zeros(k)], bounds=bounds
        )
        t = found.x[-1]
        settled = []
        for i in range(k):
            others = [(t, m) for m in most[free]] + [(0.0, None)]
            alone = linprog(-np.eye(k + 1)[i], A_ub=rows, b_ub=rest, bounds=others)
            settled.append(alone.x[i] <= t * (1.0 + 1e-7))
        at = np.flatnonzero(free)[np.array(settled)]
        assert len(at)
        rates[at], free[at] = t, False
    return rates


def test_flows_beside_neighbours_get_what_linear_programs_say():
    """500 drawn fabrics: flows of a job, each through a NIC of its own, then a pod's links beside other jobs' flows."""
    rng = np.random.default_rng(20261129)
    held_up = 0
    for _ in range(500):
        ours, theirs = int(rng.integers(1, 6)), int(rng.integers(1, 5))
        nic, asked = rng.uniform(0.2, 3.0), rng.uniform(0.0, 3.0)
        nodes = ours  # of one NIC
        times = rng.uniform(1.0, 4.0)
        cluster = replace(
            POD, gpus_per_node=1, nics_per_node=1, pod_nodes=nodes, oversubscription=times, neighbour_flows=theirs,
            neighbour_bandwidth_bytes_per_s=asked,
            network=replace(POD.network, bandwidth_bytes_per_s=nic, fraction=1.0, send_fraction=1.0),
        )  # fmt: skip
        flows = np.ones((1, ours + theirs))
        most = np.r_[np.full(ours, nic), np.full(theirs, asked)]
        rates = max_min(flows, most, np.array([nodes * nic / times]))
        # Two pods, and a rank of each ring in both.
        got = place(cluster, np.array([2]), np.array([ours]), job=2 * ours)
        assert got.network_bandwidth_bytes_per_s[0] == pytest.approx(rates[0], rel=1e-6)
        assert got.network_send_bytes_per_s[0] == pytest.approx(rates[0], rel=1e-6)
        held_up += rates[0] < nic / times * (1 - 1e-9)
    assert held_up > 100


@pytest.mark.parametrize(
    ("flows", "nics", "times"),
    [
        (0, 1.0, 1.0),
        (8, 1.0, 2.0),  # as many as the job's: each has half
        (8, 0.05, 1.0 / 0.8),  # they ask for a fifth of the links, and get it
        (24, 1.0, 4.0),
    ],
)
def test_neighbours_take_their_part_of_a_pods_links(flows, nics, times):
    """Eight rings with a rank in each pod: their links are worth two NICs."""
    asked = nics * POD.network.bandwidth_bytes_per_s
    beside = replace(POD, neighbour_flows=flows, neighbour_bandwidth_bytes_per_s=asked)
    assert seconds(beside, 4, 8) == pytest.approx(times * seconds(POD, 4, 8), rel=1e-3)
    layouts = Layouts.of(dp=8, tp=1, pp=4, global_batch=64)
    rate = [float(hop(c, layouts).bandwidth_bytes_per_s[0]) for c in (POD, beside)]
    assert rate[0] == pytest.approx(times * rate[1])


def test_neighbours_hold_up_nobody_where_links_carry_all():
    beside = replace(POD, oversubscription=1.0, neighbour_flows=64)
    assert seconds(beside, 4, 8) == seconds(FLAT, 4, 8)
