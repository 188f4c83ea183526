"""Profiles with all figures of one kind moved by a factor of time: what measured runs on one's own machine correct."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from planner.base.arrays import Array
from planner.hardware import Accelerator, Cluster, Efficiency, Framework, Link
from planner.hardware.declared import declared

T = TypeVar("T", Efficiency, Framework, Link)

# Kind: what it is called. Which figures are of a kind their declarations say (`planner.hardware.declared`).
KINDS = {
    "products": "matrix products",
    "attention": "attention and scans",
    "memory": "passes over memory",
    "host": "launches and the host",
    "node_link": "links in a node",
    "network": "the network",
}


def moved_cluster(cluster: Cluster, shift: Array) -> Cluster:
    """A cluster whose times of each kind are longer by a factor; shift: its logarithms, in the order of `KINDS`."""
    factor = _factors(shift)
    efficiency = _moved(cluster.accelerator.efficiency, factor)
    return replace(
        cluster,
        accelerator=replace(cluster.accelerator, efficiency=efficiency),
        node_link=_moved(cluster.node_link, {"link": factor["node_link"]}),
        network=_moved(cluster.network, {"link": factor["network"]}),
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
    """A profile with those of its figures that a kind scales: times themselves, rates their inverse."""
    changed: dict[str, Any] = {}
    for name, (_, d) in declared(type(profile)).items():
        value = getattr(profile, name)
        if d.kind and value is not None:
            by = factor[d.kind] ** (1.0 if "us" in d.units else -1.0)
            changed[name] = {k: v * by for k, v in value.items()} if isinstance(value, Mapping) else value * by
    return replace(profile, **changed)
