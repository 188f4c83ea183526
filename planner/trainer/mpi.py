"""The MPI engine: one process a rank, started by mpirun; arrays go over MPI through mpi4py's buffers.

Arrays that aren't numpy's pass through host memory, so that any MPI will do. The NCCL engine takes MPI's ranks, one
process and one GPU each, and has its collectives GPU to GPU through CuPy's NCCL, which has run with one rank on an
H200 (`benchmarks/gpu_check.py`), and with no more.
"""

import importlib
from typing import Any

import numpy as np

from planner.base.errors import InputError
from planner.trainer.arrays import Array, on_host
from planner.trainer.communicator import Communicator, RankGroup


def load_mpi() -> Any:
    """The `mpi4py.MPI` module, MPI started. Raises InputError if mpi4py or an MPI library is missing."""
    try:
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"engine is 'mpi' but MPI can't be loaded ({reason}); pip install '.[mpi]'") from None


class MPICommunicator(Communicator):
    """This process's rank. Groups become MPI communicators when first used."""

    def __init__(self, xp: Any) -> None:
        self.mpi = load_mpi()
        self.world = self.mpi.COMM_WORLD
        super().__init__(xp, self.world.Get_rank(), self.world.Get_size())
        self._groups: dict[tuple[int, ...], Any] = {tuple(range(self.size)): self.world}
        # What was sent and may still be read: the request and its array.
        self._leaving: list[tuple[Any, Array]] = []

    def recv(self, source: int, tag: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """See `Communicator.recv`."""
        x = np.empty(shape, dtype=dtype)
        self.world.Recv(x, source=source, tag=tag)
        return self._back(x)

    def barrier(self) -> None:
        """See `Communicator.barrier`."""
        self.world.Barrier()

    def flush(self) -> None:
        """See `Communicator.flush`."""
        self.mpi.Request.Waitall([request for request, _ in self._leaving])
        self._leaving = []

    def abort(self, code: int) -> None:
        """Stop every rank's process at once."""
        self.world.Abort(code)

    def _send(self, x: Array, to: int, tag: int) -> None:
        self._leaving = [(request, kept) for request, kept in self._leaving if not request.Test()]
        x = self._out(x)
        self._leaving.append((self.world.Isend(x, dest=to, tag=tag), x))

    def _all_reduce(self, x: Array, group: RankGroup, operation: str) -> Array:
        x = self._out(x)
        total = np.empty_like(x)
        self._of(group).Allreduce(x, total, op=self.mpi.MAX if operation == "max" else self.mpi.SUM)
        return self._back(total)

    def _all_gather(self, x: Array, group: RankGroup, axis: int) -> Array:
        x = self._out(x)
        parts = np.empty((len(group), *x.shape), dtype=x.dtype)
        self._of(group).Allgather(x, parts)
        return self._back(np.concatenate(list(parts), axis=axis) if axis else parts.reshape(-1, *x.shape[1:]))

    def _reduce_scatter(self, x: Array, group: RankGroup, axis: int) -> Array:
        parts = np.stack(np.split(self._out(x), len(group), axis=axis))
        mine = np.empty_like(parts[0])
        self._of(group).Reduce_scatter_block(parts, mine, op=self.mpi.SUM)
        return self._back(mine)

    def _all_to_all(self, x: Array, group: RankGroup, split_axis: int, join_axis: int) -> Array:
        parts = np.stack(np.split(self._out(x), len(group), axis=split_axis))
        came = np.empty_like(parts)
        self._of(group).Alltoall(parts, came)
        return self._back(np.concatenate(list(came), axis=join_axis))

    def _of(self, group: RankGroup) -> Any:
        if group.ranks not in self._groups:
            members = self.world.Get_group().Incl(list(group.ranks))
            self._groups[group.ranks] = self.world.Create_group(members, tag=group.ranks[0])
        return self._groups[group.ranks]

    def _out(self, x: Array) -> Any:
        return np.ascontiguousarray(on_host(x))

    def _back(self, x: Any) -> Array:
        return x if self.xp is np else self.xp.asarray(x)


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
