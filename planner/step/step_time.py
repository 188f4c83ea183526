"""Seconds of a step by cause: a rank's passes of a micro-batch, its schedule's makespan, what is left exposed."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from planner.base import records
from planner.base.arrays import Array
from planner.costs.memory.rank import left_alone, moved_layers
from planner.layouts import Layouts
from planner.schedules import Loads
from planner.step.chunk_gathers import chunk_wait_s
from planner.step.layer_time import LayerTime, shown_s
from planner.step.pipelines import between_share, by_chunk, by_schedule, end_shares, layer_at_a_time, pipeline
from planner.step.step_costs import StepCosts


@dataclass(frozen=True, kw_only=True)
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
        return np.asarray(sum(getattr(self, f.name) for f in fields(self) if f.name != "bubble_s"))

    @property
    def total_s(self) -> Array:
        """Seconds of the step."""
        return np.asarray(self.but_bubble_s + self.bubble_s)


def passes(
    costs: StepCosts, layers: Any, first: Any, last: Any, stages: Any, modules: Any, dense: Any
) -> tuple[Array, Array, Array]:
    """F, I, W of one micro-batch through so many layers and stages, and shares of embedding, head and modules.

    dense: how many more of the layers have a dense MLP than of as many average ones. With their
    collectives and the exposed transfers; the first stage's forward and the last one's backward receive nothing.
    """
    layer, ends, send = costs.layer, costs.ends, costs.send_s
    # Collectives of the ends: half with the embedding, half with the head, half of each in either pass.
    chunks = by_chunk(costs.case.layouts)
    quarter = (costs.traffic.ends_s + np.where(chunks, 0.0, costs.traffic.ends_sharding_s)) / 4.0
    forward = layers * layer.forward_s + (stages - first) * send
    backward = layers * layer.backward_s + (stages - last) * send
    forward, backward = (plus(x, first + last, quarter) for x in (forward, backward))
    if costs.alone is not None:
        saves = layer.backward_s - costs.alone.backward_s
        backward = backward - left_alone(costs.case.layouts, layers, stages) * saves
    forward = plus(plus(forward, first, ends.embedding_forward_s), last, ends.head_forward_s)
    backward = plus(plus(backward, first, ends.embedding_backward_s), last, ends.head_backward_s)
    forward = plus(plus(forward, modules, ends.module_forward_s), dense, costs.dense_s[0])
    backward = plus(plus(backward, modules, ends.module_backward_s), dense, costs.dense_s[1])
    if costs.move_s is not None:
        forward, backward = _with_moves(costs, costs.move_s, layers, first, stages, forward, backward)
    # The head's gradient is two equal products, one of them the weight's.
    weights = plus(layers * costs.cost.weight_grad_s, last, ends.head_backward_s / 2.0)
    weights = plus(plus(weights, modules, ends.module_backward_s / 2.0), dense, costs.dense_s[2])
    return forward, backward - weights, weights


def plus(x: Any, share: Any, more: Any) -> Any:
    """`x + share * more`; a share of 0 that all have is no array, and costs nothing."""
    return x if isinstance(share, float) and share == 0.0 else x + share * more


def _with_moves(
    costs: StepCosts, move_s: Array, layers: Any, first: Any, stages: Any, forward_s: Array, backward_s: Array
) -> tuple[Array, Array]:
    """The passes that wait for layers' activations on their way to the host, or back.

    They leave one after another from the end of a stage's first layer on, and have left when the pass ends. They come
    back from the pass's beginning on, before the stage's first layer goes backward; another has room as soon as one
    has gone. That all, and no more than a layer's room, is what these two bounds need (tested layer by layer).
    """
    layer, ends, t = costs.layer, costs.ends, costs.traffic
    moved = moved_layers(costs.case.layouts, layers, stages)
    quarter = first * (t.ends_s + np.where(by_chunk(costs.case.layouts), 0.0, t.ends_sharding_s)) / 4.0
    before = stages * layer.forward_s + (stages - first) * costs.send_s + quarter + first * ends.embedding_forward_s
    after = stages * layer.backward_s + quarter + first * ends.embedding_backward_s
    out, back = (np.where(moved > 0, x + moved * move_s, 0.0) for x in (before, after))
    return np.maximum(forward_s, out), np.maximum(backward_s, back)


def _loads(costs: StepCosts) -> Loads:
    """What every kind of rank does; but for its part of a shared head, which is no pass of its layers."""
    layouts, stages = costs.case.layouts, costs.stages
    shares, v, mid = end_shares(layouts), layouts.virtual_stages, between_share(layouts)
    more = list(zip(stages.modules, stages.dense, strict=True))
    return Loads(
        first=passes(costs, stages.first, shares[0], shares[1] - mid, v, *more[0]),
        early=passes(costs, stages.early, mid, 0.0, v, *more[1]),
        num_early=stages.num_early,
        late=passes(costs, stages.late, mid, 0.0, v, *more[2]),
        last=passes(costs, stages.last, shares[2], shares[3] - mid, v, *more[3]),
    )


def _makespan(layouts: Layouts, loads: Loads) -> Array:
    """Seconds of each layout's schedule."""
    every = (*loads.first, *loads.early, *loads.late, *loads.last)
    out = np.empty(np.broadcast_shapes(*(x.shape for x in every)))
    for schedule, rows in by_schedule(layouts):
        out[..., rows] = schedule.makespan(pipeline(layouts, rows), loads.take(rows))
    return out


def _mean_layer(costs: StepCosts) -> tuple[LayerTime, Array]:
    """The average of all layers, of which recomputation may leave some alone, and the share of those it repeats."""
    layouts, stages, v = costs.case.layouts, costs.stages, costs.case.layouts.virtual_stages
    if costs.alone is None:
        return costs.layer, np.ones(1)
    middle = np.maximum(layouts.pp - 2, 0)
    early = np.minimum(stages.num_early, middle)
    ranks = ((stages.first, 1), (stages.early, early), (stages.late, middle - early), (stages.last, layouts.pp > 1))
    alone = sum(number * left_alone(layouts, layers, v) for layers, number in ranks) / costs.case.model.num_layers
    layer = records.combined([costs.layer, costs.alone], lambda again, once: again + alone * (once - again))
    return layer, np.asarray(1.0 - alone)


def step_time(costs: StepCosts, bubble: bool = True) -> StepTime:
    """The step from its parts; where it is not asked for, without its bubble."""
    cost, ends, t = costs.cost, costs.ends, costs.traffic
    layer, repeated = _mean_layer(costs)
    layouts = costs.case.layouts
    m, p = layouts.micro_batches, layouts.pp
    ends_s = ends.embedding_forward_s + ends.embedding_backward_s
    ends_s = ends_s + ends.head_s
    loads = _loads(costs).known(p)
    forward, input_grad, weight_grad = loads.slowest(p)
    slowest = forward + input_grad + weight_grad
    span = _makespan(layouts, loads) if bubble else m * slowest
    mean = sum(loads.total(p)) / p
    unmoved = mean if costs.move_s is None else sum(_loads(replace(costs, move_s=None)).total(p)) / p
    work = m * costs.case.model.num_layers / p
    data = data_comm(costs, forward, input_grad + weight_grad)
    sharded_ends = np.where(by_chunk(layouts), 0.0, m * t.ends_sharding_s / p)
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
        sharding_comm_s=work * layer.sharding_s + sharded_ends + chunk_wait_s(costs, forward, input_grad + weight_grad),
        pipeline_comm_s=m * 2.0 * (layouts.virtual_stages - 1.0 / p) * costs.send_s,
        host_comm_s=m * (mean - unmoved),
        imbalance_s=m * (slowest - mean),
        # No order takes less; sums of one rank's passes in another order round otherwise.
        bubble_s=np.where(p == 1, 0.0, np.maximum(span - m * slowest, 0.0)),
        data_comm_s=data.reduce_s - data.reduce_hidden_s + data.gather_s - data.gather_hidden_s + t.tied_s,
        optimizer_s=costs.update_s,
    )


@dataclass(frozen=True, kw_only=True)
class DataComm:
    """Data-parallel collectives of a step, seconds of shape (n,): in all, and of that what hides under compute."""

    reduce_s: Array
    reduce_hidden_s: Array
    gather_s: Array
    gather_hidden_s: Array


def data_comm(costs: StepCosts, forward_s: Any, backward_s: Any) -> DataComm:
    """The gradient reduction and parameter gather of a rank whose passes of one micro-batch take so many seconds.

    They hide under one micro-batch's pass as far as the framework overlaps; layer at a time under all micro-batches'
    passes of the other chunks, which leaves the last chunk's reduction and the first one's gather.
    """
    framework, layouts = costs.case.framework, costs.case.layouts
    m, p, v = layouts.micro_batches, layouts.pp, layouts.virtual_stages
    by_layer = layer_at_a_time(layouts)
    window = np.where(by_layer, np.maximum(m, p) * (v - 1) / v, 1.0)
    most = np.where(by_layer, (v - 1) / v, 1.0)
    overlap = np.where((p > 1) & ~by_layer, framework.overlap_grad_reduce_pipelined, framework.overlap_grad_reduce)
    times = np.where((layouts.zero == 2) & ~by_layer, m, 1)
    reduce_hidden = np.minimum(overlap * window * backward_s, np.minimum(overlap, most) * costs.reduce_s)
    gather_shown = shown_s(framework, costs.gather_s, costs.gather_link_s, window * forward_s)
    return DataComm(
        reduce_s=times * costs.reduce_s,
        reduce_hidden_s=times * reduce_hidden,
        gather_s=costs.gather_s,
        gather_hidden_s=np.minimum(costs.gather_s - gather_shown, most * costs.gather_s),
    )
