"""A block of an MLP on a mesh of ranks beside the plain one; under MPI, cases of so many ranks.

mpirun -n 4 python -m tests.trainer.mesh_products
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from planner.costs.network.tensor_mesh import ProductOnMesh, on_cube, on_square_meshes
from planner.trainer.arrays import num_bytes
from planner.trainer.communicator import Communicator
from planner.trainer.functions import gelu, gelu_gradient
from planner.trainer.mpi import MPICommunicator
from planner.trainer.tensor_mesh import Cube, SquareMeshes


class Kind(NamedTuple):
    """A mesh: how many ranks, a rank's own end of it, its formula, the least tokens, the least of other sizes."""

    ranks: int
    make: Callable[[Communicator], SquareMeshes | Cube]
    formula: Callable[[int, int, int], ProductOnMesh]
    tokens: int
    others: int


def squares(q: int, d: int = 1) -> Kind:
    """d meshes of q x q; of three or more an all-reduce sends whole bytes where its sizes are multiples of d too."""
    return Kind(
        q * q * d, lambda c: SquareMeshes(communicator=c, q=q, d=d), lambda m, k, n: on_square_meshes(m, k, n, q, d),
        q * d, q * (d if d > 2 else 1),
    )  # fmt: skip


def cube(q: int, again: bool = False) -> Kind:
    """A cube of q a side."""
    return Kind(
        q**3, lambda c: Cube(communicator=c, q=q, again=again), lambda m, k, n: on_cube(m, k, n, q, again), q * q, q * q
    )


def plain(x: Any, w1: Any, w2: Any, dy: Any) -> tuple[Any, ...]:
    """y = gelu(x w1) w2, and the gradients by x, w1 and w2."""
    up = x @ w1
    inner, dup = gelu(np, up), gelu_gradient(np, dy @ w2.T, up)
    return inner @ w2, dup @ w1.T, x.T @ dup, inner.T @ dy


def check(communicator: Communicator, kind: Kind, sizes: tuple[int, int, int, int], seed: int) -> None:
    """This rank's blocks of an MLP's output and gradients are the plain one's, its bytes the formulas'.

    sizes: tokens, inputs, inner size and outputs, in the least that the mesh needs.
    """
    rng = np.random.default_rng(seed)
    m, k, f, n = sizes[0] * kind.tokens, *(size * kind.others for size in sizes[1:])
    x, w1, w2, dy = (rng.standard_normal(shape) for shape in ((m, k), (k, f), (f, n), (m, n)))
    first = kind.make(communicator)
    second = first.next
    sent = []

    def done(result: Any) -> Any:
        sent.append(communicator.traffic.of("tp"))
        return result

    done(None)
    up, kept = done(first.product(first.input_part(x), first.weight_part(w1)))
    y, kept_inner = done(second.product(gelu(np, up), second.weight_part(w2)))
    dinner, dw2 = done(second.gradients(second.output_part(dy), kept_inner))
    dx, dw1 = done(first.gradients(gelu_gradient(np, dinner, up), kept))
    communicator.flush()

    expected = plain(x, w1, w2, dy)
    places = (second.output_part, first.input_part, first.weight_part, second.weight_part)
    for mine, whole, place in zip((y, dx, dw1, dw2), expected, places, strict=True):
        np.testing.assert_allclose(mine, place(whole), rtol=1e-10, atol=1e-10 * np.abs(whole).max())

    into, out = kind.formula(m, k, f), kind.formula(m, f, n)
    assert np.diff(sent).tolist() == [8 * float(s) for s in (into.forward, out.forward, out.backward, into.backward)]
    held = [(up, into.output), (kept, into.kept), (y, out.output), (dx, into.input), (dw1, into.weight)]
    for array, elements in [*held, (kept_inner, out.kept), (dw2, out.weight)]:
        assert num_bytes(array) == 8 * float(elements)


CASES: dict[int, list[Kind]] = {4: [squares(2)], 8: [squares(2, 2), cube(2), cube(2, again=True)]}


def main() -> None:
    """Every case of this many ranks."""
    communicator = MPICommunicator(np)
    cases = CASES[communicator.size]
    try:
        for seed, kind in enumerate(cases):
            for sizes in ((1, 1, 1, 1), (3, 2, 4, 5)):
                check(communicator, kind, sizes, seed)
        communicator.barrier()
    except BaseException as error:
        print(f"rank {communicator.rank}: {error}", flush=True)
        communicator.abort(1)
    if communicator.rank == 0:
        print(f"{len(cases)} meshes agree", flush=True)


if __name__ == "__main__":
    sys.exit(main())
