"""Groups of ranks that communicate, as they lie on nodes and pods, and the bandwidth that each has. Array-first.

Ranks are numbered tensor innermost, then context, data, pipeline (Megatron-LM, `tp-cp-ep-dp-pp`), so many a node. A
group of n ranks at stride q has k members in a node: all, those that fit, or where groups straddle nodes the smallest
part that one of them has.

Nodes may lie in pods, whose links to other pods carry less than their nodes send (an oversubscribed leaf and spine; a
dragonfly's groups). A ring leaves a pod once, however many nodes it has there, and all groups of a pod share its links.
Of an all-to-all what goes to other pods' ranks shares them.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from planner.base.arrays import Array, Ints, record
from planner.costs.placement import members_in_node, node_ranks
from planner.hardware import Cluster
from planner.layouts import Layouts


@record
class Group:
    """A communication group of every layout: its size and how it lies on nodes, arrays of shape (n,).

    ranks: members; local: members inside one node; node_bandwidth_bytes_per_s, network_bandwidth_bytes_per_s: what
    a ring gets of a node's links and of the network; node_send_bytes_per_s, network_send_bytes_per_s: what each
    member's sends to others get; node_shift_bytes_per_s, network_shift_bytes_per_s: its sends to one other, its
    neighbour in a ring; latency_s: start-up of one pass inside a node, 0 of a rank alone; tree_latency_s,
    ring_latency_s: what the other nodes add to it, of a tree over nodes and of a ring through all ranks;
    small_latency_s, small_bytes_per_s: a pass's start-up and rate by the protocol for small messages, both infinite
    where there is none; sum_latency_s, sum_bytes_per_s: the same of an all-reduce by a node's switches (NVLS);
    gather_passes, scatter_passes: of an all-gather and of a reduce-scatter.
    """

    ranks: Array
    local: Array
    node_bandwidth_bytes_per_s: Array
    network_bandwidth_bytes_per_s: Array
    node_send_bytes_per_s: Array
    node_shift_bytes_per_s: Array
    network_send_bytes_per_s: Array
    network_shift_bytes_per_s: Array
    latency_s: Array
    tree_latency_s: Array
    ring_latency_s: Array
    small_latency_s: Array
    small_bytes_per_s: Array
    sum_latency_s: Array
    sum_bytes_per_s: Array
    gather_passes: Any = 1.0
    scatter_passes: Any = 1.0

    @cached_property
    def bandwidth_bytes_per_s(self) -> Array:
        """Bytes/s of a ring through the group: its slowest link."""
        crosses = self.ranks > self.local
        slow = np.minimum(self.node_bandwidth_bytes_per_s, self.network_bandwidth_bytes_per_s)
        return np.where(crosses, slow, self.node_bandwidth_bytes_per_s)

    @property
    def nodes(self) -> Array:
        """Nodes that the group lies on."""
        return np.asarray(np.ceil(self.ranks / self.local))


def place(cluster: Cluster, ranks: Any, stride: Any, node_size: Any = None, job: Any = 2**62) -> Group:
    """The group of `ranks` members at `stride`, on nodes of the cluster with `node_size` ranks each (default: all).

    job: the ranks of all groups; a job that fills no more than a pod has none that leave it.
    """
    node = cluster.gpus_per_node
    each = node if node_size is None else node_size
    local = members_in_node(each, ranks, stride).astype(np.float64)
    ranks = np.asarray(ranks, dtype=np.float64)
    nodes = np.ceil(ranks / local)
    # All accelerators of a node talk at once; a group owns the NICs' share of its local members.
    network, link = cluster.network, cluster.node_link
    nic = nic_bytes_per_s(cluster)
    ring, send = _node_rates(cluster, local, stride)
    leaves, reaches = _pod_shares(cluster, cluster.pod_nodes * each, job, ranks, stride, local)
    steps = (local - 1.0) * link.ring_step_s
    through = steps + network.ring_step_s
    small, sums = ((nodes == 1) & bool(share) for share in (link.small_fraction, link.sum_fraction))
    return Group(
        ranks=ranks,
        local=local,
        node_bandwidth_bytes_per_s=ring,
        network_bandwidth_bytes_per_s=nic * network.fraction * np.minimum(local, leaves),
        node_send_bytes_per_s=send,
        node_shift_bytes_per_s=np.where(local > 1, np.minimum(send, neighbour_bytes_per_s(cluster)), send),
        network_send_bytes_per_s=nic * network.send_fraction * network.exchange_share * reaches,
        network_shift_bytes_per_s=nic * network.send_fraction * np.minimum(leaves, 1.0),
        latency_s=np.where(ranks > 1, local * link.latency_s, 0.0),  # the launch, and a step to every other member
        tree_latency_s=np.log2(nodes) * network.latency_s,
        ring_latency_s=(nodes - 1.0) * through,
        small_latency_s=np.where(small, (link.small_latency_s or 0.0) + steps, np.inf),
        small_bytes_per_s=np.where(small, ring * (link.small_fraction or 0.0) / link.fraction, np.inf),
        sum_latency_s=np.where(sums, link.sum_latency_s or 0.0, np.inf),
        sum_bytes_per_s=np.where(sums, link.bandwidth_bytes_per_s * (link.sum_fraction or 0.0), np.inf),
        gather_passes=np.where(nodes > 1, network.gather_passes, link.gather_passes),
        scatter_passes=np.where(nodes > 1, network.scatter_passes, link.scatter_passes),
    )


def nic_bytes_per_s(cluster: Cluster) -> float:
    """An accelerator's share of its node's NICs."""
    return cluster.network.bandwidth_bytes_per_s * cluster.nics_per_node / cluster.gpus_per_node


def _pod_shares(cluster: Cluster, pod: Any, job: Any, ranks: Array, stride: Any, local: Array) -> tuple[Any, Any]:
    """What a group's links out of a pod of so many ranks carry, over a GPU's share of the NICs; and its rank's sends.

    Groups lie one block of `ranks` x `stride` after another. Where pods hold whole blocks, none leaves its pod. A pod
    within a block has a part of `stride` groups, one that a block's edge cuts of twice as many, which share its links.
    """
    if cluster.oversubscription == 1.0:
        return np.inf, np.ones(())
    pod, block = np.asarray(pod, dtype=np.float64), ranks * stride
    leaves = (pod < job) & (pod % block != 0)
    cut = (block < job) & (block % pod != 0)
    parts, senders = np.where(cut, 2.0, 1.0), np.minimum(block, pod)
    rings = np.minimum(stride, pod) * parts
    beyond = ranks - np.minimum(pod / stride, ranks) / parts
    beyond = beyond / np.maximum(ranks - local, 1.0) * senders
    links, nic = pod / cluster.oversubscription, nic_bytes_per_s(cluster)
    carried = beside_neighbours(cluster, links, rings * local, nic) / rings
    sent = beside_neighbours(cluster, links, senders, nic)
    return np.where(leaves, carried, np.inf), np.minimum(sent / np.where(leaves, beyond, sent), 1.0)


def beside_neighbours(cluster: Cluster, links: Any, flows: Any, unit: float) -> Any:
    """What a pod's links carry of so many flows beside those of other jobs, in units of so many bytes/s, as `links`.

    Max-min fair: all flows get the same, but a neighbour's no more than it would send. So ours get their number's part,
    or what the neighbours leave where that is more (Bertsekas and Gallager, Data Networks, section 6.5.2).
    """
    others = cluster.neighbour_flows
    if not others:
        return links
    left = links - others * cluster.neighbour_bandwidth_bytes_per_s / unit
    return np.maximum(links * flows / (flows + others), left)


def _node_rates(cluster: Cluster, local: Array, stride: Any) -> tuple[Array, Array]:
    """Bytes/s that a ring, and each member's sends, get of a node's links, for groups of so many members in a node.

    Where two host bridges share the accelerators of a node, every group that lies on both has its part of what passes
    between them: as many groups as there are, all at once. In an all-to-all half of the other members are beyond.
    Many flows at once fill the bridges, one ring does not: k flows get k / (k + `bridge_flows`) of `bridge_fraction`.
    Where each two accelerators have links of their own, a group has those to its other members: RCCL's rings are many,
    and use them all.
    """
    link, node = cluster.node_link, cluster.gpus_per_node
    ring = np.full_like(local, link.reached_bytes_per_s)
    send = np.full_like(local, link.bandwidth_bytes_per_s * link.send_fraction)
    if link.direct:
        own = np.where(local > 1, (local - 1.0) / max(node - 1.0, 1.0), 1.0)
        ring, send = ring * own, send * own
        if link.partial_fraction is not None:
            partial = link.bandwidth_bytes_per_s * link.partial_fraction
            ring = np.where((local > node / 2) & (local < node), partial, ring)
        return ring, send
    if link.bridge_fraction is None:
        return ring, send
    crosses = (local > 1) & (local * np.minimum(stride, node) > node / 2)
    between = link.bandwidth_bytes_per_s * link.bridge_fraction
    rings, sends = node / local, node * local / 4.0  # flows each way
    beyond = sends / np.maximum(local - 1, 1)  # members that send at once, by what each sends across
    ring = np.where(crosses, np.minimum(ring, between / (rings + link.bridge_flows)), ring)
    shared = between / beyond * sends / (sends + link.bridge_flows)
    return ring, np.where(crosses, np.minimum(send, shared), send)


def neighbour_bytes_per_s(cluster: Cluster) -> float:
    """What a rank's sends to one other of its node get: all of its links, or those between the two alone."""
    link = cluster.node_link
    links = max(cluster.gpus_per_node - 1, 1) if link.direct else 1
    return link.bandwidth_bytes_per_s * link.send_fraction / links


def with_startup(cluster: Cluster, startup_s: float) -> Cluster:
    """The cluster whose network takes so many seconds more to start a transfer."""
    if startup_s == 0.0:
        return cluster
    was = cluster.network
    later = replace(was, latency_s=was.latency_s + startup_s, ring_step_s=was.ring_step_s + startup_s)
    return replace(cluster, network=later)


def nodes_of(cluster: Cluster, ranks: Any, stride: Any, gpus: Any) -> Ints:
    """Nodes on which groups of so many ranks at a stride lie, in jobs on so many accelerators."""
    return np.asarray(place(cluster, ranks, stride, node_ranks(cluster, gpus)).nodes, dtype=np.int64)


OF_LAYERS = ("tensor", "ulysses", "context", "expert")
RINGS = ("inner", "outer")
OF_REPLICAS = ("data", "replica", "expert_data", "expert_replica")


def groups(cluster: Cluster, layouts: Layouts, names: Sequence[str] = OF_LAYERS + OF_REPLICAS) -> dict[str, Group]:
    """The tensor, context, data (x context: what ZeRO shards over), expert and expert-data groups of each layout.

    `ulysses` are the context ranks that exchange heads, `context` the ring: one rank of each group of these. Of rings
    in a ring, `inner` is one, and `outer` joins its members to their likes of the others.

    Where sharded states are replicated, a data group is one copy's ranks, neighbours; `replica` and `expert_replica`
    are the ranks of the same part in all copies.
    """
    spans, each = ranks_and_stride(layouts), node_ranks(cluster, layouts.gpus)
    return {name: place(cluster.of_traffic(name), *spans[name], each, layouts.gpus) for name in names}


def ranks_and_stride(layouts: Layouts) -> dict[str, tuple[Any, Any]]:
    """Members of each group, and how many ranks apart they are."""
    tp, cp, dp, copies = layouts.tp, layouts.cp, layouts.dp, layouts.dp_replicate
    ring, inner = np.maximum(cp // layouts.ulysses, 1), layouts.inner_ring
    expert = layouts.etp * layouts.ep
    of_expert = np.maximum(tp * dp * cp // (expert * copies), 1)
    return {
        "tensor": (tp, np.ones_like(tp)),
        "ulysses": (layouts.ulysses, tp),
        "context": (ring, tp * layouts.ulysses),
        "inner": (inner, tp * layouts.ulysses),
        "outer": (np.maximum(ring // inner, 1), tp * layouts.ulysses * inner),
        "data": (layouts.shards, tp),
        "replica": (copies, tp * layouts.shards),
        "expert": (layouts.ep, layouts.etp),
        "expert_data": (of_expert, expert),
        "expert_replica": (copies, expert * of_expert),
    }
