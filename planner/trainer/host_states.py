"""Optimizer state in host memory: gradients leave the device, numpy steps the host's copy of the parameters, which come
back (ZeRO-Offload, Ren et al. 2021; Megatron-Core's HybridDeviceOptimizer).

Shapes: k elements that this rank owns of a unit.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from planner.trainer.arrays import Array, on_host
from planner.trainer.communicator import Communicator
from planner.trainer.optimizers import Optimizer

LINK = "host"  # the kind of what is sent over it, in counts of bytes


class HostStates:
    """The units that the host steps, whole, in the order of their names until they hold a share of all elements."""

    def __init__(self, communicator: Communicator, sizes: Mapping[str, int], share: float) -> None:
        self.communicator = communicator
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
        """As `Optimizer.update`, on the host."""
        if name not in self._weights:
            self._weights[name], self._decays[name] = np.array(on_host(w_k)), on_host(decays_k)
        traffic = self.communicator.traffic
        traffic.add(LINK, "out", g_k.nbytes, 2)
        optimizer.update(np, name, self._weights[name], on_host(g_k), self._decays[name], step)
        w_k[...] = self.communicator.xp.asarray(self._weights[name])
        traffic.add(LINK, "in", w_k.nbytes, 2)
