"""Seconds of collectives and sends: alpha-beta per link, over groups as they lie on nodes. Array-first.

Rings: Thakur et al. 2005; Patarasu and Yuan 2009: an all-gather or reduce-scatter is one pass, S (n-1)/n per rank in
n-1 steps; an all-reduce is two, but starts as a tree over nodes (NCCL has one for all-reduces alone,
src/graph/tuning.cc). Inside a node a protocol for small messages starts sooner and carries less (NCCL's LL128, there
too); the library takes the faster.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools, record
from planner.costs.network.groups import Group, beside_neighbours, groups, neighbour_bytes_per_s, place
from planner.costs.placement import node_ranks
from planner.hardware import Cluster
from planner.layouts import Layouts


def all_gather_s(group: Group, size_bytes: Any) -> Array:
    """Seconds to gather `size_bytes` in all on every rank of the group."""
    return np.asarray(group.gather_passes * _pass_s(group, size_bytes, group.ring_latency_s))


def reduce_scatter_s(group: Group, size_bytes: Any) -> Array:
    """Seconds to sum `size_bytes` in all and leave each rank its part."""
    return np.asarray(group.scatter_passes * _pass_s(group, size_bytes, group.ring_latency_s))


def all_reduce_s(group: Group, size_bytes: Any) -> Array:
    """Seconds to sum `size_bytes` over the group: a reduce-scatter and an all-gather, or one pass by the switches."""
    rings_s = 2.0 * _pass_s(group, size_bytes, group.tree_latency_s)
    if np.isinf(group.sum_latency_s).all():
        return rings_s
    return np.asarray(np.minimum(rings_s, size_bytes / group.sum_bytes_per_s + group.sum_latency_s))


def _pass_s(group: Group, size_bytes: Any, other_nodes_s: Any) -> Array:
    """Seconds of one pass of `size_bytes` around the group, to whose start the other nodes add so much."""
    moved = size_bytes * (group.ranks - 1.0) / group.ranks
    ring_s = moved / group.bandwidth_bytes_per_s + group.latency_s + other_nodes_s
    if np.isinf(group.small_latency_s).all():
        return np.asarray(ring_s)
    return np.asarray(np.minimum(ring_s, moved / group.small_bytes_per_s + group.small_latency_s))


def by_sends(group: Group) -> Group:
    """The group as a ring of sends: between nodes one member of a node sends at a time, by its own NIC at most."""
    most = np.minimum(group.network_bandwidth_bytes_per_s, group.network_shift_bytes_per_s)
    return replace(group, network_bandwidth_bytes_per_s=most)


def ring_s(group: Group, size_bytes: Any) -> Array:
    """Seconds for `size_bytes` in all to pass around the group, each rank's part from one to the next."""
    return _pass_s(by_sends(group), size_bytes, group.ring_latency_s)


def rings_s(inner: Group, outer: Group, size_bytes: Any) -> Array:
    """The same around rings in a ring: each turn of the outer one runs beside a whole turn of all inner ones.

    A part goes on to the next inner ring as it is, from every member at once, so that all NICs are used, and around
    that ring then (Gu et al. 2024, arXiv 2406.18485).
    """
    turns = outer.ranks
    return np.maximum(turns * ring_s(inner, size_bytes / turns), ring_s(outer, size_bytes / inner.ranks))


def all_to_all_s(group: Group, size_bytes: Any) -> Array:
    """Seconds for each rank to send `size_bytes` in all, evenly to every rank of the group."""
    n, k = group.ranks, group.local
    return _sends_s(group, size_bytes * (k - 1.0) / n, size_bytes * (n - k) / n)


def to_first_stage_s(cluster: Cluster, layouts: Layouts, size_bytes: Any) -> Array:
    """Seconds to bring `size_bytes` that lie evenly on all ranks to those of the first stage, for every micro-batch.

    One of these receives its tokens: as long as an all-to-all in which each rank sends as much.
    """
    each = size_bytes / (layouts.dp * layouts.cp * np.where(layouts.sequence_parallel, layouts.tp, 1))
    every = place(cluster, layouts.gpus, 1, node_ranks(cluster, layouts.gpus), layouts.gpus)
    return np.asarray(layouts.micro_batches * all_to_all_s(every, each / layouts.micro_batches))


def shift_s(group: Group, size_bytes: Any) -> Array:
    """Seconds for each rank to send `size_bytes` to the next one; between nodes by one NIC's share."""
    crosses = group.ranks > group.local
    rate = np.where(crosses, group.network_shift_bytes_per_s, group.node_shift_bytes_per_s)
    return _started_s(group, size_bytes / rate)


def dispatch_s(
    group: Group, token_bytes: Any, reached_ranks: Any, reached_nodes: Any, node_bytes_per_s: Any = np.inf
) -> Array:
    """Seconds for each rank to send `token_bytes` of tokens, one copy to each other node that a token has to reach.

    That node's rank passes it on, once to each of its ranks that need it (DeepSeek-AI 2024, arXiv 2412.19437, section
    3.2.2; DeepEP). reached_ranks, reached_nodes: of the group, by a token on average, its own counted as any other.
    node_bytes_per_s: at most that comes to a rank of a group in one node, its own tokens counted.
    """
    inside = token_bytes * reached_ranks * (group.local - 1.0) / group.local
    outside = token_bytes * reached_nodes * (group.nodes - 1.0) / group.nodes
    kernel_s = np.where((group.nodes == 1) & (group.ranks > 1), token_bytes * reached_ranks / node_bytes_per_s, 0.0)
    return np.maximum(_sends_s(group, inside, outside), kernel_s)


def _sends_s(group: Group, inside_bytes: Any, outside_bytes: Any) -> Array:
    """Seconds of a rank's sends through the node's links and, beside them, through the network."""
    inside = inside_bytes / group.node_send_bytes_per_s
    outside = outside_bytes / group.network_send_bytes_per_s
    return _started_s(group, np.maximum(inside, outside))


def _started_s(group: Group, sends_s: Array) -> Array:
    """Seconds of a rank's sends with their start; nothing where it has nobody to send to."""
    return np.where(group.ranks > 1, sends_s + group.latency_s + group.tree_latency_s, 0.0)


@record
class Hop:
    """The slowest hop between neighbouring pipeline stages of every layout, arrays of shape (n,).

    crosses: it leaves a node. bandwidth_bytes_per_s: that a rank's send over it achieves; latency_s: its start.
    """

    crosses: Bools
    bandwidth_bytes_per_s: Array
    latency_s: Array


def hop(cluster: Cluster, layouts: Layouts) -> Hop:
    """A pipeline goes at the pace of its slowest hop: where its stages lie on several nodes, one between two of these.

    The ranks of a stage that lie on a node send at once, each through one NIC at most, or its share of them; those of a
    pod through its links to the next, where a stage or more fills it.
    """
    cluster, stride = cluster.of_traffic("pipeline"), layouts.tp * layouts.cp * layouts.dp
    node, nics = node_ranks(cluster, layouts.gpus), cluster.nics_per_node
    crosses = stride * layouts.pp > node
    share = np.maximum(np.minimum(nics / np.minimum(stride, node), 1.0), nics / cluster.gpus_per_node)
    if cluster.oversubscription > 1.0:
        pod = cluster.pod_nodes * node
        senders = np.minimum(stride, pod)
        links = cluster.pod_nodes * nics / cluster.oversubscription
        links = beside_neighbours(cluster, links, senders, cluster.network.bandwidth_bytes_per_s) / senders
        share = np.where(stride * layouts.pp > pod, np.minimum(share, links), share)
    network, link = cluster.network, cluster.node_link
    outside = network.bandwidth_bytes_per_s * network.send_fraction * share
    return Hop(
        crosses=crosses,
        bandwidth_bytes_per_s=np.where(crosses, outside, neighbour_bytes_per_s(cluster)),
        latency_s=np.where(crosses, network.latency_s, link.latency_s),
    )


def rank_send_s(cluster: Cluster, layouts: Layouts, size_bytes: Any) -> Array:
    """Seconds to send `size_bytes` from each rank of a pipeline stage to its like on another."""
    one = hop(cluster, layouts)
    return np.where(layouts.pp > 1, size_bytes / one.bandwidth_bytes_per_s + one.latency_s, 0.0)


def send_s(
    cluster: Cluster, layouts: Layouts, size_bytes: Any, *, whole: float = 0.0, beside_bytes: float = 0.0
) -> Array:
    """Seconds to pass one micro-batch's `size_bytes` (whole, not per tensor rank) to the next pipeline stage.

    Each tensor rank sends its part; without sequence parallelism the group gathers it again over the node's
    links (the scatter/gather of Narayanan et al. 2021, section 4.1). whole: the share of hand-overs in which each sends
    all of it instead, unless sequence parallelism leaves it only its part. beside_bytes: what each sends besides.
    """
    own = size_bytes / layouts.tp
    part = beside_bytes + own + whole * np.where(layouts.sequence_parallel, 0.0, size_bytes - own)
    transfer = rank_send_s(cluster, layouts, part)
    if whole == 1.0:
        return transfer
    gather = all_gather_s(groups(cluster, layouts, ("tensor",))["tensor"], size_bytes)
    return np.where((layouts.pp > 1) & ~layouts.sequence_parallel, transfer + gather, transfer)
