"""The pipelines of a table of layouts: their sizes, their schedules and these schedules' traits."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools, Ints
from planner.layouts import Layouts
from planner.schedules import Pipeline, Schedule, get_schedule


def by_schedule(layouts: Layouts) -> Iterator[tuple[Schedule, Any]]:
    """Every schedule of the layouts with its rows: a slice where they lie together, else their indices."""
    for i, rows in layouts.rows_of_schedules.items():
        yield get_schedule(layouts.schedule_names[i]), rows


def pipeline(layouts: Layouts, rows: Any = slice(None)) -> Pipeline:
    """The sizes of some layouts' pipelines as their schedules take them."""
    return Pipeline(
        p=layouts.pp[rows],
        m=layouts.micro_batches[rows],
        v=layouts.virtual_stages[rows],
        k=layouts.sequence_slices[rows],
    )


def trait(layouts: Layouts, name: str) -> Any:
    """A trait of each layout's schedule."""
    return _traits(layouts.schedule_names, name)[layouts.schedule]


@lru_cache(maxsize=256)
def _traits(schedules: tuple[str, ...], name: str) -> Any:
    return np.array([getattr(get_schedule(s), name) for s in schedules])


def layer_at_a_time(layouts: Layouts) -> Bools:
    """Whether all micro-batches pass a chunk before the next one."""
    return np.asarray(trait(layouts, "layer_at_a_time"))


def by_chunk(layouts: Layouts) -> Bools:
    """Whether the ranks of a pipeline take a chunk at a time, so that its sharded states are moved once a visit."""
    return np.asarray(layer_at_a_time(layouts) & (layouts.pp > 1))


def weight_copies(layouts: Layouts) -> Ints:
    """Copies of the weights that a rank holds."""
    return np.asarray(trait(layouts, "copies"))


def layers_at_once(layouts: Layouts, layers: Any) -> Array:
    """Layers of a rank whose sharded states are gathered and reduced together: one, or a chunk. layers: the rank's."""
    return np.asarray(np.where(layer_at_a_time(layouts), layers / layouts.virtual_stages, 1.0))


def exact_uneven(layouts: Layouts) -> Bools:
    """Whether the closed form of the schedule follows uneven ranks closely."""
    return np.asarray(trait(layouts, "exact_uneven"))


def end_shares(layouts: Layouts) -> Array:
    """Shares of the embedding and of the head on the first rank, and of both on the last, shape (4, n)."""
    by_schedule = np.array([np.ravel(get_schedule(name).end_shares()) for name in layouts.schedule_names])
    alone = np.asarray(np.where(layouts.pp == 1, 1.0, by_schedule[layouts.schedule].T))
    shared = shares_ends(layouts)
    return np.where(shared, 1.0 / layouts.pp, alone) if shared.any() else alone


def shares_ends(layouts: Layouts) -> Bools:
    """Whether embedding and head lie in equal parts on all ranks."""
    return np.asarray((trait(layouts, "barriers") > 0) & (layouts.pp > 1))


def between_share(layouts: Layouts) -> Any:
    """How much of embedding and head lies on each rank between the first and the last; 0 where none shares them."""
    shared = shares_ends(layouts)
    return np.where(shared, 1.0 / layouts.pp, 0.0) if shared.any() else 0.0


def embedding_apart_from_head(layouts: Layouts) -> Bools:
    """Whether embedding and head lie on different ranks, so that a tied table's gradients are summed between them."""
    embedding, head, _, _ = end_shares(layouts)
    return np.asarray(embedding != head)
