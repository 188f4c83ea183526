"""The NCCL engine: collectives GPU to GPU through CuPy's NCCL, one process and one GPU a rank, introduced over MPI.

Not yet run on GPUs: only its error messages are tested.
"""

from __future__ import annotations

import importlib
from typing import Any

from planner.base.errors import InputError
from planner.trainer.arrays import Array
from planner.trainer.communicator import RankGroup
from planner.trainer.mpi import MPICommunicator

TYPES = {"float16": "NCCL_FLOAT16", "float32": "NCCL_FLOAT32", "float64": "NCCL_FLOAT64", "int64": "NCCL_INT64"}


def load_nccl(xp: Any) -> Any:
    """CuPy's NCCL bindings. Raises InputError if the arrays aren't CuPy's, or CuPy was built without NCCL."""
    if xp.__name__ != "cupy":
        raise InputError("engine is 'nccl' and device 'cpu'; nccl needs --device gpu, mpi runs on both")
    try:
        nccl = importlib.import_module("cupy.cuda.nccl")
    except ImportError:
        nccl = None
    if nccl is None or not getattr(nccl, "available", False):
        raise InputError("engine is 'nccl' but CuPy has no NCCL; pip install nvidia-nccl-cu12, or use --engine mpi")
    return nccl


class NCCLCommunicator(MPICommunicator):
    """MPI's ranks and groups, NCCL's collectives on the current stream.

    Messages between stages stay with MPI: they have tags and may be received in another order than they were sent,
    which NCCL's sends can't say. So does the all-to-all, which NCCL has only as sends.
    """

    def __init__(self, xp: Any) -> None:
        self.nccl = load_nccl(xp)
        super().__init__(xp)
        xp.cuda.Device(self.rank % int(xp.cuda.runtime.getDeviceCount())).use()
        self._rings: dict[tuple[int, ...], Any] = {}

    def _ring(self, group: RankGroup) -> Any:
        """The group's NCCL communicator; its first rank makes the identifier."""
        if group.ranks not in self._rings:
            peers = self._of(group)
            name = peers.bcast(self.nccl.get_unique_id() if peers.Get_rank() == 0 else None)
            self._rings[group.ranks] = self.nccl.NcclCommunicator(len(group), name, peers.Get_rank())
        return self._rings[group.ranks]

    def _kind(self, x: Array) -> Any:
        return getattr(self.nccl, TYPES[x.dtype.name])

    def _stream(self) -> int:
        return int(self.xp.cuda.get_current_stream().ptr)

    def _all_reduce(self, x: Array, group: RankGroup, operation: str) -> Array:
        x = self.xp.ascontiguousarray(x)
        total = self.xp.empty_like(x)
        how = self.nccl.NCCL_MAX if operation == "max" else self.nccl.NCCL_SUM
        ring = self._ring(group)
        ring.allReduce(x.data.ptr, total.data.ptr, x.size, self._kind(x), how, self._stream())
        return total

    def _all_gather(self, x: Array, group: RankGroup, axis: int) -> Array:
        x = self.xp.ascontiguousarray(x)
        parts = self.xp.empty((len(group), *x.shape), dtype=x.dtype)
        self._ring(group).allGather(x.data.ptr, parts.data.ptr, x.size, self._kind(x), self._stream())
        return self.xp.concatenate(list(parts), axis=axis)

    def _reduce_scatter(self, x: Array, group: RankGroup, axis: int) -> Array:
        parts = self.xp.stack(self.xp.split(x, len(group), axis=axis))
        mine = self.xp.empty_like(parts[0])
        ring = self._ring(group)
        ring.reduceScatter(parts.data.ptr, mine.data.ptr, mine.size, self._kind(x), self.nccl.NCCL_SUM, self._stream())
        return mine
