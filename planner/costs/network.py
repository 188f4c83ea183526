"""Seconds of communication: alpha-beta per link, groups placed on nodes in Megatron's order. Array-first.

Ranks are numbered tensor innermost, then context, data, pipeline (Megatron-LM, `tp-cp-ep-dp-pp`). A group of
n ranks at stride q has k = clip(node/q, 1, n) members in a node. Rings: Thakur et al. 2005; Patarasu and Yuan 2009:
an all-gather or reduce-scatter is one pass, S (n-1)/n per rank in n-1 steps; an all-reduce is two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.hardware import Cluster
from planner.layouts import Layouts

__all__ = ["Group", "all_gather_s", "all_reduce_s", "all_to_all_s", "dispatch_s", "groups", "send_s"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Group:
    """A communication group of every layout: its size and how it lies on nodes, arrays of shape (n,).

    ranks: members; local: members inside one node; node_bandwidth_bytes_per_s, network_bandwidth_bytes_per_s: what a
    ring gets of a node's links and of the network; node_send_bytes_per_s, network_send_bytes_per_s: what each member's
    sends to others get; latency_s: start-up of one pass.
    """

    ranks: Array
    local: Array
    node_bandwidth_bytes_per_s: Array
    network_bandwidth_bytes_per_s: Array
    node_send_bytes_per_s: Array
    network_send_bytes_per_s: Array
    latency_s: Array

    @property
    def bandwidth_bytes_per_s(self) -> Array:
        """Bytes/s of a ring through the group: its slowest link."""
        crosses = self.ranks > self.local
        slow = np.minimum(self.node_bandwidth_bytes_per_s, self.network_bandwidth_bytes_per_s)
        return np.where(crosses, slow, self.node_bandwidth_bytes_per_s)

    @property
    def nodes(self) -> Array:
        """Nodes that the group lies on."""
        return np.asarray(np.ceil(self.ranks / self.local))


def place(cluster: Cluster, ranks: Any, stride: Any) -> Group:
    """The group of `ranks` members at `stride`, on nodes of the cluster."""
    node = cluster.gpus_per_node
    ranks = np.asarray(ranks, dtype=np.float64)
    local = np.clip(node / np.asarray(stride, dtype=np.float64), 1.0, ranks)
    nodes = np.ceil(ranks / local)
    # All accelerators of a node talk at once; a group owns the NICs' share of its local members.
    nic = np.full_like(ranks, cluster.network.bandwidth_bytes_per_s * cluster.nics_per_node / node)
    link = np.full_like(ranks, cluster.node_link.bandwidth_bytes_per_s)
    # The launch and a step to every other member in the node, then a tree over nodes.
    hops = local * cluster.node_link.latency_s + np.log2(nodes) * cluster.network.latency_s
    return Group(
        ranks=ranks,
        local=local,
        node_bandwidth_bytes_per_s=link * cluster.node_link.fraction,
        network_bandwidth_bytes_per_s=nic * cluster.network.fraction * local,
        node_send_bytes_per_s=link * cluster.node_link.send_fraction,
        network_send_bytes_per_s=nic * cluster.network.send_fraction,
        latency_s=hops,
    )


def groups(cluster: Cluster, layouts: Layouts) -> dict[str, Group]:
    """The tensor, context, data, sharding (data x context) and expert groups of each layout."""
    tp, cp, dp = layouts.tp, layouts.cp, layouts.dp
    expert = layouts.etp * layouts.ep
    return {
        "tensor": place(cluster, tp, np.ones_like(tp)),
        "context": place(cluster, cp, tp),
        "data": place(cluster, dp * cp, tp),
        "expert": place(cluster, layouts.ep, layouts.etp),
        "expert_data": place(cluster, np.maximum(tp * dp * cp // expert, 1), expert),
    }


def all_gather_s(group: Group, size_bytes: Any) -> Array:
    """Seconds to gather `size_bytes` in all on every rank of the group; reduce-scatter takes the same."""
    n = group.ranks
    transfer = size_bytes * (n - 1.0) / n / group.bandwidth_bytes_per_s
    return np.where(n > 1, transfer + group.latency_s, 0.0)


def all_reduce_s(group: Group, size_bytes: Any) -> Array:
    """Seconds to sum `size_bytes` over the group: a reduce-scatter and an all-gather."""
    return 2.0 * all_gather_s(group, size_bytes)


def all_to_all_s(group: Group, size_bytes: Any) -> Array:
    """Seconds for each rank to send `size_bytes` in all, evenly to every rank of the group."""
    n, k = group.ranks, group.local
    return _sends_s(group, size_bytes * (k - 1.0) / n, size_bytes * (n - k) / n)


def dispatch_s(group: Group, token_bytes: Any, reached_ranks: Any, reached_nodes: Any) -> Array:
    """Seconds for each rank to send `token_bytes` of tokens, one copy to each other node that a token has to reach.

    That node's rank passes it on, once to each of its ranks that need it (DeepSeek-AI 2024, arXiv 2412.19437, section
    3.2.2; DeepEP). reached_ranks, reached_nodes: of the group, by a token on average, its own counted as any other.
    """
    inside = token_bytes * reached_ranks * (group.local - 1.0) / group.local
    outside = token_bytes * reached_nodes * (group.nodes - 1.0) / group.nodes
    return _sends_s(group, inside, outside)


def _sends_s(group: Group, inside_bytes: Any, outside_bytes: Any) -> Array:
    """Seconds of a rank's sends through the node's links and, beside them, through the network."""
    inside = inside_bytes / group.node_send_bytes_per_s
    outside = outside_bytes / group.network_send_bytes_per_s
    return np.where(group.ranks > 1, np.maximum(inside, outside) + group.latency_s, 0.0)


def send_s(cluster: Cluster, layouts: Layouts, size_bytes: Any, *, whole: bool = False) -> Array:
    """Seconds to pass one micro-batch's `size_bytes` (whole, not per tensor rank) to the next pipeline stage.

    Each tensor rank sends its part; without sequence parallelism the group gathers it again over the node's
    links (the scatter/gather of Narayanan et al. 2021, section 4.1). whole: each sends all of it instead, unless
    sequence parallelism leaves it only its part.
    """
    stride = layouts.tp * layouts.cp * layouts.dp
    crosses = stride >= cluster.gpus_per_node
    part = size_bytes / (np.where(layouts.sequence_parallel, layouts.tp, 1) if whole else layouts.tp)
    nic = cluster.network.bandwidth_bytes_per_s * cluster.network.send_fraction
    nic = nic * cluster.nics_per_node / cluster.gpus_per_node
    inside = cluster.node_link.bandwidth_bytes_per_s * cluster.node_link.send_fraction
    transfer = np.where(crosses, part / nic + cluster.network.latency_s, part / inside + cluster.node_link.latency_s)
    if not whole:
        gather = all_gather_s(place(cluster, layouts.tp, np.ones_like(layouts.tp)), size_bytes)
        transfer = transfer + np.where(layouts.sequence_parallel, 0.0, gather)
    return np.where(layouts.pp > 1, transfer, 0.0)
