"""Products on meshes of tensor ranks: results, gradients and bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.base.errors import InputError
from planner.trainer.serial import run_serial
from planner.trainer.tensor_mesh import Cube, SquareMeshes
from tests.trainer.mesh_products import CASES, check, cube, squares
from tests.trainer.mpirun import mpirun, needs_mpi

SIZES = st.tuples(*[st.integers(1, 4)] * 4)
SEED = st.integers(0, 2**32 - 1)


def agrees(kind, sizes, seed):
    run_serial(np, kind.ranks, lambda communicator: check(communicator, kind, sizes, seed))


@settings(max_examples=40, deadline=None)
@given(q=st.integers(1, 4), d=st.integers(1, 4), sizes=SIZES, seed=SEED)
def test_square_meshes(q, d, sizes, seed):
    """Two products with an activation between, forward and backward, in two dimensions and in two and a half."""
    agrees(squares(q, d), sizes, seed)


@settings(max_examples=30, deadline=None)
@given(q=st.integers(1, 3), again=st.booleans(), sizes=SIZES, seed=SEED)
def test_cubes(q, again, sizes, seed):
    """The same in three dimensions."""
    agrees(cube(q, again), sizes, seed)


@needs_mpi
@pytest.mark.parametrize("num_ranks", CASES)
def test_under_mpi(num_ranks):
    done = mpirun(num_ranks, ["-m", "tests.trainer.mesh_products"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CASES[num_ranks])} meshes agree" in done.stdout


@pytest.mark.parametrize("kind", [SquareMeshes, Cube])
def test_a_matrix_that_the_ranks_do_not_divide_is_refused(kind):
    def program(communicator):
        kind(communicator=communicator, q=2).weight_part(np.ones((8, 3)))

    with pytest.raises(InputError, match=r"a matrix on the mesh is 8 x 3; allowed: multiples of [24] x 2"):
        run_serial(np, 8, program)
