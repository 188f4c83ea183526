"""The space of layouts as one table, from a request's parts."""

from typing import Any

from planner.hardware import Cluster
from planner.layouts import Layouts
from planner.models import Transformer
from planner.models.counts import head_in_layers
from planner.search.request import Request
from planner.search.space import whole_space


def filled_chunks(model: Transformer, pp: int) -> set[int]:
    """Virtual stages worth filling by cost, where a rank can't have even chunks of several layers or the head is large.

    For each most layers of one, the fewest that have room for all layers, the embedding and the heads.
    """
    layers, items = model.num_layers, model.num_layers + 2 + model.num_mtp_layers
    chunks = range(1, layers + 1)
    small = head_in_layers(model) * pp <= 0.3 * layers
    if small and any(layers == pp * v * each for v in chunks[1:] for each in chunks[1:]):
        return set()
    fewest = {min(v for v in range(1, items + 1) if pp * v * most >= items) for most in chunks if pp * most <= layers}
    return {v for v in fewest if pp * v <= layers}


def enumerate_layouts(model: Transformer, cluster: Cluster, **asked: Any) -> Layouts:
    """Every legal layout as a table; asked: as of `Request`; raises what `planner.search.space.space` does."""
    return whole_space(model, cluster, Request(**asked))
