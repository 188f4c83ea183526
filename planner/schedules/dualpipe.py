"""DualPipe and DualPipeV (DeepSeek 2025, github.com/deepseek-ai/DualPipe): overlapped forward and backward.

DualPipe feeds micro-batches from both ends (even ones enter at rank 0, odd ones at rank p - 1), so every rank holds
two stages, r and p - 1 - r, of two copies of the model. DualPipeV folds that in half: one copy, rank r holds stages r
and 2p - 1 - r. In the middle a forward and a backward run fused, so that one's communication hides behind the other's
compute; W fills what would be idle at the end.

rank 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3& 3B1 3F2& 0B0 3B2 3F3& 0B1 3B3 0I2 0W2 0I3 0W3     (DualPipeV, p = 2, m = 4)
rank 1  1F0 2F0 1F1 2F1 1F2 2B0 2F2& 1B0 1F3& 2B1 2F3& 1B1 2B2 1B2 2I3 1I3 2W3 1W3
"""

from itertools import count
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.schedules.base import Operation, Order, Pipeline, Schedule


class _Rank:
    """One rank's row; phase 0 is the half that enters here first, phase 1 the other."""

    def __init__(self, stage: tuple[int, int], micro_batch: tuple[range, range]) -> None:
        self.stage = stage
        self.micro_batch = micro_batch
        self.next = {(kind, phase): count() for kind in "FB" for phase in (0, 1)}
        self.row: list[Operation] = []
        self.weights: list[tuple[int, int]] = []
        """Input gradients whose weight gradients are still to do, oldest first."""

    def _operation(self, kind: str, phase: int, fused: bool = False) -> Operation:
        at = next(self.next["F" if kind == "F" else "B", phase])
        return Operation(self.stage[phase], kind, self.micro_batch[phase][at], 0, fused)

    def forward(self, phase: int) -> None:
        self.row.append(self._operation("F", phase))

    def backward(self, phase: int, split: bool) -> None:
        op = self._operation("I" if split else "B", phase)
        self.row.append(op)
        if split:
            self.weights.append((op.stage, op.micro_batch))

    def weight(self) -> None:
        stage, micro_batch = self.weights.pop(0)
        self.row.append(Operation(stage, "W", micro_batch))

    def both(self, forward: int, backward: int, fused: bool = True) -> None:
        """A forward and a backward, as one operation or one after the other."""
        self.row += [self._operation("F", forward, fused), self._operation("B", backward)]


def _rows(half: int, steps: int, h: int, rank: _Rank, apart: bool) -> list[Operation]:
    """The eight steps on a rank that is h from its end, of `half` ranks; `steps` micro-batches a phase.

    apart: the very first pair of step 4 runs one after the other.
    """
    left = half - h - 1
    for _ in range(2 * left):
        rank.forward(0)
    for _ in range(h + 1):
        rank.forward(0)
        rank.forward(1)
    for _ in range(left):
        rank.backward(1, split=True)
        rank.weight()
        rank.forward(1)
    for i in range(steps - 2 * half + h + 1):
        rank.both(0, 1, fused=not (apart and i == 0))
        rank.both(1, 0)
    for _ in range(left):
        rank.backward(1, split=False)
        rank.both(1, 0)
    split = False
    for i in range(h + 1):
        split = split or (i == (h + 1) // 2 and h % 2 == 1)
        rank.backward(1, split)
        split = split or (i == (h + 1) // 2 and h % 2 == 0)
        rank.backward(0, split)
    for _ in range(left):
        rank.weight()
        rank.backward(0, split=True)
    while rank.weights:
        rank.weight()
    return rank.row


def _bubble(q: Any, F: Any, I: Any, W: Any) -> Array:
    """max(2q F, (q - 1) F + q I) + q max(I - W, 0), for seconds of one stage; found by simulation.

    The repository's table has q (F&B + B - 3W), with F&B = F + B that is q (F + 2I - W): the same where F = I >= W.
    """
    return np.asarray(np.maximum(2 * q * F, (q - 1) * F + q * I) + q * np.maximum(I - W, 0.0))


class DualPipe(Schedule):
    """Two copies of the weights, and half the bubble of a pipeline that fills from one end."""

    name = "dualpipe"
    source = "DeepSeek-AI 2025, github.com/deepseek-ai/DualPipe, dualpipe.py; order read"
    splits_backward = True
    copies = 2
    even_ranks = True

    def own_rules(self, pipe: Pipeline) -> list[tuple[str, Any]]:
        """Both halves alike, and enough micro-batches for the middle."""
        broken = (np.asarray(pipe.m) % 2 != 0) | (np.asarray(pipe.m) < 2 * pipe.p)
        return [("needs an even number of micro-batches, at least 2 pp", broken)]

    def order(self, pipe: Pipeline) -> Order:
        """The eight steps for each rank, phase 0 being the micro-batches that enter at its half."""
        p, m = pipe.p, pipe.m
        rows = []
        for r in range(p):
            near = int(r >= p // 2)
            stages = (r, p - 1 - r)
            rank = _Rank((stages[near], stages[1 - near]), (range(near, m, 2), range(1 - near, m, 2)))
            h = min(stages)
            rows.append(_rows(p // 2, m // 2, h, rank, apart=h == p // 2 - 1))
        return Order.of_rows(rows)

    def bubble_s(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> Array:
        """With q = p/2 - 1: max(2q F, (q - 1) F + q I) + q max(I - W, 0), for all F, I, W; (p - 2) F where equal."""
        return _bubble(np.asarray(pipe.p) / 2 - 1 + 0.0 * np.asarray(pipe.m), F, I, W)

    def in_flight(self, pipe: Pipeline, rank: Any, kept: Any = 0.0) -> Array:
        """p + 1 on every rank."""
        return np.asarray(pipe.p + 1.0 + 0.0 * (np.asarray(rank) + pipe.m))


class DualPipeV(Schedule):
    """DualPipe folded: one copy of the weights, on the V."""

    name = "dualpipev"
    source = "DeepSeek-AI 2025, github.com/deepseek-ai/DualPipe, dualpipev.py; order read"
    splits_backward = True
    looped_placement = False
    chunks = 2

    def own_rules(self, pipe: Pipeline) -> list[tuple[str, Any]]:
        """Enough micro-batches for the middle."""
        return [("needs at least 2 pp micro-batches", pipe.m < 2 * np.asarray(pipe.p))]

    def order(self, pipe: Pipeline) -> Order:
        """The eight steps for each rank, phase 0 being its shallow stage."""
        p, m = pipe.p, pipe.m
        rows = []
        for r in range(p):
            rank = _Rank((r, 2 * p - 1 - r), (range(m), range(m)))
            rows.append(_rows(p, m, r, rank, apart=r == p - 1))
        return Order.of_rows(rows)

    def bubble_s(self, pipe: Pipeline, F: Any, I: Any, W: Any) -> Array:
        """Half of DualPipe's on 2p ranks, whose stages these are: (p - 1) F where F, I and W are equal."""
        return _bubble(np.asarray(pipe.p) - 1.0 + 0.0 * np.asarray(pipe.m), F, I, W) / 2

    def in_flight(self, pipe: Pipeline, rank: Any, kept: Any = 0.0) -> Array:
        """p + 1/2 on every rank: 2p + 1 of its stages' halves."""
        return np.asarray(pipe.p + 0.5 + 0.0 * (np.asarray(rank) + pipe.m))
