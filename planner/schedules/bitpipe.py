"""BitPipe (Wu et al. 2024, arXiv 2410.19367): two V-shaped interleaved pipelines in opposite directions.

Two copies of the model, four chunks per rank. Even micro-batches go down the V (stages r and 2p - 1 - r of rank r), odd
ones the same from the other end (stages p - 1 - r and p + r). Where a V turns, the copy is local.

rank 0  0F0 1F1 2F1 3F0 3B0 2B1 1B1 0B0     (p = 2, m = 2)
rank 1  0F1 1F0 2F0 3F1 3B1 2B0 1B0 0B1
"""

from itertools import chain
from typing import Any

import numpy as np

from planner.base.arrays import Array, Ints
from planner.schedules.base import Operation, Order, Pipeline
from planner.schedules.chimera import Chimera

Pass = tuple[int, int]
"""A chunk's micro-batch: (chunk 0 to 3, its place among that chunk's)."""


class BitPipe(Chimera):
    """Chimera's two directions with interleaved stages: half of Chimera's bubble for twice its messages."""

    name = "bitpipe"
    source = "Wu et al. 2024, arXiv 2410.19367; order read in its repository"
    chunks = 2

    def rank_of(self, pipe: Pipeline, stage: Any, micro_batch: Any) -> Ints:
        """Stages r and 2p - 1 - r lie on rank r for even micro-batches, on rank p - 1 - r for odd ones."""
        shallow = np.minimum(stage, 2 * np.asarray(pipe.p) - 1 - stage)
        return super().rank_of(pipe, shallow, micro_batch)

    def order(self, pipe: Pipeline) -> Order:
        """p + p/2 + min(r, p - 1 - r) forwards, then unit by unit forwards and backwards in turn."""
        p, m = pipe.p, pipe.m
        rows = []
        for r in range(p):
            stage = (r, p - 1 - r, 2 * p - 1 - r, p + r)

            def operation(kind: str, at: Pass, stage: tuple[int, ...] = stage) -> Operation:
                return Operation(stage[at[0]], kind, 2 * at[1] + at[0] % 2)

            forwards = [operation("F", at) for unit in range(m // p) for at in _blend(p, r, unit, deep_first=False)]
            backwards = [operation("B", at) for unit in range(m // p) for at in _blend(p, r, unit, deep_first=True)]
            rows.append(_weave(forwards, backwards, p, r, m // p))
        return Order.of_rows(rows)

    def bubble_s(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> Array:
        """Half of Chimera's for all F and B, found by simulation."""
        return np.asarray(super().bubble_s(pipe, F, I, W) / 2)

    def in_flight(self, pipe: Pipeline, rank: Any, kept: Any = 0.0) -> Array:
        """3p/4 + 1/2 at the ends, half more for each rank towards the middle, up to p."""
        p = np.asarray(pipe.p)
        return np.asarray(3 * p / 4 + 0.5 + np.minimum(rank, p - 1 - rank) / 2 + 0.0 * np.asarray(pipe.m))


def _weave(forwards: list[Operation], backwards: list[Operation], p: int, r: int, units: int) -> list[Operation]:
    """Forwards and backwards of a rank in turn, unit by unit; a unit has 2p of each."""
    forward, backward = iter(forwards), iter(backwards)
    w = p + p // 2 + min(r, p - 1 - r)
    u = 2 * p - w
    plan = "F" * w
    for _ in range(units - 1):
        plan += "FB" * u + "B" * (w - u + 1) + "FB" * (u - 1) + "F" * (w - u + 1)
    plan += "FB" * u
    row = [next(forward if kind == "F" else backward) for kind in plan]
    return row + list(backward)


def _blend(p: int, r: int, unit: int, deep_first: bool) -> list[Pass]:
    """The order of a unit's forwards on rank r, or of its backwards, which take the deep chunks first."""
    half = p // 2
    h = r // half
    ni = half - r if r < half else r - half + 1
    near, far = h, 1 - h
    # Chunks of this half's own direction and of the other: shallow and deep.
    own_shallow, other_shallow, other_deep, own_deep = near, far, 3 - near, 2 + near
    if deep_first:
        own_shallow, other_shallow, other_deep, own_deep = own_deep, other_deep, other_shallow, own_shallow

    def at(chunk: int, i: int) -> Pass:
        return chunk, unit * half + i

    rest = half - ni
    return list(
        chain(
            (at(own_shallow, i) for i in range(ni)),
            chain.from_iterable((at(other_shallow, i), at(own_shallow, i + ni)) for i in range(rest)),
            chain.from_iterable((at(other_shallow, i + rest), at(other_deep, i)) for i in range(ni)),
            chain.from_iterable((at(own_deep, i), at(other_deep, i + ni)) for i in range(rest)),
            (at(own_deep, i + rest) for i in range(ni)),
        )
    )
