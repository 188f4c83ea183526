"""How layers lie on pipeline stages, and what the slowest stage carries. Array-first, shape (n,)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.layouts import Layouts, Split

__all__ = ["Stages", "split_layers"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Layers of the first and last rank and of the ranks between, and the slowest rank's load, shape (n,).

    slowest_layers: its cost in units of one layer, embedding and head included.
    """

    first: Array
    middle: Array
    last: Array
    slowest_layers: Array


def balanced_load(L: Any, p: Any, e: Array, g: Array) -> Array:
    """The least possible load of the slowest of p contiguous stages, in layers.

    L layers of cost 1, an embedding of cost e before the first and a head of cost g after the last. A load T is
    enough when T >= e, g and (p-2) floor(T) + floor(T-e) + floor(T-g) >= L; the least is k, k + e or k + g for
    a whole k.
    """
    average = (L + e + g) / p
    best = L + e + g
    for extra in (np.zeros_like(e), e, g):
        for step in (0, 1, 2):
            load = np.floor(np.maximum(average - extra, 0.0)) + step + extra
            room = (p - 2) * np.floor(load + 1e-9) + np.maximum(np.floor(load - e + 1e-9), 0)
            room = room + np.maximum(np.floor(load - g + 1e-9), 0)
            enough = (room >= L) & (load >= np.maximum(e, g) - 1e-9) & (p > 1)
            best = np.where(enough, np.minimum(best, load), best)
    return np.asarray(best)


def split_layers(layouts: Layouts, num_layers: Any, embedding: Array, head: Array) -> Stages:
    """Layers a rank under each layout's split; embedding and head are costs in units of one layer.

    Even: the same count, the remainder one each to the first ranks. Balanced: the least slowest load.
    """
    L, p = np.asarray(num_layers, dtype=np.float64), layouts.pp
    more, less = np.ceil(L / p), np.floor(L / p)
    even = Stages(
        first=more,
        middle=more,
        last=less,
        slowest_layers=np.where(
            p == 1, L + embedding + head, np.maximum(np.maximum(more + embedding, less + head), more * (p > 2))
        ),
    )
    if not np.any(layouts.layer_split == Split.BALANCED):
        return even
    load = balanced_load(L, p, embedding, head)
    first = np.where(p == 1, L, np.maximum(np.floor(load - embedding + 1e-9), 0))
    last = np.where(p == 1, L, np.maximum(np.floor(load - head + 1e-9), 0))
    pick = layouts.layer_split == Split.BALANCED
    return Stages(
        first=np.where(pick, first, even.first),
        middle=np.where(pick, np.floor(load), even.middle),
        last=np.where(pick, last, even.last),
        slowest_layers=np.where(pick, load, even.slowest_layers),
    )
