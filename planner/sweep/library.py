"""Models, clusters and frameworks by name, each read once in a sweep's life."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from planner.hardware import Cluster, Framework, cluster_figures, framework_figures, load_cluster, load_framework
from planner.models import Transformer, load_model, with_seq_len
from planner.sweep.cases import OWN

__all__ = ["Library", "Settings"]

Settings = tuple[tuple[str, Any], ...]
"""Dotted names of hardware fields, each with the value that replaces the profile's, in the profile's unit."""
KEPT = 4096


class Library:
    """Caches of what cases share; raises as `load_model`, `load_cluster` and `load_framework`."""

    def __init__(self) -> None:
        self.model = lru_cache(KEPT)(_model)
        self.hardware = lru_cache(KEPT)(_hardware)
        self.figures = lru_cache(KEPT)(_figures)


def _model(name: str, seq_len: int | None) -> Transformer:
    model = load_model(name)
    return model if seq_len is None else with_seq_len(model, seq_len)


def _hardware(cluster: str, network: str, framework: str, settings: Settings) -> tuple[Cluster, Framework]:
    """A cluster over a network, and a framework, with other figures than their profiles have."""
    tree = _tree(settings)
    frame = tree.pop("framework", None)
    nodes = load_cluster(cluster, network=None if network == OWN else network, changes=tree)
    return nodes, load_framework(nodes.framework if framework == OWN else framework, changes=frame)


def _figures(cluster: str, network: str, framework: str) -> dict[str, float]:
    """Every figure of the profiles by its dotted name, in the profile's units."""
    nodes = load_cluster(cluster)
    frame = framework_figures(nodes.framework if framework == OWN else framework)
    found = cluster_figures(cluster, network=None if network == OWN else network)
    return found | {f"framework.{name}": value for name, value in frame.items()}


def _tree(settings: Settings) -> dict[str, Any]:
    """Dotted names as nested tables."""
    tree: dict[str, Any] = {}
    for name, value in settings:
        *folders, leaf = name.split(".")
        table = tree
        for folder in folders:
            table = table.setdefault(folder, {})
        table[leaf] = value
    return tree
