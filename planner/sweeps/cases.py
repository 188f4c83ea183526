"""A sweep's cases: every combination of its axes, by number; and the searches that answer several cases at once."""

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from planner.base.errors import FileFormatError
from planner.base.files import is_path
from planner.hardware import Cluster, Framework, cluster_figures, framework_figures, load_cluster, load_framework
from planner.hardware.read import nested
from planner.models import Transformer, load_model, with_seq_len
from planner.sweeps.definition import SweepFile

MOST_CASES = 10_000_000
OWN = "own"
"""The network or framework that the cluster's profile names."""
NOT_SEARCHED = {"accelerator.price_usd_per_hour", "storage_bandwidth_gbyte_per_s", "gpus_per_host"}
"""Hardware fields that no step time and no memory depends on: one search answers for all their values."""


@dataclass(frozen=True)
class Axis:
    """A varied quantity. searched: its value bears on which layout is found; hardware: it is a field of a profile."""

    name: str
    values: tuple[Any, ...]
    searched: bool = True
    hardware: bool = False
    multiples: bool = False


@dataclass(frozen=True)
class Cases:
    """All combinations of the axes' values, numbered with the last axis fastest; axes not searched come last."""

    axes: tuple[Axis, ...]

    def __len__(self) -> int:
        return prod(len(axis.values) for axis in self.axes)

    @property
    def per_search(self) -> int:
        """Cases that one search answers: all values of the axes that don't bear on it, which come last."""
        return prod(len(axis.values) for axis in self.axes if not axis.searched)

    @property
    def num_searches(self) -> int:
        """Combinations of the axes that bear on the search."""
        return len(self) // self.per_search

    def coordinates(self, case: int) -> dict[str, Any]:
        """The value of every axis, by name, in a case."""
        found = {}
        for axis in reversed(self.axes):
            case, i = divmod(case, len(axis.values))
            found[axis.name] = axis.values[i]
        return found

    def of_search(self, search: int) -> range:
        """The cases that a search answers."""
        return range(search * self.per_search, (search + 1) * self.per_search)


def cases(file: SweepFile, where: str) -> Cases:
    """The cases of a sweep's file. Raises FileFormatError if they are more than `MOST_CASES`."""
    axes = [
        Axis("model", tuple(file.models)),
        Axis("cluster", tuple(file.clusters)),
        Axis("network", tuple(file.networks or (OWN,))),
        Axis("framework", tuple(file.frameworks or (OWN,))),
    ]
    if file.designs:
        axes.append(Axis("design", tuple(d.name for d in file.designs)))
    hardware = [
        Axis(name, v.values, searched=name not in NOT_SEARCHED, hardware=True, multiples=v.multiples)
        for name, v in file.hardware.items()
    ]
    axes += [
        *(axis for axis in hardware if axis.searched),
        Axis("seq_len", tuple(file.seq_lens or (None,))),
        Axis("precision", tuple(file.precisions or (None,))),
        Axis("attention", tuple(file.attentions or (None,))),
        Axis("gpus", file.gpus),
        Axis("global_batch", file.global_batches),
        *(axis for axis in hardware if not axis.searched),
        Axis("objective", tuple(file.objectives), searched=False),
    ]
    found = Cases(tuple(axes))
    if len(found) > MOST_CASES:
        raise FileFormatError(f"{where}: the sweep has {len(found):,} cases; allowed: at most {MOST_CASES:,}")
    return found


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
        model = load_model(self._place(name), seq_len)
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
