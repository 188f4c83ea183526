"""Models, clusters and frameworks by name, each read once in a sweep's life."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from planner.base.files import is_path
from planner.hardware import Cluster, Framework, cluster_figures, framework_figures, load_cluster, load_framework
from planner.hardware.changes import nested
from planner.models import Transformer, load_model, with_seq_len
from planner.sweeps.cases import OWN

Settings = tuple[tuple[str, Any], ...]
"""Dotted names of hardware fields, each with the value that replaces the profile's, in the profile's unit."""
KEPT = 4096


class Library:
    """Models and hardware by name, or by a path from the sweep's folder; raises as `load_model`, `load_cluster` and
    `load_framework`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Cases share what they name: kept for a sweep's life, a few thousand at a time.
        self.model = lru_cache(KEPT)(self._model)
        self.hardware = lru_cache(KEPT)(self._hardware)
        self.figures = lru_cache(KEPT)(self._figures)

    def _place(self, name: str) -> str:
        return str(self._folder / name) if is_path(name, (".toml", ".json")) else name

    def _link(self, name: str) -> str | None:
        return None if name == OWN else self._place(name)

    def _model(self, name: str, seq_len: int | None) -> Transformer:
        model = load_model(self._place(name))
        return model if seq_len is None else with_seq_len(model, seq_len)

    def _hardware(self, cluster: str, network: str, framework: str, settings: Settings) -> tuple[Cluster, Framework]:
        """A cluster over a network, and a framework, with other figures than their profiles have."""
        tree = nested(settings)
        frame = tree.pop("framework", None)
        nodes = load_cluster(self._place(cluster), network=self._link(network), changes=tree)
        return nodes, load_framework(self._link(framework) or nodes.framework, changes=frame)

    def _figures(self, cluster: str, network: str, framework: str) -> dict[str, float]:
        """Every figure of the profiles by its dotted name, in the profile's units."""
        frame = self._link(framework) or load_cluster(self._place(cluster)).framework
        found = cluster_figures(self._place(cluster), network=self._link(network))
        return found | {f"framework.{name}": value for name, value in framework_figures(frame).items()}
