"""How a command's process uses the machine: memory that it keeps, and under mpirun its part of the processors."""

import ctypes
import os
import sys

# Parameters of mallopt(3), glibc's numbers for them, and what they are set to.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, ARENA_MAX = -1, -2, -3, -8
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc takes no larger one on 64 bits
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def keep_freed_memory() -> bool:
    """A training step or a search frees and takes the same arrays again: the process keeps them, if it may.

    Otherwise glibc gives large arrays back to the kernel, which clears their pages again at the next use: on a virtual
    machine with 2 processors a third of a step, and a share that varies with how many micro-batches are in flight. Of a
    search of millions of layouts it is a seventh.

    Returns whether the C library took the settings; on other systems nothing happens.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library, which has no such call
        return False
    wanted = (
        (MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD),
        (TRIM_THRESHOLD, 2**31 - 1),
        (TOP_PAD, 64 * 2**20),
        (ARENA_MAX, 1),  # the ranks of the serial engine are threads; arenas of their own are given back when empty
    )
    taken = [mallopt(parameter, value) == 1 for parameter, value in wanted]  # each of them, whatever the others say
    return all(taken)


def started_by_mpirun() -> bool:
    """Whether this process is one of mpirun's."""
    return "OMPI_COMM_WORLD_SIZE" in os.environ


def share_processors() -> None:
    """Under mpirun the ranks of a machine share its processors: each gets its part of them for matrix products.

    Said before numpy is loaded, which reads it then; what the user said stays.
    """
    if started_by_mpirun():
        ranks = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1"))
        for name in THREADS:
            os.environ.setdefault(name, str(max((os.cpu_count() or 1) // ranks, 1)))
