"""The layers of one layout split over its stages: by cost, embedding and head counted, within each rank's memory."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from planner.base.arrays import Array, Ints
from planner.base.errors import LayoutError
from planner.base.units import format_bytes
from planner.costs.memory.rank import embedding_bytes, rank_memory
from planner.layouts import Layouts
from planner.schedules import get_schedule
from planner.setup import Setup
from planner.step.legality import check_legal
from planner.step.partition import partition
from planner.step.pipelines import layers_at_once, pipeline
from planner.step.step_costs import StepCosts, step_costs


@dataclass(frozen=True, kw_only=True)
class StageSplit:
    """Rank, layers, seconds of one micro-batch forward and backward, and bytes of every stage, shape (stages,).

    even_slowest_s, even_fits: the slowest stage's seconds were the layers split evenly, and whether all then fit.
    """

    rank: Ints
    layers: Ints
    seconds: Array
    size_bytes: Array
    even_slowest_s: float
    even_fits: bool


def stage_split(setup: Setup, layouts: Layouts) -> StageSplit:
    """The contiguous split whose slowest stage is fastest, of those in which every rank fits in memory.

    With virtual stages a rank's memory is shared evenly by its stages. The embedding lies on the first stage, the head
    on the last one; either may be without a layer.

    Raises LayoutError for more than one layout, an illegal one, or if no split fits.
    """
    if len(layouts) != 1:
        raise LayoutError(f"a stage split takes one layout, got {len(layouts)}")
    check_legal(setup.model, setup.cluster, layouts)
    L, v = int(setup.model.num_layers), int(layouts.virtual_stages[0])
    stages = int(layouts.pp[0]) * v
    seconds, ranks, fixed, held = stage_items(setup, layouts)
    room = (setup.cluster.accelerator.memory_bytes - fixed) / v
    try:
        counts = partition(seconds, stages, size_bytes=held, cap_bytes=lambda stage: room)
    except LayoutError:
        capacity = format_bytes(setup.cluster.accelerator.memory_bytes)
        raise LayoutError(
            f"no split of {L} layers over {stages} stages fits in {capacity} per GPU; recompute, shard, use more stages"
        ) from None

    def sums(counts: Ints) -> tuple[Array, Array]:
        """Seconds and bytes of every stage."""
        edges = np.concatenate([[0], np.cumsum(counts)])
        sizes = [held(s)[edges[s] : edges[s + 1]].sum() for s in range(stages)]
        return np.add.reduceat(seconds, edges[:-1]), np.array(sizes) + fixed / v

    own, ends = sums(counts), np.bincount([0, stages - 1], minlength=stages)  # embedding and head
    even = sums(L // stages + (np.arange(stages) < L % stages) + ends)
    return StageSplit(
        rank=ranks, layers=counts - ends, seconds=own[0], size_bytes=own[1], even_slowest_s=float(even[0].max()),
        even_fits=bool(np.all(even[1] <= room + fixed / v)),
    )  # fmt: skip


def stage_items(setup: Setup, layouts: Layouts) -> tuple[Array, Ints, float, Callable[[int], Array]]:
    """Items of one legal layout: seconds of embedding, layers and head; the rank of every stage; the bytes of a rank
    without layers; and the bytes of every item on a given stage."""
    costs, L = step_costs(setup, layouts), int(setup.model.num_layers)
    ends, layer_s = costs.ends, float(costs.layer.total_s[0])
    embedding_s = float(ends.embedding_forward_s[0] + ends.embedding_backward_s[0])
    seconds = np.array([embedding_s, *[layer_s] * L, float(ends.head_s[0])])
    return seconds, *_held(setup, layouts, costs, L)


def _held(setup: Setup, layouts: Layouts, costs: StepCosts, layers: int) -> tuple[Ints, float, Callable[[int], Array]]:
    """The rank of every stage, the bytes of a rank without layers, and the bytes of every item on a given stage."""
    schedule, pipe = get_schedule(layouts.row(0)["schedule"]), pipeline(layouts)
    stages = np.arange(int(layouts.pp[0] * layouts.virtual_stages[0]))
    ranks = np.array([int(schedule.rank_of(pipe, np.array([s]), np.array([0]))[0]) for s in stages])

    def size(layers_held: float, first: float, last: float, versions: float) -> float:
        """Bytes of a rank but for its activations."""
        memory = rank_memory(
            costs.case, layers=layers_held, in_flight=0.0, first=first, last=last, copies=schedule.copies,
            versions=versions, at_once=layers_at_once(layouts, layers / int(layouts.pp[0])), held=costs.activations,
        )  # fmt: skip
        return float(memory.total_bytes[0])

    fixed = size(0.0, 0.0, 0.0, 1.0)

    @cache
    def states(versions: float) -> tuple[float, float, float]:
        """Bytes of the states of the embedding, a layer and the head."""
        embedding, all_layers, head = (size(*held, versions) - fixed for held in ((0, 1, 0), (layers, 0, 0), (0, 0, 1)))
        return embedding, all_layers / layers, head

    slack = 1.0 + setup.framework.fragmentation
    saved = float(costs.activations.layer[0]) * slack
    looked_up = float(embedding_bytes(costs.case)[0]) * slack

    def held(stage: int) -> Array:
        at = int(ranks[stage])
        embedding, layer, head = states(float(np.ravel(schedule.weight_versions(pipe, at))[0]))
        flight = float(schedule.in_flight(pipe, at, costs.activations.weight_grad_share)[0])
        return np.array([embedding + looked_up * flight, *[layer + saved * flight] * layers, head])

    return ranks, fixed, held
