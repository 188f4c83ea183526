"""Placement of ranks on nodes: how many ranks of a job, and of a group, a node has. Array-first."""

from typing import Any

import numpy as np

from planner.base.arrays import Array, Ints
from planner.hardware import Cluster


def node_ranks(cluster: Cluster, gpus: Any) -> Array:
    """Ranks that a job on `gpus` accelerators has in each of its nodes, shape (n,).

    Nodes have equal parts of the job where these fill at least half of a node, else all nodes but the last are full. A
    job on 256 accelerators of racks of 72 has 64 in each rack; one on 576 has 72.
    """
    gpus, node = np.asarray(gpus), cluster.gpus_per_node

    def ranks(n: int) -> int:
        parts = (d for d in range(node, node // 2, -1) if n % d == 0)
        return n if n <= node else next(parts, node)

    if gpus.size and np.all(gpus == gpus.flat[0]):  # a search's layouts mostly are on all of a job's
        return np.asarray(ranks(int(gpus.flat[0])))
    sizes, index = np.unique(gpus, return_inverse=True)
    return np.array([ranks(int(n)) for n in sizes], dtype=np.int64)[np.ravel(index)].reshape(gpus.shape)


def members_in_node(ranks_per_node: Any, ranks: Any, stride: Any) -> Ints:
    """Members that one node holds of a group of `ranks` ranks, `stride` apart."""
    return np.asarray(np.gcd(np.asarray(ranks), np.maximum(ranks_per_node // np.asarray(stride), 1)))
