"""The exact bubble and peak of any order: its longest paths, as sums of F, I and W.

The end of a step is a longest path through an order's operations: the largest of sums a F + b I + c W with whole
a, b, c. `bubble_pieces` finds all of them: it runs the order for many durations at once, follows the longest paths
back, and runs it again at the corners where the sums found so far meet. The bubble is convex in F, I and W; a largest
of sums that never exceeds it and equals it in all its corners is it. So the answer is exact for all F, I and W.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.schedules.dependencies import dependencies
from planner.schedules.operations import Order

__all__ = ["bubble_pieces", "largest_of", "peak_pieces"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_AT_ONCE = 1024
"""Directions of one run."""

_COUNTS = np.array([[1, 0, 0], [0, 1, 1], [0, 1, 0], [0, 0, 1]])
"""How often F, I and W are in a kind's duration."""


class _Graph:
    """An order's operations as nodes in a sequence that respects what they wait for; fused ones share a node."""

    def __init__(self, order: Order) -> None:
        joined = np.roll(order.fused, 1)
        node = np.cumsum(~joined) - 1
        count = np.zeros((int(node[-1]) + 1, 3), dtype=np.int64)
        np.add.at(count, node, _COUNTS[order.kind])
        self.count = count
        self.first: list[int] = node[order.start[:-1]].tolist()
        self.last: list[int] = node[order.start[1:] - 1].tolist()
        before: list[list[int]] = [[] for _ in count]
        for i, row in zip(node.tolist(), dependencies(order).tolist(), strict=True):
            before[i] += [w for w in row if w >= 0]
        of = node.tolist()
        heads = set(self.first)
        for i, waits in enumerate(before):
            before[i] = sorted({of[w] for w in waits} - {i} | ({i - 1} if i not in heads else set()))
        self.before = before
        self.sequence = self._sequence()

    def _sequence(self) -> list[int]:
        left = [len(b) for b in self.before]
        after: list[list[int]] = [[] for _ in self.before]
        for i, waits in enumerate(self.before):
            for w in waits:
                after[w].append(i)
        out = [i for i, n in enumerate(left) if n == 0]
        for i in out:
            for j in after[i]:
                left[j] -= 1
                if left[j] == 0:
                    out.append(j)
        return out

    def ends(self, x: Floats) -> tuple[Floats, Floats]:
        """End and duration of every node, shapes (n, directions), for durations x (directions, 3)."""
        lasts = self.count @ x.T
        end = np.empty_like(lasts)
        for i in self.sequence:
            row, before = end[i], self.before[i]
            if before:
                last = end[before[0]]
                for b in before[1:]:
                    last = np.maximum(last, end[b])
                np.add(last, lasts[i], out=row)
            else:
                row[:] = lasts[i]
        return end, lasts

    def path(self, end: Floats, column: int, node: int) -> Ints:
        """The counts of F, I and W on the longest path that ends with a node."""
        total = np.zeros(3, dtype=np.int64)
        while True:
            total += self.count[node]
            before = self.before[node]
            if not before:
                return total
            node = max(before, key=lambda b: end[b, column])

    def pieces(self, x: Floats, span: bool, known: Floats) -> set[tuple[int, ...]]:
        """The longest paths at durations x (directions, 3), where they are longer than the known ones."""
        end, lasts = self.ends(x)
        length = end[self.last]
        if span:
            length = length - (end[self.first] - lasts[self.first])
        rank = length.argmax(axis=0)
        found = set()
        longer = length.max(axis=0) > known + 1e-9
        for column, r in enumerate(rank.tolist()):
            if not longer[column]:
                continue
            counts = self.path(end, column, self.last[r])
            if span:
                counts = counts - (self.path(end, column, self.first[r]) - self.count[self.first[r]])
            found.add(tuple(counts.tolist()))
        return found


def _grid(n: int) -> Floats:
    """Directions (F, I, W) of sum 1, inside and at the corners."""
    points = [(a, b, n - a - b) for a in range(n + 1) for b in range(n + 1 - a)]
    return np.array(points, dtype=np.float64) / n


def _corners(pieces: Floats) -> Floats:
    """Directions of sum 1 where three sums, or two at an edge, are the largest at once; and F, I, W alone."""
    edges = np.eye(3)
    picks = [np.array(c) for c in combinations(range(len(pieces)), 3)]
    triples = np.array(picks, dtype=np.int64).reshape(-1, 3)
    pairs = np.array(list(combinations(range(len(pieces)), 2)), dtype=np.int64).reshape(-1, 2)
    inner = np.stack([pieces[triples[:, 0]] - pieces[triples[:, 1]], pieces[triples[:, 0]] - pieces[triples[:, 2]]], 1)
    border = pieces[pairs[:, 0]] - pieces[pairs[:, 1]]
    outer = np.concatenate([np.stack([border, np.broadcast_to(e, border.shape)], 1) for e in edges])
    systems = np.concatenate([inner, outer])
    line = np.cross(systems[:, 0], systems[:, 1])
    line = line[np.abs(line.sum(axis=1)) > 1e-9]
    x = line / line.sum(axis=1, keepdims=True)
    x = x[(x >= -1e-12).all(axis=1)].clip(0.0)
    # Those on the upper envelope: where at least two sums reach the largest.
    values = x @ pieces.T
    top = values.max(axis=1, keepdims=True)
    x = x[(values >= top - 1e-9).sum(axis=1) >= 2]
    return np.unique(np.round(np.concatenate([edges, x]), 12), axis=0)


def bubble_pieces(order: Order, span: bool) -> Ints:
    """Rows (a, b, c): the bubble is the largest a F + b I + c W, for F, I and W seconds of one operation.

    span: from a rank's first operation to its last, the longest of any rank; else from the first of all to the last.
    """
    graph = _Graph(order)
    work = _COUNTS[order.kind[: int(order.start[1])]].sum(axis=0)
    x = _grid(6)
    found = graph.pieces(x, span, np.full(len(x), -1.0))
    seen: set[tuple[float, ...]] = set()
    while True:
        pieces = np.array(sorted(found), dtype=np.int64)
        corners = _corners(pieces.astype(float))
        # A sum that is the largest in fewer than three corners is so on no area: the others make up for it.
        values = corners @ pieces.T
        wide = (values >= values.max(axis=1, keepdims=True) - 1e-9).sum(axis=0) >= 3
        pieces = pieces[wide]
        found = set(map(tuple, pieces.tolist()))
        x = np.array([row for row in corners.tolist() if tuple(row) not in seen])
        if not len(x):
            return np.asarray(pieces - work)
        seen |= {tuple(row) for row in x.tolist()}
        for part in np.array_split(x, -(-len(x) // _AT_ONCE)):
            found |= graph.pieces(part, span, (part @ pieces.T).max(axis=1))


def peak_pieces(order: Order, rank: int) -> Floats:
    """Rows (n, k): the most a rank holds is the largest n + k kept, in activations of one forward."""
    at = slice(int(order.start[rank]), int(order.start[rank + 1]))
    kind = order.kind[at]
    whole = np.array([1, -1, -1, 0])[kind]
    part = np.array([0, 0, 1, -1])[kind]
    after = np.stack([np.cumsum(whole), np.cumsum(part)], axis=1)
    before = after - np.stack([whole, part], axis=1)
    held = np.where((kind == 0)[:, None], after, before)
    best: dict[int, int] = {}
    for n, k in held.tolist():
        best[k] = max(best.get(k, -1), n)
    return np.array([(n, k) for k, n in sorted(best.items())], dtype=np.float64)


def largest_of(pieces: Any, *amounts: Any) -> Floats:
    """The largest sum over the rows of `pieces` for amounts that broadcast."""
    stacked = np.stack(np.broadcast_arrays(*[np.asarray(a, dtype=np.float64) for a in amounts]), axis=-1)
    return np.asarray((stacked @ np.asarray(pieces, dtype=np.float64).T).max(axis=-1))
