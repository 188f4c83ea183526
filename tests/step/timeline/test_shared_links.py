"""A step on shared links: where nothing meets it is `simulate`'s; what meets is worked out by hand; it never gains."""

from dataclasses import replace

import numpy as np
import pytest

import planner
from planner.base.errors import InputError, LayoutError, ScheduleError
from planner.costs.network.fabric import fabric
from planner.hardware import load_cluster, load_framework
from planner.layouts import Layouts
from planner.models import load_model
from planner.setup import Setup
from planner.step.timeline import link_traffic
from planner.step.timeline.shared_links import share_links
from planner.step.timeline.step import simulate


def setup(model="llama-13b", cluster="dgx-a100-80gb", framework="megatron-core", **figures) -> Setup:
    return Setup(load_model(model), replace(load_cluster(cluster), **figures), load_framework(framework))


LAYOUTS = [
    {"dp": 16, "zero": 1},
    {"dp": 16, "zero": 3},
    {"dp": 8, "tp": 8, "zero": 2},
    {"dp": 4, "tp": 2, "pp": 4},
    {"dp": 3, "tp": 2, "pp": 4, "zero": 0},
    {"dp": 8, "tp": 2, "pp": 4, "schedule": "interleaved", "virtual_stages": 2},
    {"dp": 4, "tp": 4, "pp": 4, "schedule": "zb-h1"},
    {"dp": 4, "tp": 4, "pp": 4, "schedule": "zb-v", "virtual_stages": 2},
    {"dp": 4, "tp": 4, "pp": 4, "schedule": "dualpipe", "zero": 0},
    {"dp": 3, "tp": 8, "pp": 2, "schedule": "hanayo", "virtual_stages": 2},
    {"dp": 4, "tp": 4, "pp": 4, "schedule": "v-half", "virtual_stages": 2},
    {"dp": 4, "tp": 4, "pp": 2, "schedule": "breadth-first", "virtual_stages": 2},
    {"dp": 2, "tp": 4, "pp": 2, "cp": 4, "ulysses": 2},
    {"dp": 4, "tp": 16, "pp": 2},
]


def table(**choices) -> Layouts:
    return Layouts.of(**{"tp": 1, "global_batch": 16 * choices["dp"]} | choices)


@pytest.mark.parametrize("nics", [1, 8])
@pytest.mark.parametrize("choices", LAYOUTS, ids=str)
def test_where_nothing_meets_the_step_is_that_of_simulate(choices, nics, monkeypatch):
    """On links without end; and on real ones it takes no less, and no bundle of flows holds itself up."""
    of, layouts = setup("llama-65b", nics_per_node=nics), table(**choices)
    real = share_links(of, layouts)
    alone = real.fabric.flows * real.fabric.most_bytes_per_s
    assert np.all(alone <= real.fabric.capacity_bytes_per_s[:, None] * (1.0 + 1e-9))

    def endless(*given):
        links = fabric(*given)
        return replace(links, capacity_bytes_per_s=1e9 * links.capacity_bytes_per_s)

    monkeypatch.setattr(link_traffic, "fabric", endless)
    free, plain = share_links(of, layouts), simulate(of, layouts)
    assert free.step_time_s == pytest.approx(plain.step_time_s, rel=1e-9)
    assert free.end_s == pytest.approx(plain.timeline.end_s, rel=1e-9)
    assert real.step_time_s >= plain.step_time_s * (1.0 - 1e-9)
    assert np.all(real.end_s >= plain.timeline.end_s * (1.0 - 1e-9))


@pytest.mark.parametrize("neighbours", [0, 4, 64])
@pytest.mark.parametrize(("choices", "pod_nodes"), [({"dp": 16}, 1), ({"dp": 64}, 2), ({"dp": 32, "tp": 2}, 2)])
def test_one_ring_out_of_oversubscribed_pods_is_the_closed_forms(choices, pod_nodes, neighbours):
    """A kind of traffic that has the links to itself, but for other jobs, gets what the closed form of pods says."""
    of = setup(pod_nodes=pod_nodes, oversubscription=4.0, neighbour_flows=neighbours)
    layouts = table(zero=1, **choices)
    step = share_links(of, layouts)
    assert set(step.traffic_s) == {"data"}
    assert step.step_time_s == pytest.approx(simulate(of, layouts).step_time_s, rel=1e-9)
    assert step.step_time_s > 1.01 * step.plain.step_time_s
    # Pods of n nodes have the NICs of n / 4 nodes for the ring's flows, one for each GPU of a node.
    ((alone, took),) = step.traffic_s.values()
    flows, links = 8, 8 * pod_nodes / 4
    assert took / alone == pytest.approx(max((flows + neighbours) / links, 1.0) if neighbours else flows / links)


@pytest.mark.parametrize("oversubscription", [2.0, 8.0, 32.0])
@pytest.mark.parametrize(
    ("cluster", "dp", "zero"), [("dgx-h100", 16, 3), ("gb200-nvl72", 144, 1), ("gb200-nvl72", 144, 3)]
)
def test_what_passes_hide_of_it_is_the_closed_forms_too(cluster, dp, zero, oversubscription):
    """Layers' own collectives, and racks whose NICs together outdo their fast links."""
    of = setup("llama3-8b", cluster, pod_nodes=1, oversubscription=oversubscription)
    layouts = table(dp=dp, zero=zero, global_batch=dp)
    assert share_links(of, layouts).step_time_s == pytest.approx(simulate(of, layouts).step_time_s, rel=1e-9)


def test_a_reduction_beside_the_experts_sends_by_hand():
    """Either has a flow on each NIC: for as long as they meet each goes at half of its pace, and loses half of that."""
    step = share_links(setup("qwen3-235b-a22b", "dgx-h100"), table(dp=16, ep=16, global_batch=64))
    assert step.fabric.names == ("out of NICs of node 0, pipeline rank 0",)
    assert step.fabric.alike.tolist() == [4]  # two nodes, each way
    lost = [took - alone for alone, took in step.traffic_s.values()]
    assert set(step.traffic_s) == {"data", "expert"}
    assert lost == pytest.approx([step.ran.held_s[0] / 2.0] * 2)
    assert 0.0 < step.step_time_s - step.plain.step_time_s <= lost[1] * (1.0 + 1e-9)
    assert step.ran.full_s[0] == pytest.approx(sum(alone for alone, _ in step.traffic_s.values()))
    # All of the work that the NICs carry is there: seconds at their full speed.
    whole = step.fabric.capacity_bytes_per_s[0] * step.ran.full_s[0]
    assert step.ran.carried_bytes[0] == pytest.approx(whole)


def test_a_pod_that_two_stages_share_serves_the_one_that_sends():
    """Pods of three nodes, stages of two: the closed form halves what a pod carries, though few send at once."""
    of, layouts = setup(pod_nodes=3, oversubscription=3.0), table(dp=16, pp=3, zero=1, schedule="1f1b", tp=1)
    step = share_links(of, layouts)
    assert step.plain.step_time_s < step.step_time_s < simulate(of, layouts).step_time_s


def drawn(rng) -> tuple[Setup, Layouts]:
    of = setup(str(rng.choice(["llama-13b", "mixtral-8x7b"])), str(rng.choice(["dgx-h100", "dgx-a100-80gb"])),
               pod_nodes=int(rng.integers(1, 5)), oversubscription=float(rng.uniform(1.5, 8.0)))  # fmt: skip
    ep = int(rng.choice([1, 4, 8])) if int(of.model.num_experts) else 1
    dp = int(rng.choice([8, 16]))
    tp, pp, cp = (int(rng.choice(x)) for x in ([1, 2], [1, 2, 4], [1, 2]))
    return of, table(dp=dp, ep=ep, tp=tp, pp=pp, cp=cp, sequence_parallel=ep > 1, zero=int(rng.integers(0, 2)))


def test_faster_links_and_fewer_neighbours_never_make_these_steps_longer():
    """Max-min fairness promises that only against links that nothing else uses: see docs/network.md."""
    rng = np.random.default_rng(0)
    for _ in range(12):
        of, layouts = drawn(rng)
        cluster = of.cluster
        clusters = {
            "neighbours": [replace(cluster, neighbour_flows=n) for n in (0, 2, 8, 32)],
            "ratio": [replace(cluster, oversubscription=x) for x in (1.0, 2.0, 4.0, 8.0)],
            "network": [replace(cluster, network=cluster.network.faster(x)) for x in (4.0, 1.0, 0.5, 0.25)],
        }
        for changed in clusters.values():
            steps = [share_links(replace(of, cluster=x), layouts).step_time_s for x in changed]
            assert np.all(np.diff(steps) >= -1e-9 * steps[0])


def test_nodes_that_are_alike_are_one_link_and_pods_of_one_node_are_nodes():
    """Whole pods in another number carry the same; a pod of one node that holds nothing up changes nothing."""
    of, layouts = setup(), table(dp=64)
    step = share_links(of, layouts)
    assert len(step.fabric.names) == 1
    assert step.fabric.alike.tolist() == [16]
    tight = share_links(setup(pod_nodes=1, oversubscription=1.0 + 1e-9), layouts)
    assert tight.step_time_s == pytest.approx(step.step_time_s, rel=1e-6)


@pytest.mark.parametrize("choices", LAYOUTS[::4], ids=str)
def test_compute_beside_flows_is_slower_but_never_by_more_than_stated(choices):
    of = setup("llama-65b")
    fast, slow = (share_links(of, table(**choices), x) for x in (0.0, 0.2))
    assert fast.step_time_s < slow.step_time_s < 1.2 * fast.step_time_s


def test_ranks_that_end_apart_update_apart():
    """Without a common end the step is the longest of any rank's own, from its first operation to its update."""
    step = share_links(setup(), table(dp=2, tp=2, pp=4, schedule="zb-2p", zero=0))
    order = step.plain.timeline.order
    own = step.update_start_s + step.plain.update_end_s - step.plain.update_start_s - step.start_s[order.start[:-1]]
    assert np.ptp(step.update_start_s) > 0.0
    assert step.step_time_s == pytest.approx(own.max(), rel=1e-12)


def test_what_is_refused():
    with pytest.raises(InputError, match=r"slow_down is -1\.0; allowed: a number from 0"):
        share_links(setup(), table(dp=16), -1.0)
    with pytest.raises(LayoutError, match="never drained"):
        share_links(setup(), table(dp=4, tp=2, pp=4, schedule="2bw"))
    with pytest.raises(LayoutError, match="wait for one another"):
        share_links(setup(), table(dp=4, tp=2, pp=4, schedule="vocab-1"))
    with pytest.raises(ScheduleError, match="links of 102,400 operations are not simulated; allowed: up to 100,000"):
        share_links(setup(), table(dp=1, pp=10, global_batch=5120))


def test_python_shares_links_as_the_command_does():
    asked = {"batch": 16, "dp": 16, "links": True}
    alone = planner.simulate("gpt2", "dgx-a100-80gb", **asked).to_dict()["with_links"]
    figures = {"pod_nodes": 1, "oversubscription": 4}
    beside = planner.simulate("gpt2", planner.Cluster("dgx-a100-80gb", figures=figures), **asked, background="8")
    assert "links shared: " in str(beside)
    assert beside.to_dict()["with_links"]["step_time_s"] > alone["step_time_s"]
