"""A product y = x w and its gradients on a mesh of tensor ranks: in two, two and a half and three dimensions.

No layout has them: they show that the formulas of `planner.costs.network.tensor_mesh`, which has the sources, are those
of products that are right. A rank has a block of each matrix. Shapes, of such blocks: m tokens, k inputs, n outputs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Self

from planner.base.errors import InputError
from planner.trainer.arrays import Array
from planner.trainer.communicator import Communicator, RankGroup

Pair = tuple[Array, Array]
TAG = 0  # a product sends one rank one message, and messages of one tag come in order


@dataclass(frozen=True, kw_only=True)
class SquareMeshes:
    """SUMMA on d meshes of q x q ranks, each with a part of the tokens; rank = (mesh * q + row) * q + column."""

    communicator: Communicator
    q: int
    d: int = 1

    @property
    def _place(self) -> tuple[int, int, int]:
        """This rank's row among those of all meshes, its row in its mesh, its column."""
        row, column = divmod(self.communicator.rank, self.q)
        return row, row % self.q, column

    @property
    def _groups(self) -> tuple[RankGroup, RankGroup, RankGroup]:
        """Ranks with the same tokens, those of this mesh with the same outputs, those with the same block of w."""
        rank, q, (_, row, column) = self.communicator.rank, self.q, self._place
        return _every(rank - column, 1, q), _every(rank - row * q, q, q), _every(rank % q**2, q**2, self.d)

    def input_part(self, x: Array) -> Array:
        """This rank's block of x. Raises InputError if the ranks don't divide x."""
        return _block(x, self._place[0], self.q * self.d, self._place[2], self.q)

    output_part = input_part

    def weight_part(self, w: Array) -> Array:
        """This rank's block of w. Raises InputError if the ranks don't divide w."""
        return _block(w, self._place[1], self.q, self._place[2], self.q)

    @property
    def next(self) -> Self:
        """The mesh for a product of this one's output."""
        return self

    def product(self, x_mk: Array, w_kn: Array) -> tuple[Array, Pair]:
        """y, and what `gradients` needs."""
        row, column, _ = self._groups
        panels = zip(self._panels(x_mk, row), self._panels(w_kn, column), strict=True)
        return sum(x @ w for x, w in panels), (x_mk, w_kn)

    def gradients(self, dy_mn: Array, kept: Pair) -> Pair:
        """Gradients by x and w."""
        x_mk, w_kn = kept
        row, column, meshes = self._groups
        dx_mk = self._summed((dy_mn @ w.T for w in self._panels(w_kn, column)), row)
        dw_kn = self._summed((x.T @ dy_mn for x in self._panels(x_mk, row)), column)
        return dx_mk, self.communicator.all_reduce(dw_kn, meshes)

    def _panels(self, mine: Array, group: RankGroup) -> Iterator[Array]:
        """The blocks of the group's ranks, one at a time: each hands its own to the others."""
        for owner in group.ranks:
            if owner != self.communicator.rank:
                yield self.communicator.recv(owner, TAG, mine.shape, mine.dtype)
                continue
            for other in set(group.ranks) - {owner}:
                self.communicator.send(mine, other, TAG, group.name)
            yield mine

    def _summed(self, parts: Iterable[Array], group: RankGroup) -> Array:
        """This rank's block of the group's sums, of which each has a part for every one."""
        mine = None
        for owner, part in zip(group.ranks, parts, strict=True):
            if owner != self.communicator.rank:
                self.communicator.send(part, owner, TAG, group.name)
            else:
                recv = self.communicator.recv
                mine = sum(part if r == owner else recv(r, TAG, part.shape, part.dtype) for r in group.ranks)
        return mine


@dataclass(frozen=True, kw_only=True)
class Cube:
    """Products on a cube of q ranks a side; rank = (w * q + x) * q + y, of a rank's places along three sides.

    Each matrix is split over all ranks: along one side ranks have parts of the same block of x, along another of w,
    along the third of y. again: x and w are gathered again for the gradients. turned: x and y change sides.
    """

    communicator: Communicator
    q: int
    again: bool = False
    turned: bool = False

    def _place(self, side: str) -> tuple[int, int]:
        """This rank's place along a side, and how far apart neighbours are there."""
        step = {"w": self.q**2, "x": 1 if self.turned else self.q, "y": self.q if self.turned else 1}[side]
        return self.communicator.rank // step % self.q, step

    def _group(self, side: str) -> RankGroup:
        place, step = self._place(side)
        return _every(self.communicator.rank - place * step, step, self.q)

    def _part(self, matrix: Array, rows: str, within: str, columns: str) -> Array:
        row, inner, column = (self._place(side)[0] for side in (rows, within, columns))
        return _block(matrix, row * self.q + inner, self.q**2, column, self.q)

    def input_part(self, x: Array) -> Array:
        """This rank's block of x. Raises InputError if the ranks don't divide x."""
        return self._part(x, "w", "x", "y")

    def weight_part(self, w: Array) -> Array:
        """This rank's block of w. Raises InputError if the ranks don't divide w."""
        return self._part(w, "y", "w", "x")

    def output_part(self, y: Array) -> Array:
        """This rank's block of y. Raises InputError if the ranks don't divide y."""
        return self._part(y, "w", "y", "x")

    @property
    def next(self) -> Self:
        """The cube for a product of this one's output."""
        return replace(self, turned=not self.turned)

    def _gathered(self, x_mk: Array, w_kn: Array) -> Pair:
        gather = self.communicator.all_gather
        return gather(x_mk, self._group("x")), gather(w_kn, self._group("w"))

    def product(self, x_mk: Array, w_kn: Array) -> tuple[Array, Pair]:
        """y, and what `gradients` needs."""
        x, w = self._gathered(x_mk, w_kn)
        y_mn = self.communicator.reduce_scatter(x @ w, self._group("y"))
        return y_mn, (x_mk, w_kn) if self.again else (x, w)

    def gradients(self, dy_mn: Array, kept: Pair) -> Pair:
        """Gradients by x and w."""
        x, w = self._gathered(*kept) if self.again else kept
        dy, scatter = self.communicator.all_gather(dy_mn, self._group("y")), self.communicator.reduce_scatter
        return scatter(dy @ w.T, self._group("x")), scatter(x.T @ dy, self._group("w"))


def _every(first: int, step: int, count: int) -> RankGroup:
    return RankGroup("tp", tuple(range(first, first + step * count, step)))


def _block(matrix: Array, row: int, rows: int, column: int, columns: int) -> Array:
    """The block at a place of rows x columns."""
    m, n = matrix.shape
    if m % rows or n % columns:
        raise InputError(f"a matrix on the mesh is {m} x {n}; allowed: multiples of {rows} x {columns}")
    return matrix[row * m // rows : (row + 1) * m // rows, column * n // columns : (column + 1) * n // columns]
