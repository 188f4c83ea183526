"""`step_time`: seconds of a step by cause."""

from dataclasses import fields, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from planner.base.arrays import Array, record
from planner.layouts import Layouts
from planner.schedules import Loads
from planner.step.chunk_gathers import chunk_wait_s
from planner.step.data_comm import data_comm
from planner.step.passes import rank_passes
from planner.step.pipelines import by_chunk, by_schedule, pipeline
from planner.step.step_costs import StepCosts


@record
class StepTime:
    """Seconds of one optimizer step by cause, arrays of shape (n,); the total is their sum."""

    matmul_s: Array
    attention_s: Array
    scan_s: Array
    pointwise_s: Array
    recompute_s: Array
    embedding_head_s: Array
    host_s: Array
    tensor_comm_s: Array
    context_comm_s: Array
    expert_comm_s: Array
    sharding_comm_s: Array
    pipeline_comm_s: Array
    host_comm_s: Array
    imbalance_s: Array
    bubble_s: Array
    data_comm_s: Array
    optimizer_s: Array

    @property
    def but_bubble_s(self) -> Array:
        """Seconds of the step without its bubble."""
        return np.asarray(reduce(add, (getattr(self, f.name) for f in fields(self) if f.name != "bubble_s")))

    @property
    def total_s(self) -> Array:
        """Seconds of the step."""
        return np.asarray(self.but_bubble_s + self.bubble_s)


def step_time(costs: StepCosts, bubble: bool = True) -> StepTime:
    """Seconds of a step by cause; the parts add up to the step.

    A step of m micro-batches lasts m * mean + m * (slowest - mean) + (makespan - m * slowest) + the rest. The first
    term is the mean rank's work, named operation by operation. The second is the imbalance: what the slowest rank adds.
    The third is the bubble: what the schedule adds to that rank's work. The rest are waits for gathers of chunks,
    exposed data-parallel communication and the optimizer. bubble=False leaves the bubble out and gives a lower bound.
    """
    cost, ends, t, layouts = costs.cost, costs.ends, costs.traffic, costs.case.layouts
    m, p = layouts.micro_batches, layouts.pp
    loads = rank_passes(costs).known(p)
    forward, input_grad, weight_grad = loads.slowest(p)
    backward = input_grad + weight_grad
    slowest = forward + input_grad + weight_grad
    mean = sum(loads.total(p)) / p
    moves: Any = 0.0
    if costs.offload_layer_s is not None:
        moves = mean - sum(rank_passes(replace(costs, offload_layer_s=None)).total(p)) / p
    makespan = _makespan(layouts, loads) if bubble else m * slowest
    layer, repeated = costs.mean_layer()
    work = m * costs.case.model.num_layers / p  # layers that the mean rank passes in a step
    ends_s = ends.embedding_forward_s + ends.embedding_backward_s
    ends_s = ends_s + ends.head_s
    sharded_ends_s = np.where(by_chunk(layouts), 0.0, m * t.ends_sharding_s / p)
    data = data_comm(costs, forward, backward, costs.case.model.num_layers / p)
    return StepTime(
        matmul_s=work * (cost.forward_matmul_s + cost.backward_matmul_s - cost.launch_s),
        attention_s=work * (cost.forward_attention_s + cost.backward_attention_s),
        scan_s=work * (cost.forward_scan_s + cost.backward_scan_s),
        pointwise_s=work * (cost.forward_pointwise_s + cost.backward_pointwise_s),
        recompute_s=work * repeated * cost.recompute_s,
        embedding_head_s=m * ends_s / p,
        host_s=work * (layer.host_s + cost.launch_s),
        tensor_comm_s=work * layer.tensor_s + m * t.ends_s / p,
        context_comm_s=work * layer.context_s,
        expert_comm_s=work * layer.expert_s,
        sharding_comm_s=work * layer.sharding_s + sharded_ends_s + chunk_wait_s(costs, forward, backward),
        pipeline_comm_s=m * 2.0 * (layouts.virtual_stages - 1.0 / p) * costs.send_s,
        host_comm_s=m * moves,
        imbalance_s=m * (slowest - mean),
        # No order takes less; sums of one rank's passes in another order round otherwise.
        bubble_s=np.where(p == 1, 0.0, np.maximum(makespan - m * slowest, 0.0)),
        data_comm_s=data.reduce_s - data.reduce_hidden_s + data.gather_s - data.gather_hidden_s + t.tied_s,
        optimizer_s=costs.update_s,
    )


def _makespan(layouts: Layouts, loads: Loads) -> Array:
    """Seconds of each layout's schedule."""
    every = (*loads.first, *loads.early, *loads.late, *loads.last)
    out = np.empty(np.broadcast_shapes(*(x.shape for x in every)))
    for schedule, rows in by_schedule(layouts):
        out[..., rows] = schedule.makespan(pipeline(layouts, rows), loads.take(rows))
    return out
