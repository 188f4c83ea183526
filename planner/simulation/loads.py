"""What each stage of one layout lasts, and what each rank holds, for its exact timeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.costs.stages import virtual_stage_layers
from planner.layouts import Layouts, Split
from planner.models import Transformer
from planner.schedules import Order
from planner.step_costs import StepCosts

__all__ = ["RankLoads", "StageLoads", "rank_loads", "stage_loads"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class StageLoads:
    """What each stage lasts for one micro-batch: seconds of shape (stages,), and its layers."""

    layers: NDArray[np.int64]
    forward_s: Array
    input_grad_s: Array
    weight_grad_s: Array


def stage_loads(model: Transformer, layouts: Layouts, costs: StepCosts, stages: int) -> StageLoads:
    """Layers and seconds of every stage of one layout (a table of length one)."""
    pick = {name: float(getattr(costs.ends, name)[0]) for name in vars(costs.ends)}
    layer_f, layer_b = costs.layer.forward_s[0], costs.layer.backward_s[0]
    weight = float(costs.cost.weight_grad_s[0])
    if stages == layouts.pp[0]:
        layers = costs.stages.layers(0, stages)
    else:
        own = stages == layouts.pp[0] * layouts.virtual_stages[0]  # a user's order may have others
        layers = virtual_stage_layers(int(model.num_layers), stages, int(layouts.layer_split[0]) if own else Split.EVEN)
    forward, backward = layers * layer_f, layers * layer_b
    # Collectives of the ends: half with the embedding, half with the head, half of each in either pass.
    quarter = float(costs.traffic.ends_s[0] + costs.traffic.ends_sharding_s[0]) / 4.0
    forward[0] += pick["embedding_forward_s"] + quarter
    backward[0] += pick["embedding_backward_s"] + quarter
    forward[-1] += pick["head_forward_s"] + quarter
    backward[-1] += pick["head_backward_s"] + quarter
    # The head's gradient is two equal products, one of them the weight's.
    weights = np.asarray(layers * weight, dtype=np.float64)
    weights[-1] += pick["head_backward_s"] / 2.0
    send = float(costs.send_s[0])
    # The first stage's forward and the last one's backward receive nothing.
    forward[1:] += send
    backward[:-1] += send
    return StageLoads(layers=layers, forward_s=forward, input_grad_s=backward - weights, weight_grad_s=weights)


@dataclass(frozen=True, kw_only=True)
class RankLoads:
    """Layers that each rank holds of one copy of the weights, and its shares of embedding and head; shape (p,)."""

    layers: Array
    first: Array
    last: Array


def rank_loads(order: Order, loads: StageLoads, copies: int) -> RankLoads:
    """What the ranks of an order hold; with copies of the weights, of one of them."""
    stages = len(loads.layers)
    holds = np.zeros((order.ranks, stages))
    holds[order.rank, order.stage] = 1.0 / copies
    return RankLoads(layers=holds @ loads.layers, first=holds[:, 0], last=holds[:, -1])
