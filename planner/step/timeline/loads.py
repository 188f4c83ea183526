"""What each stage of one layout lasts, and what each rank holds, for its exact timeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.layouts import Split
from planner.schedules import Order
from planner.step.splits import virtual_stage_layers
from planner.step.step_costs import StepCosts
from planner.step.step_time import passes

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class StageLoads:
    """What each stage lasts for one micro-batch: seconds of shape (stages,), and its layers."""

    layers: NDArray[np.int64]
    forward_s: Array
    input_grad_s: Array
    weight_grad_s: Array


def stage_loads(costs: StepCosts, stages: int) -> StageLoads:
    """Layers and seconds of every stage of one layout (a table of length one)."""
    model, layouts = costs.case.model, costs.case.layouts
    if stages == layouts.pp[0]:
        layers = costs.stages.layers(0, stages)
    else:
        own = stages == layouts.pp[0] * layouts.virtual_stages[0]  # a user's order may have others
        split = int(layouts.layer_split[0]) if own else Split.EVEN
        layers = virtual_stage_layers(int(model.num_layers), stages, split, int(model.output_heads))
    index = np.arange(stages)
    forward, input_grad, weight_grad = passes(costs, layers, 1.0 * (index == 0), 1.0 * (index == stages - 1), 1.0)
    return StageLoads(layers=layers, forward_s=forward, input_grad_s=input_grad, weight_grad_s=weight_grad)


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
