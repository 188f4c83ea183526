"""The links between a job's nodes, and how many flows each kind of its traffic has on them.

NICs are a link each way, and so is what joins a pod to others where the fabric is oversubscribed. NICs belong to the
GPUs where there is one for each, else to the node. Of a ring as many flows go from a node to the next as it has members
there (`planner.costs.network.groups`); in an all-to-all each rank has one flow, in a pipeline each rank that sends.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.base.arrays import Array, Ints, record
from planner.costs.network.collectives import hop
from planner.costs.network.groups import nic_bytes_per_s, place, ranks_and_stride
from planner.costs.placement import node_ranks
from planner.hardware import Cluster
from planner.layouts import Layouts

ALL_TO_ALL = ("expert", "ulysses")
Bundle = tuple[str, int, int]
"""Kind of traffic (a group's name, or pipeline), the pipeline rank that sends and the one that receives."""


@record
class Fabric:
    """Links of a job, arrays of shape (links,), and bundles of equal flows on them.

    names: of links; alike: how many links each stands for, with the same flows. flows: of a bundle on a link, shape
    (links, bundles); most_bytes_per_s: that one flow of a bundle would send, shape (bundles,). The last bundles are
    those of other jobs, `others` in number.
    """

    names: tuple[str, ...]
    alike: Ints
    capacity_bytes_per_s: Array
    flows: Array
    most_bytes_per_s: Array
    others: int


@record
class _Spots:
    """Places that GPUs send from: the one of each GPU, where it lies (a node, a pod), their names, capacities, and how
    many flows of other jobs each has."""

    of: Ints
    within: Ints
    names: list[str]
    capacity_bytes_per_s: Array
    others: Array


def fabric(cluster: Cluster, layouts: Layouts, bundles: Sequence[Bundle]) -> Fabric:
    """The links that bundles of one layout's traffic use; raises KeyError for a kind of traffic that there is not."""
    stage = np.arange(int(layouts.gpus[0])) // int(layouts.gpus[0] // layouts.pp[0])
    names, rows = [], []
    for spots in _spots(cluster, layouts, stage):
        ways = np.zeros((2, len(spots.names), len(bundles)))
        moved: dict[str, tuple[Array, Array]] = {}
        for column, (kind, *ends) in enumerate(bundles):
            at, to = (np.flatnonzero(stage == x) for x in ends)
            if kind == "pipeline":
                leaving = arriving = 1.0 * (spots.within[at] != spots.within[to])
            else:
                if kind not in moved:
                    moved[kind] = _moved(cluster, layouts, kind, spots.within)
                leaving, arriving = moved[kind][0][at], moved[kind][1][to]
            for way, gpus, flows in zip(ways, (at, to), (leaving, arriving), strict=True):
                way[:, column] = np.bincount(spots.of[gpus], weights=flows, minlength=len(spots.names))
        for way, says in zip(ways, ("out of", "into"), strict=True):
            names += [f"{says} {name}" for name in spots.names]
            rows.append(np.column_stack([spots.capacity_bytes_per_s, spots.others, way]))
    most = [_most(cluster, layouts, kind) for kind, *_ in bundles]
    return _distinct(names, np.concatenate(rows), most, cluster.neighbour_bandwidth_bytes_per_s)


def _spots(cluster: Cluster, layouts: Layouts, stage: Ints) -> list[_Spots]:
    """A job's NICs, and its pods where the links between them carry less than their nodes send."""
    each, nic = int(node_ranks(cluster, layouts.gpus)), nic_bytes_per_s(cluster)
    node = np.arange(len(stage)) // each
    of, names, gpus = node, [f"NICs of node {n}" for n in range(int(node[-1]) + 1)], np.array([cluster.gpus_per_node])
    if cluster.nics_per_node >= cluster.gpus_per_node:
        owners, at, gpus = np.unique(np.stack([node, stage]), axis=1, return_inverse=True, return_counts=True)
        of, names = np.ravel(at), [f"NICs of node {n}, pipeline rank {r}" for n, r in owners.T.tolist()]
    links, none = np.full(len(names), nic) * gpus, np.zeros(len(names))
    out = [_Spots(of=of, within=node, names=names, capacity_bytes_per_s=links, others=none)]
    if cluster.oversubscription > 1.0:
        pod = node // cluster.pod_nodes
        names = [f"pod {n}" for n in range(int(pod[-1]) + 1)]
        links = np.full(len(names), cluster.pod_nodes * each * nic / cluster.oversubscription)
        others = np.full(len(names), float(cluster.neighbour_flows))
        out.append(_Spots(of=pod, within=pod, names=names, capacity_bytes_per_s=links, others=others))
    return out


def _moved(cluster: Cluster, layouts: Layouts, kind: str, within: Ints) -> tuple[Array, Array]:
    """Flows of a kind's groups that leave the node or pod of each rank, and that come there, shape (gpus,)."""
    ranks, stride = (int(x[0]) for x in ranks_and_stride(layouts)[kind])
    local = float(place(cluster, ranks, stride, node_ranks(cluster, layouts.gpus)).local.item())
    groups = within.reshape(-1, ranks, stride)
    if kind in ALL_TO_ALL:
        beyond = sum(1.0 * (groups != np.roll(groups, by, axis=1)) for by in range(1, ranks))
        parts = np.ravel(beyond / max(ranks - local, 1.0))
        return parts, parts
    leaves = local * (groups != np.roll(groups, -1, axis=1))
    return leaves.ravel(), np.roll(leaves, 1, axis=1).ravel()


def _most(cluster: Cluster, layouts: Layouts, kind: str) -> float:
    """Bytes/s that one flow takes of a link when nothing holds it up."""
    if kind == "pipeline":
        flat = replace(cluster, oversubscription=1.0)
        return float(hop(flat, layouts).bandwidth_bytes_per_s[0]) / cluster.network.send_fraction
    return nic_bytes_per_s(cluster)


def _distinct(names: list[str], rows: Array, most: list[float], others_bytes_per_s: float) -> Fabric:
    """Links with flows of the job on them, each that stands for all like it; rows: capacity, others, flows."""
    used = np.flatnonzero(rows[:, 2:].any(axis=1))
    _, first, count = np.unique(rows[used], axis=0, return_index=True, return_counts=True)
    order = np.argsort(first)
    kept = used[first[order]]
    beside = np.diag(rows[kept, 1])[:, rows[kept, 1] > 0.0]
    return Fabric(
        names=tuple(names[i] for i in kept), alike=count[order], capacity_bytes_per_s=rows[kept, 0],
        flows=np.column_stack([rows[kept, 2:], beside]),
        most_bytes_per_s=np.append(most, np.full(beside.shape[1], others_bytes_per_s)), others=beside.shape[1],
    )  # fmt: skip
