"""A sweep's cases: every combination of its axes, by number; and the searches that answer several cases at once."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from planner.base.errors import FileFormatError
from planner.sweeps.definition import SweepFile

MOST_CASES = 10_000_000
OWN = "own"
"""The network or framework that the cluster's profile names."""
NOT_SEARCHED = {"accelerator.price_usd_per_hour", "accelerator.power_w", "storage_bandwidth_gbyte_per_s"}
"""Hardware fields that no step time and no memory depends on: one search answers for all their values."""


@dataclass(frozen=True)
class Axis:
    """What is varied. searched: its value bears on which layout is found; hardware: it is a field of a profile."""

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
