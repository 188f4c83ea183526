"""`estimate(model, cluster, layouts)`: seconds and bytes of a training step, with what they are made of.

One closed form for all layouts at once. Parts are those of the average rank; `imbalance_s` is what the slowest
rank adds to it, `bubble_s` the filling and draining of the pipeline; the parts add up to the step.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.costs.ends import EndsCost, ends_cost
from planner.costs.kernels import Device
from planner.costs.layer import LayerCost, layer_cost
from planner.costs.memory import Memory, rank_memory, rank_parameters, weight_grad_share
from planner.costs.optimizer import optimizer_s
from planner.costs.stages import Stages, split_layers
from planner.costs.traffic import Traffic, traffic
from planner.hardware import Cluster, Framework
from planner.layouts import Layouts, Precision, Recompute
from planner.models import Transformer
from planner.models.flops import step_flops
from planner.schedules import Pipeline, get_schedule

__all__ = ["Estimate", "StepTime", "estimate"]

Array = NDArray[np.float64]
Passes = tuple[Array, Array, Array]


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of one optimizer step by cause, arrays of shape (n,); the total is their sum."""

    matmul_s: Array
    attention_s: Array
    pointwise_s: Array
    recompute_s: Array
    embedding_head_s: Array
    host_s: Array
    tensor_comm_s: Array
    context_comm_s: Array
    expert_comm_s: Array
    sharding_comm_s: Array
    pipeline_comm_s: Array
    imbalance_s: Array
    bubble_s: Array
    data_comm_s: Array
    optimizer_s: Array

    @property
    def total_s(self) -> Array:
        """Seconds of the step."""
        return np.asarray(sum(getattr(self, f.name) for f in fields(self)))


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What `estimate` says of a table of layouts.

    fits: peak memory within the accelerator's; mfu: model FLOP by PaLM's convention over peak, 0 to 1.
    """

    layouts: Layouts
    time: StepTime
    memory: Memory
    step_time_s: Array
    memory_bytes: Array
    fits: NDArray[np.bool_]
    mfu: Array
    tokens_per_s_per_gpu: Array


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """One layer and micro-batch with its collectives as they show: seconds, shape (n,)."""

    forward_s: Array
    backward_s: Array
    tensor_s: Array
    context_s: Array
    expert_s: Array
    sharding_s: Array
    host_s: Array

    @property
    def total_s(self) -> Array:
        """Forward and backward."""
        return self.forward_s + self.backward_s


def layer_at_a_time(layouts: Layouts) -> NDArray[np.bool_]:
    """Where all micro-batches pass a chunk before the next one."""
    trait = np.array([get_schedule(name).layer_at_a_time for name in layouts.schedule_names])
    return np.asarray(trait[layouts.schedule])


def layer_time(framework: Framework, layouts: Layouts, cost: LayerCost, t: Traffic) -> LayerTime:
    """A layer's passes with exposed communication, and the host's launches where they take longer.

    The context ring hides under the attention it feeds; ZeRO-3's gathers and scatters under the passes, as far as
    the framework prefetches. Where all micro-batches pass a layer before the next it is gathered and reduced once
    for all of them (Lamy-Poirier 2021, arXiv 2106.02679): here, the m-th part of that falls to each.
    """
    repeats = np.where(layer_at_a_time(layouts), layouts.micro_batches, 1)
    gather_s, reduce_s = t.layer_gather_s / repeats, t.layer_reduce_s / repeats
    shown = 1.0 - framework.overlap_tensor
    tensor_f, tensor_b = shown * t.layer_forward_s, shown * t.layer_backward_s
    context_f = np.maximum(t.context_forward_s - cost.forward_attention_s, 0.1 * t.context_forward_s)
    context_b = np.maximum(t.context_backward_s - cost.backward_attention_s, 0.1 * t.context_backward_s)
    forward = cost.forward_s + tensor_f + context_f + t.expert_forward_s
    backward = cost.backward_s + tensor_b + context_b + t.expert_backward_s
    host_f = framework.host_layer_forward_s * layouts.sequence_slices
    host_b = framework.host_layer_backward_s * layouts.sequence_slices
    again = np.where(layouts.recompute == Recompute.FULL, host_f, 0.0)
    wait_f = np.maximum(host_f - forward, 0.0)
    wait_b = np.maximum(host_b + again - backward, 0.0)
    forward, backward = forward + wait_f, backward + wait_b
    hidden = framework.overlap_param_gather
    gather_f = np.maximum(gather_s - hidden * forward, (1.0 - hidden) * gather_s)
    both = gather_s + reduce_s
    gather_b = np.maximum(both - hidden * backward, (1.0 - hidden) * both)
    return LayerTime(
        forward_s=forward + gather_f,
        backward_s=backward + gather_b,
        tensor_s=tensor_f + tensor_b,
        context_s=context_f + context_b,
        expert_s=t.expert_forward_s + t.expert_backward_s,
        sharding_s=gather_f + gather_b,
        host_s=wait_f + wait_b,
    )


def _ends(layouts: Layouts, stages: Stages) -> tuple[tuple[Array, Any, Any], tuple[Array, Any, Any]]:
    """The first and the last rank: layers, and where the rank holds the embedding and the head."""
    one = layouts.pp == 1
    yes = np.ones(len(layouts), dtype=bool)
    return (stages.first, yes, one), (stages.last, one, yes)


def _peak_memory(device: Device, framework: Framework, model: Transformer, layouts: Layouts, stages: Stages) -> Memory:
    """The fuller of the first rank, with most micro-batches in flight, and the last, with the logits."""
    n = len(layouts)
    share = weight_grad_share(device, model, layouts)
    ranks = []
    for at_end, (layers, first, last) in enumerate(_ends(layouts, stages)):
        flight, copies, versions = np.zeros(n), np.ones(n), np.ones(n)
        for i, name in enumerate(layouts.schedule_names):
            rows = layouts.schedule == i
            schedule, pipe = get_schedule(name), pipeline(layouts.take(rows))
            rank = at_end * (pipe.p - 1)
            flight[rows] = schedule.in_flight(pipe, rank, share[rows])
            copies[rows], versions[rows] = schedule.copies, schedule.weight_versions(pipe, rank)
        ranks.append(
            rank_memory(
                device,
                framework,
                model,
                layouts,
                layers=layers,
                in_flight=flight,
                first=first,
                last=last,
                copies=copies,
                versions=versions,
            )
        )
    return Memory.largest(ranks)


def pipeline(layouts: Layouts) -> Pipeline:
    """The pipelines' sizes as their schedules take them."""
    return Pipeline(p=layouts.pp, m=layouts.micro_batches, v=layouts.virtual_stages, k=layouts.sequence_slices)


def _makespan(layouts: Layouts, total: Passes, slowest: Passes) -> Array:
    """Seconds of each layout's schedule from seconds F, I, W through all stages and through the slowest rank."""
    out = np.zeros(len(layouts))
    for i, name in enumerate(layouts.schedule_names):
        r = layouts.schedule == i
        parts = [tuple(x[r] for x in passes) for passes in (total, slowest)]
        out[r] = get_schedule(name).makespan(pipeline(layouts.take(r)), parts[0], parts[1])
    return out


def _passes(both_s: Array, layer: LayerTime, cost: LayerCost) -> Passes:
    """F, I, W of a time for both passes, divided as a layer's is."""
    forward, weight = layer.forward_s / layer.total_s, cost.weight_grad_s / layer.total_s
    return both_s * forward, both_s * (1.0 - forward - weight), both_s * weight


def _step_time(
    framework: Framework,
    layouts: Layouts,
    num_layers: Any,
    cost: LayerCost,
    layer: LayerTime,
    ends: EndsCost,
    stages: Stages,
    t: Traffic,
    update_s: Array,
) -> StepTime:
    """The step from its layers, ends, stages, traffic and update."""
    m, p, v = layouts.micro_batches, layouts.pp, layouts.virtual_stages
    shown = 1.0 - framework.overlap_pipeline
    ends_s = ends.embedding_forward_s + ends.embedding_backward_s
    ends_s = ends_s + ends.head_forward_s + ends.head_backward_s
    # Each chunk's forward receives and its backward receives; a rank waits for both.
    sends = 2.0 * v * t.send_s * shown
    slowest = stages.slowest_layers * layer.total_s + sends
    total = num_layers * layer.total_s + ends_s + t.ends_s + p * sends
    span = _makespan(layouts, _passes(total, layer, cost), _passes(slowest, layer, cost))
    mean = total / p
    work = m * num_layers / p
    backward_share = layer.backward_s / layer.total_s
    by_layer = layer_at_a_time(layouts)
    # Collectives hide under one micro-batch's pass; layer at a time under all micro-batches' passes of the other
    # chunks, which leaves the last chunk's reduction and the first one's gather.
    window = np.where(by_layer, m * (v - 1) / v, 1.0) * slowest
    least = np.where(by_layer, 1.0 / v, 0.0)
    hidden = np.where((p > 1) & ~by_layer, framework.overlap_grad_reduce_pipelined, framework.overlap_grad_reduce)
    shown_share = np.maximum(1.0 - hidden, least)
    reduce = np.maximum(t.reduce_s - hidden * window * backward_share, shown_share * t.reduce_s)
    reduce = reduce * np.where((layouts.zero == 2) & ~by_layer, m, 1)
    prefetched = framework.overlap_param_gather
    gather = t.gather_s - prefetched * window * (1.0 - backward_share)
    gather = np.maximum(gather, np.maximum(1.0 - prefetched, least) * t.gather_s)
    return StepTime(
        matmul_s=work * (cost.forward_matmul_s + cost.backward_matmul_s),
        attention_s=work * (cost.forward_attention_s + cost.backward_attention_s),
        pointwise_s=work * (cost.forward_pointwise_s + cost.backward_pointwise_s),
        recompute_s=work * cost.recompute_s,
        embedding_head_s=m * ends_s / p,
        host_s=work * layer.host_s,
        tensor_comm_s=work * layer.tensor_s + m * t.ends_s / p,
        context_comm_s=work * layer.context_s,
        expert_comm_s=work * layer.expert_s,
        sharding_comm_s=work * layer.sharding_s,
        pipeline_comm_s=m * sends,
        imbalance_s=m * (slowest - mean),
        bubble_s=span - m * slowest,
        data_comm_s=reduce + gather + t.tied_s,
        optimizer_s=update_s,
    )


def estimate(model: Transformer, cluster: Cluster, framework: Framework, layouts: Layouts) -> Estimate:
    """Step time and peak memory of every layout.

    model: one transformer, or one a layout (array fields); layouts must be legal (`planner.legality`).
    """
    device = Device.of(cluster.accelerator, layouts.precision)
    cost = layer_cost(device, model, layouts)
    ends = ends_cost(device, model, layouts)
    # Where layers lie depends on what one costs without waiting for parameters.
    per_layer = cost.forward_s + cost.backward_s
    e = (ends.embedding_forward_s + ends.embedding_backward_s) / per_layer
    g = (ends.head_forward_s + ends.head_backward_s) / per_layer
    stages = split_layers(layouts, model.num_layers, e, g)
    first, last = (rank_parameters(model, layouts, n, f, z) for n, f, z in _ends(layouts, stages))
    busiest = np.maximum(first.total, last.total)
    expert_share = np.where(first.total > 0, first.experts / first.total, 0.0)
    no = np.zeros(len(layouts), dtype=bool)
    layer_params = rank_parameters(model, layouts, 1.0, no, no).total
    t = traffic(device, cluster, framework, model, layouts, layer_params, busiest, expert_share)
    layer = layer_time(framework, layouts, cost, t)
    stages = split_layers(layouts, model.num_layers, e * per_layer / layer.total_s, g * per_layer / layer.total_s)
    shards = np.where(layouts.zero > 0, layouts.dp * layouts.cp, 1)
    update = optimizer_s(device, cluster, framework, layouts, busiest, busiest / shards)
    time = _step_time(framework, layouts, model.num_layers, cost, layer, ends, stages, t, update)
    memory = _peak_memory(device, framework, model, layouts, stages)
    step = time.total_s
    peak = np.array([cluster.accelerator.peak_flops.get(p.name.lower(), np.nan) for p in Precision])
    flop = step_flops(model, layouts.global_batch, "palm")
    gpus = layouts.gpus
    total = memory.total_bytes
    return Estimate(
        layouts=layouts,
        time=time,
        memory=memory,
        step_time_s=step,
        memory_bytes=total,
        fits=total <= cluster.accelerator.memory_bytes,
        mfu=np.asarray(flop / (step * gpus * peak[layouts.precision])),
        tokens_per_s_per_gpu=np.asarray(layouts.global_batch * model.seq_len / step / gpus),
    )
