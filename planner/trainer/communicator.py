"""The few collectives that training needs, over named groups, with their bytes counted.

An engine subclasses `Communicator` and fills in the underscored methods; arrays belong to the caller before and after.
"""

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from planner.trainer.arrays import Array


@dataclass(frozen=True)
class RankGroup:
    """Ranks that act together, in order; the name says what for (`tp`, `dp`...) and is the kind in byte counts."""

    name: str
    ranks: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ranks)


@dataclass
class SentTraffic:
    """Bytes that one rank sends, by (group, operation), under ring algorithms."""

    wire_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, group: str, operation: str, size_bytes: int, num_ranks: int) -> None:
        """Count one operation on a whole array: what is reduced, what a gather yields, what a scatter takes.

        Of n ranks an all-reduce sends 2(n-1)/n of the array, the other collectives (n-1)/n.
        """
        rounds = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}.get(operation, 0)
        wire = size_bytes * rounds * (num_ranks - 1) // num_ranks if rounds else size_bytes
        self.wire_bytes[group, operation] += wire

    def of(self, group: str) -> int:
        """Bytes that this rank sent for a group, all operations together."""
        return sum(size for (name, _), size in self.wire_bytes.items() if name == group)


class Communicator(ABC):
    """One rank's end of the wires. Groups of one rank are answered here, without an engine and without bytes."""

    def __init__(self, xp: Any, rank: int, size: int) -> None:
        self.xp = xp
        self.rank = rank
        self.size = size
        self.traffic = SentTraffic()

    def all_reduce(self, x: Array, group: RankGroup, operation: str = "sum") -> Array:
        """The sum (or `max`) over the group, same shape, on every rank of it."""
        if len(group) == 1:
            return x
        self.traffic.add(group.name, "all_reduce", x.nbytes, len(group))
        return self._all_reduce(x, group, operation)

    def all_gather(self, x: Array, group: RankGroup, axis: int = 0) -> Array:
        """The group's arrays side by side along an axis, in the group's order."""
        if len(group) == 1:
            return x
        self.traffic.add(group.name, "all_gather", x.nbytes * len(group), len(group))
        return self._all_gather(x, group, axis)

    def reduce_scatter(self, x: Array, group: RankGroup, axis: int = 0) -> Array:
        """This rank's equal part along an axis of the group's sum."""
        if len(group) == 1:
            return x
        self.traffic.add(group.name, "reduce_scatter", x.nbytes, len(group))
        return self._reduce_scatter(x, group, axis)

    def all_to_all(self, x: Array, group: RankGroup, split_axis: int, join_axis: int) -> Array:
        """Equal parts along one axis, one to each rank of the group; what arrives side by side along another."""
        if len(group) == 1:
            return x
        self.traffic.add(group.name, "all_to_all", x.nbytes, len(group))
        return self._all_to_all(x, group, split_axis, join_axis)

    def send(self, x: Array, to: int, tag: int, kind: str = "pp") -> None:
        """Hand an array to another rank without waiting for it to be received."""
        self.traffic.add(kind, "send", x.nbytes, 2)
        self._send(x, to, tag)

    @abstractmethod
    def recv(self, source: int, tag: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """Wait for the array that `source` sent under that tag."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait for all ranks."""

    @abstractmethod
    def flush(self) -> None:
        """Wait until everything sent has left."""

    @abstractmethod
    def _all_reduce(self, x: Array, group: RankGroup, operation: str) -> Array: ...

    @abstractmethod
    def _all_gather(self, x: Array, group: RankGroup, axis: int) -> Array: ...

    @abstractmethod
    def _reduce_scatter(self, x: Array, group: RankGroup, axis: int) -> Array: ...

    @abstractmethod
    def _all_to_all(self, x: Array, group: RankGroup, split_axis: int, join_axis: int) -> Array: ...

    @abstractmethod
    def _send(self, x: Array, to: int, tag: int) -> None: ...
