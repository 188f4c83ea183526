"""The MPI engine under a real mpirun."""

from __future__ import annotations

import pytest

from tests.trainer.mpi_program import TASKS
from tests.trainer.mpirun import mpirun, needs_mpi


@needs_mpi
@pytest.mark.parametrize("num_ranks", TASKS)
def test_gradients_equal_plain_training(num_ranks):
    done = mpirun(num_ranks, ["-m", "tests.trainer.mpi_program"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(TASKS[num_ranks])} tasks agree" in done.stdout
