"""The contents of virtual stages and ranks: leading dense layers, modules, and stages given layer by layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools, Ints
from planner.choices.pipeline_layout import parse_pipeline_layout
from planner.layouts import Layouts, Split
from planner.models import Transformer, mix
from planner.schedules import Pipeline, get_schedule
from planner.step.pipelines import between_share, end_shares, trait, weight_copies
from planner.step.splits import Share, Stages, stages_between, virtual_stage_layers


def is_given(layouts: Layouts) -> Bools:
    """Whether a layout gives its stages layer by layer."""
    return np.array([bool(name) for name in layouts.pipeline_layout_names])[layouts.pipeline_layout]


def filled_one_by_one(layouts: Layouts) -> Bools:
    """Whether a split by cost has several virtual stages per rank to fill: not in a V, whose ranks share theirs out."""
    several = (layouts.virtual_stages > 1) & (layouts.pp > 1)
    return np.asarray((layouts.layer_split == Split.BALANCED) & several & trait(layouts, "looped_placement"))


def given_chunks(text: str, model: Transformer) -> Share:
    """The virtual stages that a pipeline layout gives, without ends; dense layers come first (`mix.leading_dense`)."""
    given = parse_pipeline_layout(text)
    layers, modules = np.array(given.layers, dtype=np.float64), np.array(given.modules, dtype=np.float64)
    dense = _dense(layers, float(mix.leading_dense(model)))
    return Share(layers=layers, modules=modules / max(modules.sum(), 1.0), dense=dense)


def _dense(layers: Array, leading: float) -> Array:
    """How many more of stages' layers have a dense MLP than of as many average ones, where so many lead."""
    before = np.cumsum(layers) - layers
    return np.asarray(np.clip(leading - before, 0.0, layers) - layers * leading / max(float(layers.sum()), 1.0))


def chunks_of(layouts: Layouts, stages: Stages, model: Transformer, count: int) -> Share:
    """The virtual stages of one layout (a table of length one), without ends; a user's order may have another count."""
    p, v = int(layouts.pp[0]), int(layouts.virtual_stages[0])
    given = layouts.pipeline_layout_names[int(layouts.pipeline_layout[0])]
    if given and count == p * v:
        return given_chunks(given, model)
    split = int(layouts.layer_split[0])
    if count == p * v and stages.chunk_ends is not None and filled_one_by_one(layouts)[0]:
        first, last = (int(np.ravel(x)[0]) for x in stages.chunk_ends)
        layers: Any = stages_between(int(np.ravel(model.num_layers)[0]), count, first, last)
    elif count == p * v and (v == 1 or split not in (Split.ENDS, Split.LAST)):
        layers = _shared_out(stages.layers(0, p), layouts.schedule_names[int(layouts.schedule[0])], v)
    else:
        split = split if count == p * v else Split.EVEN
        num_layers, heads = (int(np.ravel(x)[0]) for x in (model.num_layers, model.output_heads))
        layers = virtual_stage_layers(num_layers, count, split, heads)
    modules = 1.0 * (np.arange(count) == count - 1)
    known = count == p * v and np.ravel(stages.first.dense)[0] != 0.0
    leading = float(np.ravel(mix.leading_dense(model))[0]) if known else 0.0
    layers = layers.astype(np.float64)
    return Share(layers=layers, modules=modules, dense=_dense(layers, leading))


def _shared_out(ranks: Ints, schedule: str, v: int) -> Ints:
    """Layers of the v virtual stages of ranks with so many: alike, a remainder one each to a rank's first ones."""
    p = len(ranks)
    stage = np.arange(p * v)
    held = ranks[get_schedule(schedule).rank_of(Pipeline(p=p, m=1, v=v), stage, 0)]
    return np.asarray(held // v + (stage // p < held % v))


def with_ends(stages: Stages, layouts: Layouts) -> Stages:
    """The stages with their shares of embedding and head; multi-token prediction's modules lie with the head."""
    shares, mid = end_shares(layouts), between_share(layouts)
    return stages.with_each(
        first=(shares[0], mid, mid, shares[2]), last=(shares[1], mid, mid, shares[3]),
        modules=(shares[1], 0.0, 0.0, shares[3]),
    )  # fmt: skip


def with_given(stages: Stages, layouts: Layouts, model: Transformer) -> Stages:
    """The stages with their ends, where leading dense layers lie, and those that layouts give."""
    stages = with_ends(stages, layouts)
    stages = stages.with_each(dense=_leading(stages, layouts, model))
    rows = np.flatnonzero(np.broadcast_to(is_given(layouts), layouts.shape[-1:]))
    if not len(rows):
        return stages
    n = layouts.shape[-1]
    names = ("layers", "modules", "dense")
    table = np.array([[np.broadcast_to(getattr(x, name), n) for x in stages.kinds] for name in names], dtype=np.float64)
    num_early, fullest = np.broadcast_to(stages.num_early, n).astype(np.float64).copy(), np.zeros((4, 3, n))
    for i in rows:
        one = layouts.take([i])
        ranks = _ranks(one, given_chunks(one.row(0)["pipeline_layout"], model))
        table[..., i], num_early[i], fullest[..., i] = _blocks(ranks)
    given = stages.with_each(**dict(zip(names, table, strict=True)))
    return replace(given, num_early=num_early, fullest=fullest)


def _leading(stages: Stages, layouts: Layouts, model: Transformer) -> tuple[Any, Any, Any, Any]:
    """How many more dense layers the first, early, late and last ranks have than of as many average ones.

    They fill the first virtual stage of the rank that has the whole embedding. What that has no room for lies on the
    next ranks, counted here as spread evenly over all ranks between the ends. 0 where no rank has the whole embedding.
    """
    leading = np.asarray(mix.leading_dense(model))
    if not np.any(leading):
        return 0.0, 0.0, 0.0, 0.0
    room = np.floor(stages.first.layers / layouts.virtual_stages)
    if stages.chunk_ends is not None:
        room = np.where(filled_one_by_one(layouts), stages.chunk_ends[0], room)
    known = (layouts.pp > 1) & (stages.first.first == 1.0) & (weight_copies(layouts) == 1)
    on_first, between = np.minimum(leading, room), layouts.pp - 2
    more = (leading - on_first) / np.maximum(between, 1)
    of_average = leading / model.num_layers
    own = zip((on_first, more, more, more * (between == 0)), stages.kinds, strict=True)
    first, early, late, last = (np.where(known, dense - x.layers * of_average, 0.0) for dense, x in own)
    return first, early, late, last


def _ranks(layouts: Layouts, chunks: Share) -> Array:
    """Layers, modules and dense of the ranks of one layout, shape (3, p)."""
    row = layouts.row(0)
    count, p = len(chunks.layers), row["pp"]
    pipe = Pipeline(p=p, m=1, v=row["virtual_stages"])
    rank = get_schedule(row["schedule"]).rank_of(pipe, np.arange(count), 0)
    of_ranks = chunks.on(1.0 * (rank == np.arange(p)[:, None]))
    return np.array([of_ranks.layers, of_ranks.modules, of_ranks.dense])


def _blocks(ranks: Array) -> tuple[Array, float, Array]:
    """Ranks as four blocks (3, 4), how many are early, and three that may be fullest between the ends (4, 3).

    Late are those between the ends with most layers and modules, early the mean of the others. May be fullest: the
    second, which keeps most micro-batches; the first of those with most; the first of those with modules, or the last.
    """
    between = ranks[:, 1:-1]
    if not between.size:
        return np.stack([ranks[:, 0], 0 * ranks[:, 0], 0 * ranks[:, 0], ranks[:, -1]], axis=1), 0.0, np.zeros((4, 3))
    load = between[0] + between[1]
    most = load == load.max()
    late = between[:, most].mean(axis=1)
    early = between[:, ~most].mean(axis=1) if not most.all() else late
    at = np.array([0, int(np.argmax(most)), int(np.argmax(between[1])) or between.shape[1] - 1])
    fullest = np.concatenate([[at + 1.0], between[:, at]])
    return np.stack([ranks[:, 0], early, late, ranks[:, -1]], axis=1), float((~most).sum()), fullest
