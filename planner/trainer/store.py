"""One rank's parameters and gradients, sharded over data-parallel ranks as ZeRO says (Rajbhandari et al. 2020).

| zero | parameters | gradients | optimizer state | at the end of a step |
| --- | --- | --- | --- | --- |
| 0 | whole | whole | whole | all-reduce gradients |
| 1 | whole | whole | shard | reduce-scatter gradients, all-gather parameters |
| 2 | whole | shard, scattered after each use | shard | all-gather parameters |
| 3 | shard, gathered for each use | shard, scattered after each use | shard | nothing |

Where a schedule takes a layer at a time (breadth-first, layered gradient accumulation), operations of one stage in a
row share one gather and one scatter: each layer is gathered once a pass, however many micro-batches there are.

Hybrid sharding keeps several copies of what is sharded, each over some of the data ranks: gathers stay among these, and
each scatter is followed by an all-reduce of the shard over its copies.

Shapes: n elements of a unit on one tensor-parallel rank, padded to a multiple of the shards; k = n where this rank owns
all of it, n / shards where it owns a shard.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from planner.trainer.arrays import Array
from planner.trainer.communicator import Communicator, RankGroup
from planner.trainer.host_arena import LINK
from planner.trainer.mesh import Mesh
from planner.trainer.parameters import Unit, Views


class Store:
    """Parameters and gradients of the units that this rank holds.

    holders: of each unit, the ranks of this data and tensor coordinate that hold it: more than one for a tied
    embedding, or a pipeline with two replicas of the model. dtype: of parameters and gradients as they are kept and
    stepped; compute: of parameters as layers use them, by default the same. on_host: the shards of parameters lie in
    host memory, and come to the device for every gather.
    """

    def __init__(
        self,
        *,
        communicator: Communicator,
        mesh: Mesh,
        units: Iterable[Unit],
        holders: Mapping[str, RankGroup],
        zero: int,
        dtype: Any,
        compute: Any = None,
        seed: int = 0,
        sequence_parallel: bool = False,
        ep: int = 1,
        on_host: bool = False,
    ) -> None:
        self.communicator, self.mesh, self.zero, self.dtype = communicator, mesh, zero, dtype
        self.expert_mesh, self.shared_mesh = mesh.expert_mesh(ep), mesh.whole_pipeline
        self.compute = dtype if compute is None else compute
        self.units = {unit.name: unit for unit in sorted(units, key=lambda u: u.name)}
        self.holders = holders
        self.sequence_parallel, self.on_host = sequence_parallel, on_host
        self.xp = communicator.xp
        self._parameters: dict[str, Array] = {}
        self._gradients: dict[str, Array] = {}
        self._gathered: dict[str, Array] = {}
        self._cast: dict[str, Array] = {}
        self._unscattered: dict[str, Array] = {}
        for name, unit in self.units.items():
            here = self.mesh_of(name)
            start = self.padded(name, unit.initial(np, seed, here.tp, here.t))
            start = start.astype(dtype) if on_host else self.xp.asarray(start.astype(dtype))
            self._parameters[name] = start[self.mine(name)].copy() if zero == 3 else start
        self.clear_gradients()

    def mesh_of(self, name: str) -> Mesh:
        """The ranks as a unit sees them."""
        unit = self.units[name]
        return self.expert_mesh if unit.experts else self.shared_mesh if unit.shared else self.mesh

    def num_elements(self, name: str) -> int:
        """Elements of a unit on this tensor rank, padded so that they split evenly over the shards."""
        mesh = self.mesh_of(name)
        n, shards = self.units[name].num_elements(mesh.tp), mesh.num_shards
        return -(-n // shards) * shards

    def padded(self, name: str, flat: Any) -> Any:
        """A host array of the unit's elements with zeros behind, shape (n,)."""
        return np.concatenate([flat, np.zeros(self.num_elements(name) - len(flat), dtype=flat.dtype)])

    def mine(self, name: str) -> slice:
        """The elements whose optimizer state this rank keeps."""
        n = self.num_elements(name)
        if not self.zero:
            return slice(0, n)
        mesh = self.mesh_of(name)
        k, mine = n // mesh.num_shards, mesh.d % mesh.num_shards
        return slice(mine * k, (mine + 1) * k)

    def parameters(self, unit: Unit) -> Views:
        """The unit's parameters, whole; gathered where they are sharded."""
        flat, mesh = self._in_compute(unit.name), self.mesh_of(unit.name)
        if self.zero == 3:
            if unit.name not in self._gathered:
                self._gathered[unit.name] = self.communicator.all_gather(self._on_device(flat), mesh.shard)
            flat = self._gathered[unit.name]
        return unit.views(flat, mesh.tp)

    def _on_device(self, shard: Array) -> Array:
        if not self.on_host:
            return shard
        self.communicator.traffic.add(LINK, "in", shard.nbytes, 2)
        return self.xp.array(shard)

    def _in_compute(self, name: str) -> Array:
        """The unit's parameters in the number format of the layers, cast once a step."""
        if self.compute == self.dtype:
            return self._parameters[name]
        if name not in self._cast:
            self._cast[name] = self._parameters[name].astype(self.compute)
        return self._cast[name]

    def gradients(self, unit: Unit) -> Views:
        """The array in which the unit's gradients add up, whole."""
        tp = self.mesh_of(unit.name).tp
        if self.zero < 2:
            return unit.views(self._gradients[unit.name], tp)
        if unit.name not in self._unscattered:
            self._unscattered[unit.name] = self.xp.zeros(self.num_elements(unit.name), dtype=self.dtype)
        return unit.views(self._unscattered[unit.name], tp)

    def release(self, units: Iterable[Unit]) -> None:
        """Forget gathered parameters."""
        for unit in units:
            self._gathered.pop(unit.name, None)

    def scatter(self, units: Iterable[Unit]) -> None:
        """Reduce gradients to the shards that ranks keep, where they do."""
        for unit in units:
            whole = self._unscattered.pop(unit.name, None)
            if whole is not None:
                self._gradients[unit.name] += self._scattered(unit.name, whole)

    def _scattered(self, name: str, whole: Array) -> Array:
        """This rank's shard of a gradient, summed over all data ranks."""
        mesh = self.mesh_of(name)
        shard = self.communicator.reduce_scatter(whole, mesh.shard)
        return self.communicator.all_reduce(shard, mesh.copies) if mesh.dp_replicate > 1 else shard

    def reduce_gradients(self) -> None:
        """The step's gradients, complete: over data ranks, over all holders of a unit, over split tokens."""
        for name, gradient in self._gradients.items():
            if self.zero == 0:
                self._gradients[name] = self.communicator.all_reduce(gradient, self.mesh_of(name).data)
            elif self.zero == 1:
                self._gradients[name] = self._scattered(name, gradient)
        for name, gradient in self._gradients.items():
            self._gradients[name] = self.communicator.all_reduce(gradient, self.holders[name])
        if self.sequence_parallel:
            self._reduce_split_tokens()

    def _reduce_split_tokens(self) -> None:
        """Weights outside of tensor-parallel regions saw only this rank's tokens: sum over the tensor group."""
        for name, unit in self.units.items():
            whole = unit.num_whole(self.mesh_of(name).tp)
            k = min(max(whole - self.mine(name).start, 0), len(self._gradients[name]))
            if k:
                front = self._gradients[name][:k]
                front[...] = self.communicator.all_reduce(front, self.mesh.tensor)

    @property
    def versions(self) -> dict[str, Array]:
        """The arrays that hold the parameters, for swapping in others; only where nothing is sharded."""
        return self._parameters

    def use(self, parameters: dict[str, Array]) -> None:
        """Run on these parameters from now on."""
        self._parameters = parameters

    def owned(self, name: str) -> tuple[Array, Array]:
        """The parameters that this rank steps, and their gradients, each of shape (k,)."""
        whole = self._parameters[name]
        return (whole if self.zero == 3 else whole[self.mine(name)]), self._gradients[name]

    def publish(self) -> None:
        """After the optimizer's step: every rank gets the parts that others stepped."""
        self._cast.clear()
        if self.zero in (1, 2):
            for name, whole in self._parameters.items():
                part = whole[self.mine(name)].copy()
                self._parameters[name] = self.communicator.all_gather(part, self.mesh_of(name).shard)

    def clear_gradients(self) -> None:
        """Zero, ready for the next step."""
        for name in self.units:
            n = self.num_elements(name)
            k = n if self.zero < 2 else n // self.mesh_of(name).num_shards
            self._gradients[name] = self.xp.zeros(k, dtype=self.dtype)

    def weights(self, name: str) -> Array:
        """Weights of the owned elements in a sum over all ranks, shape (k,): one over the ranks that own each."""
        unit, mesh = self.units[name], self.mesh_of(name)
        spread = unit.spread(np, lambda p: 1.0 if p.tp_axis is not None else 1.0 / mesh.tp, mesh.tp)
        copies = len(self.holders[name]) * (mesh.dp_replicate if self.zero else mesh.dp)
        return self.xp.asarray((self.padded(name, spread) / copies)[self.mine(name)].astype(self.dtype))

    def decays(self, name: str) -> Array:
        """1 where weight decay applies, else 0, shape (k,)."""
        spread = self.units[name].spread(np, lambda p: p.decays, self.mesh_of(name).tp)
        return self.xp.asarray(self.padded(name, spread)[self.mine(name)].astype(self.dtype))

    def whole(self, name: str, owned_k: Array) -> dict[str, Array]:
        """An owned array as the model's own tensors, gathered over data and tensor ranks: parameters or gradients."""
        unit, mesh = self.units[name], self.mesh_of(name)
        owned_k = self.xp.asarray(owned_k)
        flat = self.communicator.all_gather(owned_k, mesh.shard) if self.zero else owned_k
        ranks = self.communicator.all_gather(flat, mesh.tensor).reshape(mesh.tp, -1)
        parts = [unit.views(flat, mesh.tp) for flat in ranks]
        out = {}
        for p in unit.parameters:
            pieces = [part[p.name] for part in parts]
            out[p.name] = pieces[0] if p.tp_axis is None else self.xp.concatenate(pieces, axis=p.tp_axis)
        return out
