"""Under mpirun the ranks of a machine share its processors: each gets its part of them for matrix products."""

from __future__ import annotations

import os

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def started_by_mpirun() -> bool:
    """Whether this process is one of mpirun's."""
    return "OMPI_COMM_WORLD_SIZE" in os.environ


def share_processors() -> None:
    """Say so before numpy is loaded, which reads it then; what the user said stays."""
    if started_by_mpirun():
        ranks = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1"))
        for name in THREADS:
            os.environ.setdefault(name, str(max((os.cpu_count() or 1) // ranks, 1)))
