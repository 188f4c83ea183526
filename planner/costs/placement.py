"""Where ranks lie on nodes: how many a node has of a job's, and of a group's. Array-first."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.base.arrays import Array, Ints
from planner.hardware import Cluster


def node_ranks(cluster: Cluster, gpus: Any) -> Array:
    """Ranks a node of jobs on so many accelerators, shape (n,): equal parts where they fill at least half of each node.

    A job on 256 accelerators of racks of 72 has 64 of each; one on 576 all.
    """
    gpus, node = np.asarray(gpus), cluster.gpus_per_node

    def ranks(n: int) -> int:
        parts = (d for d in range(node, node // 2, -1) if n % d == 0)
        return n if n <= node else next(parts, node)

    if gpus.size and np.all(gpus == gpus.flat[0]):  # a search's layouts mostly are on all of a job's
        return np.asarray(ranks(int(gpus.flat[0])))
    sizes, index = np.unique(gpus, return_inverse=True)
    return np.array([ranks(int(n)) for n in sizes], dtype=np.int64)[np.ravel(index)].reshape(gpus.shape)


def members_in_node(each: Any, ranks: Any, stride: Any) -> Ints:
    """Members that groups of so many ranks at a stride have in one of their nodes, of `each` ranks."""
    return np.asarray(np.gcd(np.asarray(ranks), np.maximum(each // np.asarray(stride), 1)))
