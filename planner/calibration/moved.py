"""Profiles with all figures of one kind moved by a factor of time: what measured runs on one's own machine correct."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from planner.base.arrays import Array
from planner.hardware import Accelerator, Cluster, Efficiency, Framework, Link

T = TypeVar("T", Efficiency, Framework)

# Kind: what it is called, and of each profile the figures whose inverse (rates) or which themselves (times) it scales.
KINDS = {
    "products": "matrix products",
    "attention": "attention and scans",
    "memory": "passes over memory",
    "host": "launches and the host",
    "node_link": "links in a node",
    "network": "the network",
}
RATES = {
    "products": ("matrix_fraction",),
    "attention": ("flash_forward", "flash_backward", "attention_matrix_fraction", "scan_matrix_fraction"),
    "memory": ("memory_fraction", "permute_fraction"),
}
TIMES = {
    "host": (
        "kernel_latency_s", "expert_product_s", "wide_expert_product_s", "host_layer_forward_s",
        "host_layer_backward_s", "host_experts_s", "host_step_s", "gather_piece_s",
    ),
    "network": ("network_startup_s",),
}  # fmt: skip
LINK_RATES = ("fraction", "send_fraction", "small_fraction", "bridge_fraction")
LINK_TIMES = ("latency_s", "ring_step_s", "small_latency_s")


def moved_cluster(cluster: Cluster, shift: Array) -> Cluster:
    """A cluster whose times of each kind are longer by a factor; shift: its logarithms, in the order of `KINDS`."""
    factor = _factors(shift)
    efficiency = _moved(cluster.accelerator.efficiency, factor)
    return replace(
        cluster,
        accelerator=replace(cluster.accelerator, efficiency=efficiency),
        node_link=_moved_link(cluster.node_link, factor["node_link"]),
        network=_moved_link(cluster.network, factor["network"]),
    )


def moved_framework(framework: Framework, shift: Array) -> Framework:
    """A framework so: the host's times, and what it adds to the network's."""
    return _moved(framework, _factors(shift))


def over_peak(accelerator: Accelerator, precisions: Iterable[str]) -> str:
    """The first rate in such precisions that exceeds the datasheet's, as text; empty where none does."""
    efficiency = accelerator.efficiency
    shares = {f"matrix_fraction.{k}": v for k, v in efficiency.matrix_fraction.items() if k in precisions}
    shares["memory_fraction"] = efficiency.memory_fraction
    return next((f"{name} {value:.3g}" for name, value in shares.items() if value > 1.0), "")


def _factors(shift: Array) -> dict[str, float]:
    return dict(zip(KINDS, np.exp(shift).tolist(), strict=True))


def _moved(profile: T, factor: Mapping[str, float]) -> T:
    """A profile with those of its figures that a kind scales."""
    own = {f.name for f in fields(profile)}
    changed: dict[str, Any] = {}
    for table, power in ((RATES, -1.0), (TIMES, 1.0)):
        for kind, names in table.items():
            for name in own.intersection(names):
                value, by = getattr(profile, name), factor[kind] ** power
                changed[name] = {k: v * by for k, v in value.items()} if isinstance(value, Mapping) else value * by
    return replace(profile, **changed)


def _moved_link(link: Link, factor: float) -> Link:
    """A link whose transfers all last longer by a factor."""
    powers = dict.fromkeys(LINK_RATES, -1.0) | dict.fromkeys(LINK_TIMES, 1.0)
    stated = {name: getattr(link, name) for name in powers}
    changed: dict[str, Any] = {k: v * factor ** powers[k] for k, v in stated.items() if v is not None}
    return replace(link, **changed)
