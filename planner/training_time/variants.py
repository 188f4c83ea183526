"""Clusters that differ in one thing: another node size, a quantity multiplied."""

from __future__ import annotations

from dataclasses import replace

from planner.base.errors import InputError
from planner.hardware import Cluster

UNLIMITED = 2**20
"""Accelerators of a node that is larger than any job."""


def with_node_size(cluster: Cluster, gpus: int) -> Cluster:
    """The same accelerators in nodes of another size, 0 for unlimited; network, storage and host keep their share.

    Raises InputError for a negative or impossible size.
    """
    if not 0 <= gpus <= UNLIMITED:
        raise InputError(f"--node-size is {gpus}; allowed: 0 (unlimited) to {UNLIMITED}")
    size = gpus or UNLIMITED
    nics = size * cluster.nics_per_node / cluster.gpus_per_node
    # Whole cards only: what rounding changes in their number, it changes back in the bandwidth of one.
    cards = max(round(nics), 1)
    host = cluster.host_memory_bytes
    return replace(
        cluster,
        name=f"{cluster.name}, nodes of {gpus or 'any number of'} GPUs",
        gpus_per_node=size,
        nics_per_node=cards,
        network=replace(cluster.network, bandwidth_bytes_per_s=cluster.network.bandwidth_bytes_per_s * nics / cards),
        storage_bandwidth_bytes_per_s=cluster.storage_bandwidth_bytes_per_s * size / cluster.gpus_per_node,
        host_memory_bytes=None if host is None else host * size / cluster.gpus_per_node,
    )
