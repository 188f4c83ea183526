"""How layers lie on pipeline stages. Array-first, shape (n,)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools, Ints, record
from planner.layouts import Layouts, Split

Ends = tuple[Array, Array]
"""Layers of the first and of the last rank, or virtual stage where a split by cost fills several of a rank."""


@record
class Share:
    """What a rank or a virtual stage has of the model, or each of several; numbers or arrays.

    first, last, modules: shares, 0 to 1, of the embedding, the head and multi-token prediction's modules. dense: how
    many more of its layers have a dense MLP than of as many average ones; 0 where no place is known.
    """

    layers: Any
    first: Any = 0.0
    last: Any = 0.0
    modules: Any = 0.0
    dense: Any = 0.0

    def on(self, holds: Array) -> Share:
        """The same by rank, but for the ends; holds: copies of a stage that each rank holds, shape (ranks, stages)."""
        return Share(layers=holds @ self.layers, modules=holds @ self.modules, dense=holds @ self.dense)


@record
class Stages:
    """What each rank has, (n,): the first, `num_early` ranks behind it, the others between the ends, the last.

    fullest: ranks between the ends that may hold most, where stages are given layer by layer (else None): number,
    layers, modules and dense, (4, k, n). chunk_ends: layers of the first and the last virtual stage where several per
    rank are split by cost (else None).
    """

    first: Share
    early: Share
    num_early: Array
    late: Share
    last: Share
    fullest: Array | None = None
    chunk_ends: Ends | None = None

    @property
    def kinds(self) -> tuple[Share, Share, Share, Share]:
        """The kinds of ranks in order."""
        return self.first, self.early, self.late, self.last

    def with_each(self, **columns: Iterable[Any]) -> Stages:
        """The stages with other shares: of each name a column, one of each kind of rank."""
        rows = zip(*columns.values(), strict=True)
        each = (replace(x, **dict(zip(columns, row, strict=True))) for x, row in zip(self.kinds, rows, strict=True))
        first, early, late, last = each
        return replace(self, first=first, early=early, late=late, last=last)

    def layers(self, index: int, p: int) -> Ints:
        """Layers of every rank of one layout that `layer_split` splits, shape (p,)."""
        first, early, late, last = (x.layers[index] for x in self.kinds)
        middle = np.where(np.arange(p - 2) < self.num_early[index], early, late)
        return np.array([first, *middle, last], dtype=np.int64)[:p]


def alike(layouts: Layouts, ends: Ends) -> tuple[Ends, Bools]:
    """A grid's ends by the first of its choices but the split, and the rows where another choice has others.

    Most splits come out the same whatever is recomputed or sharded.
    """

    def of_first(x: Array) -> Array:
        axes = ((1,) * x.ndim + layouts.layer_split.shape)[-x.ndim : -1]
        return x[tuple(slice(None if n > 1 else 1) for n in axes)]

    least = of_first(ends[0]), of_first(ends[1])
    differs = [(x != one).any(axis=tuple(range(x.ndim - 1))) for x, one in zip(ends, least, strict=True)]
    return least, differs[0] | differs[1]


def without_equal(x: Array) -> Array:
    """An array of a grid with one element along each axis of its choices that it doesn't depend on."""
    for axis in range(x.ndim - 1):
        first = x[(slice(None),) * axis + (slice(1),)]
        if x.shape[axis] > 1 and (x == first).all():
            x = first
    return x


def shared_by_ends(num_layers: Any, stages: Any, heads: Any = 1) -> Any:
    """Whether so many virtual stages share the layers once the embedding and each head count as one.

    heads: one, and one more for each module of multi-token prediction, all on the last stage.
    """
    return ((num_layers + 1 + heads) % stages == 0) & (num_layers + 1 + heads >= stages * heads)


def left_to_last(num_layers: Any, stages: Any) -> Any:
    """Layers of the last of so many virtual stages, where all before it have the even count rounded up: 0 or less where
    these take all."""
    return num_layers - (stages - 1) * -(-num_layers // stages)


def has_short_last(num_layers: Any, stages: Any) -> Any:
    """Whether so many virtual stages, all but the last with the even count rounded up, leave that one fewer."""
    return (num_layers % stages != 0) & (left_to_last(num_layers, stages) > 0)


def virtual_stage_layers(num_layers: int, stages: int, split: int, heads: int = 1) -> Ints:
    """Layers of every virtual stage of one layout, (stages,): alike, or split by ends or last."""
    if split == Split.LAST:
        return np.append(np.full(stages - 1, -(-num_layers // stages)), left_to_last(num_layers, stages))
    ends = int(split == Split.ENDS)
    layers = np.full(stages, (num_layers + ends * (1 + heads)) // stages)
    layers[[0, -1]] -= ends * np.array([1, heads])
    return layers


def stages_between(num_layers: int, stages: int, first: int, last: int) -> Ints:
    """Layers of every virtual stage, (stages,): the last of those between the ends have a remainder."""
    least, extra = divmod(num_layers - first - last, stages - 2)
    return np.array([first, *[least] * (stages - 2 - extra), *[least + 1] * extra, last], dtype=np.int64)


def balanced_load(L: Any, p: Any, e: Array, g: Array) -> Array:
    """The least possible load of the slowest of p contiguous stages, in layers.

    L layers of cost 1, an embedding of cost e before the first and a head of cost g after the last. A load T is
    enough when T >= e, g and (p-2) floor(T) + floor(T-e) + floor(T-g) >= L. With T = k + t, k whole and 0 <= t < 1, the
    sum is p k - floor(e) - floor(g), less one for each end whose fraction is above t. So t is 0 or one of these two.
    """
    on_e, on_g = np.floor(e + 1e-9), np.floor(g + 1e-9)
    of_e, of_g = np.maximum(e - on_e, 0.0), np.maximum(g - on_g, 0.0)
    held = L + on_e + on_g
    load = np.minimum(np.ceil(held / p) + np.maximum(of_e, of_g), np.ceil((held + 1.0) / p) + np.minimum(of_e, of_g))
    load = np.maximum(np.minimum(load, np.ceil((held + 2.0) / p)), np.maximum(e, g))
    return np.asarray(load if np.all(np.greater(p, 1)) else np.where(p > 1, load, L + e + g))


def end_layers(
    layouts: Layouts,
    num_layers: Any,
    embedding: Array,
    head: Array,
    sizes: tuple[Any, Any] = (0.0, 0.0),
    heads: Any = 1.0,
    head_products: Any = 0.0,
    chunks: Any = 1,
) -> Ends:
    """Layers of the ends under each layout's split; embedding and head are costs in units of one layer.

    sizes: parameters of embedding and head in units of a layer's; heads: one, and those of multi-token prediction;
    head_products: the head's in units of a layer's. chunks: virtual stages per rank that a split by cost fills one by
    one; 1 for other splits, and where a rank shares its layers out.

    Even: the same count, the remainder one each to the first ranks. Ends: the same count of layers, embedding and
    heads, these for one layer each. The other splits have a function each, which tells its rule.
    """
    L, p = np.asarray(num_layers, dtype=np.float64), layouts.pp
    ways: list[tuple[Split, Callable[[], Ends]]] = [
        (Split.BALANCED, lambda: _balanced(L, p * chunks, embedding, head)),
        (Split.PARAMETERS, lambda: _by_parameters(L, layouts, sizes)),
        (Split.ENDS, lambda: ((L + 1.0 + heads) / p - 1.0, (L + 1.0 + heads) / p - heads)),
        (Split.LAST, lambda: _short_last(L, p, layouts.virtual_stages)),
        (Split.PRODUCTS, lambda: _by_products(L, p, head_products)),
    ]
    first, last = np.where(p == 1, L, np.ceil(L / p)), np.where(p == 1, 0.0, np.floor(L / p))
    for split, way in ways:
        of_split = (layouts.layer_split == split) & (p > 1)
        if of_split.any():
            first, last = (np.where(of_split, new, old) for new, old in zip(way(), (first, last), strict=True))
    return first, last


def split_layers(layouts: Layouts, num_layers: Any, ends: Ends, chunks: Any = 1) -> Stages:
    """Layers per rank, given those of the ends (`end_layers`, chunks as there)."""
    L, p = np.asarray(num_layers, dtype=np.float64), layouts.pp
    by_cost = (layouts.layer_split == Split.BALANCED) & (p > 1)
    stages = _between(L, p, *ends, by_cost, chunks)
    return replace(stages, chunk_ends=ends) if np.any(chunks > 1) else stages


def _balanced(L: Array, p: Any, embedding: Array, head: Array) -> tuple[Array, Array]:
    """Layers of the first and the last of p stages under the least load of the slowest, T.

    Both take what T leaves them beside embedding and head, but no more than an even share while the stages between can
    hold the rest; those share it evenly, a remainder one each to the last of them, whose ranks keep the activations of
    the fewest micro-batches.
    """
    T, share = balanced_load(L, p, embedding, head), np.ceil(L / p)
    most, between = np.floor(T + 1e-9), np.maximum(p - 2, 0)
    most_first = np.maximum(np.floor(T - embedding + 1e-9), 0)
    most_last = np.maximum(np.floor(T - head + 1e-9), 0)
    last = np.minimum(most_last, np.maximum(share, L - most_first - between * most))
    first = np.minimum(most_first, np.maximum(share, L - last - between * most))
    # Two stages: the first takes what the last leaves.
    return np.where(p == 2, L - last, first), last


def _by_parameters(L: Array, layouts: Layouts, sizes: tuple[Any, Any]) -> tuple[Array, Array]:
    """Layers of the first and the last rank under the least number of parameters on the fullest rank.

    Each rank from the first on has as many as that leaves room for (DeepSpeed's partition_balanced, runtime/utils.py).
    """
    p = layouts.pp
    e, g = (np.broadcast_to(np.asarray(x, dtype=np.float64), layouts.shape) for x in sizes)
    fullest = balanced_load(L, p, e, g)
    first = np.minimum(np.floor(fullest - e + 1e-9), L)
    return first, np.maximum(L - first - np.maximum(p - 2, 0) * np.floor(fullest + 1e-9), 0.0)


def _short_last(L: Array, p: Any, virtual_stages: Any) -> tuple[Array, Array]:
    """Layers of the first and the last rank where all but the last virtual stage have the even count rounded up."""
    every = virtual_stages * np.ceil(L / (p * virtual_stages))
    return every, L - (p - 1.0) * every


def _by_products(L: Array, p: Any, head_products: Any) -> tuple[Array, Array]:
    """Layers of the first and the last rank where the products of layers and head are shared.

    Up to and with rank r: the fewest layers that are more than (r + 1) / p of layers and head, the one that goes beyond
    on rank r (nanotron's build_model, models/base.py). Ranks between the ends with a layer more are taken to lie first.
    """
    every = (L + head_products) / p
    until = [np.minimum(np.floor(ranks * every + 1e-9) + 1.0, L) for ranks in (1.0, p - 1.0)]
    return until[0], L - until[1]


def _between(L: Array, p: Any, first: Array, last: Array, remainder_last: Any, chunks: Any) -> Stages:
    """The stages that share evenly what the first and the last of them leave; the remainder lies first, or last.

    chunks: virtual stages per rank. With several, first and last are of virtual stages, and the remainder lies last: so
    many of these, from the last but one back, have a layer more.
    """
    ranks = np.maximum(p - 2, 1)
    rest, between = L - first - last, np.maximum(p * chunks - 2, 1)
    least = np.floor(rest / between)
    on_each, extra = np.divmod(rest - least * between, p)  # chunks with a layer more: of each rank; of those before p-1
    own, on_ends = chunks * least + on_each, (chunks - 1) * least + on_each
    more = np.minimum(extra, ranks)
    return Stages(
        first=Share(layers=first + on_ends + ((extra == p - 1) & (chunks > 1))),
        early=Share(layers=own + np.where(remainder_last, 0.0, 1.0)),
        num_early=np.where(remainder_last, ranks - more, more),
        late=Share(layers=own + np.where(remainder_last, 1.0, 0.0)),
        last=Share(layers=last + on_ends),
    )
