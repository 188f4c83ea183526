"""A rank's host memory: activations between a layer's passes, copied beside them, and optimizer states.

Two threads copy, one each way. Under numpy the host's arrays are a second arena in the same memory; under CuPy they lie
on the host.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from planner.trainer.arrays import Array, num_bytes, on_host
from planner.trainer.communicator import Communicator
from planner.trainer.optimizers import Optimizer

LINK = "host"  # the kind of what is sent over it, in counts of bytes


class Away:
    """Arrays on the host, or on their way there or back."""

    def __init__(self, size_bytes: int, there: Future[Any]) -> None:
        self.size_bytes, self.there = size_bytes, there
        self.here: Future[Any] | None = None


class HostArena:
    """One rank's host memory for activations. live: counts the one value that is on its way out of the device."""

    def __init__(self, communicator: Communicator, live: Callable[[int, int, int], None]) -> None:
        self.communicator, self.live = communicator, live
        self._out, self._in = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._leaving: Away | None = None

    def leave(self, value: Any) -> Away:
        """Begin to copy arrays to the host, when those before have left."""
        self.settle()
        size = num_bytes(value)
        self._leaving = Away(size, self._out.submit(copied, value, _to_host))
        self._count("out", size)
        self.live(0, 0, size)
        return self._leaving

    def settle(self) -> None:
        """Wait until all have left."""
        if self._leaving is not None:
            self._leaving.there.result()
            self.live(0, 0, -self._leaving.size_bytes)
            self._leaving = None

    def come(self, away: Away) -> None:
        """Begin to copy arrays back; the host's go when they are here."""
        self._count("in", away.size_bytes)
        away.here = self._in.submit(copied, away.there.result(), self.communicator.xp.array)

    def back(self, away: Away) -> Any:
        """The arrays, when they are back."""
        assert away.here is not None
        return away.here.result()

    def _count(self, way: str, size_bytes: int) -> None:
        self.communicator.traffic.add(LINK, way, size_bytes, 2)


def _to_host(array: Any) -> Any:
    return array.get() if hasattr(array, "get") else array.copy()


def copied(value: Any, copy_of: Any, seen: dict[int, Any] | None = None) -> Any:
    """Nested tuples, lists, dictionaries and dataclasses with copies of their arrays, each array copied once."""
    seen = {} if seen is None else seen
    if id(value) in seen:
        return seen[id(value)]
    out = value
    if hasattr(value, "nbytes"):
        out = copy_of(value)
    elif isinstance(value, dict):
        out = {key: copied(x, copy_of, seen) for key, x in value.items()}
    elif isinstance(value, tuple | list):
        out = type(value)([copied(x, copy_of, seen) for x in value])
    elif is_dataclass(value) and not isinstance(value, type):
        out = copy(value)
        for field in fields(value):
            object.__setattr__(out, field.name, copied(getattr(value, field.name), copy_of, seen))
    seen[id(value)] = out
    return out


class HostStates:
    """The units that the host steps, whole, in the order of their names until they hold a share of all elements.

    Gradients leave the device, numpy steps the host's copy of the parameters, which come back (ZeRO-Offload, Ren et al.
    2021; Megatron-Core's HybridDeviceOptimizer). Where parameters lie on the host (`with_parameters`) it steps these.
    Shapes: k elements that this rank owns of a unit.
    """

    def __init__(
        self, communicator: Communicator, sizes: Mapping[str, int], share: float, with_parameters: bool = False
    ) -> None:
        self.communicator, self.with_parameters = communicator, with_parameters
        self.units: set[str] = set()
        wanted = share * sum(sizes.values())
        for name in sorted(sizes):
            if wanted > sum(sizes[n] for n in self.units):
                self.units.add(name)
        self._weights: dict[str, Array] = {}
        self._decays: dict[str, Array] = {}

    def forget(self) -> None:
        """Take parameters from the device anew: others were loaded there."""
        self._weights.clear()

    def update(self, optimizer: Optimizer, name: str, w_k: Array, g_k: Array, decays_k: Array, step: int) -> None:
        """Updates as `Optimizer.update` does, on the host."""
        if name not in self._weights:
            self._weights[name] = w_k if self.with_parameters else np.array(on_host(w_k))
            self._decays[name] = on_host(decays_k)
        traffic = self.communicator.traffic
        traffic.add(LINK, "out", g_k.nbytes, 2)
        optimizer.update(np, name, self._weights[name], on_host(g_k), self._decays[name], step)
        if not self.with_parameters:
            w_k[...] = self.communicator.xp.asarray(self._weights[name])
            traffic.add(LINK, "in", w_k.nbytes, 2)
