"""Seconds of one layer and micro-batch as a step shows them: its passes, what they wait for, what hides under them."""

from typing import Any

import numpy as np

from planner.base.arrays import Array, record
from planner.costs.adapters import trained
from planner.costs.case import Case
from planner.costs.gradient_accumulation import with_accumulation
from planner.costs.layer.expert_routing import takes_turns
from planner.costs.layer.host_launches import host_s
from planner.costs.layer.kept_operations import by_operation
from planner.costs.layer.layer_cost import LayerCost
from planner.costs.network.data_parallel import gathered_twice
from planner.costs.network.traffic import LayerTraffic, Traffic, traffic
from planner.costs.one_layer import OneLayer
from planner.costs.shapes import is_latent
from planner.hardware import Framework
from planner.layouts import Recompute
from planner.models import Transformer, mix
from planner.step.pipelines import by_chunk, layer_at_a_time

COLUMN_PARALLEL = 7.0 / 12.0
"""Fraction of a GPT layer's 12 h^2 weights in its column-parallel products: QKV 3 h^2, the MLP's first 4 h^2.

Their weights' gradients are what runs beside the backward all-reduce (Korthikanti et al. 2022, arXiv 2205.05198,
section 4.2.2)."""
HALF_WAITS = 0.5
"""With sequence parallelism one of the two backward collectives, the gather of the output's gradient, is waited for."""
RING_SHOWS = 0.1
"""The least that shows of a context ring's transfers, over what a gather of the same by all NICs would take. Assumed:
no source states it."""


@record
class LayerTime:
    """One layer and micro-batch with its collectives as they show: seconds, shape (n,).

    idle_forward_s, idle_backward_s: of the passes, what waits for launches that are made meanwhile: whatever holds the
    device up before takes its place.
    """

    forward_s: Array
    backward_s: Array
    tensor_s: Array
    context_s: Array
    expert_s: Array
    sharding_s: Array
    host_s: Array
    idle_forward_s: Array
    idle_backward_s: Array

    @property
    def total_s(self) -> Array:
        """Forward and backward."""
        return self.forward_s + self.backward_s


def layer_time(case: Case, cost: LayerCost, t: Traffic) -> LayerTime:
    """A layer's passes with exposed communication, and the host's launches where they take longer than both.

    The context ring hides under the attention it feeds, ZeRO-3's gathers and scatters under the passes (`shown_s`).
    Where all micro-batches pass a layer before the next it is gathered and reduced once for all of them (Lamy-Poirier
    2021, arXiv 2106.02679): here, the m-th part of that falls to each. In a pipeline it is the ranks that wait for them
    (`planner.step.chunk_gathers`).
    """
    framework, layouts = case.framework, case.layouts
    each = np.where(by_chunk(layouts), 0.0, 1.0 / np.where(layer_at_a_time(layouts), layouts.micro_batches, 1))
    gather_s, reduce_s = t.layer_gather_s * each, t.layer_reduce_s * each
    # Products that run beside their own collectives (Transformer Engine's userbuffers) reach over NVLink alone, and
    # latent attention's down-projections turn them off (Megatron-Core 0.16.1, extensions/transformer_engine.py).
    reach = (layouts.tp <= case.cluster.nvlink_gpus) & ~is_latent(case.model)
    shown = 1.0 - np.where(reach, framework.overlap_tensor, 0.0)
    # The column-parallel products' weight gradients hide what the backward pass proper reduces.
    on_wire_f, on_wire_b = (framework.tensor_slowdown * x for x in (t.layer_forward_s, t.layer_backward_s))
    beside = framework.overlap_tensor_backward * np.where(layouts.sequence_parallel, HALF_WAITS, 1.0)
    hidden_b = np.minimum(beside * on_wire_f, COLUMN_PARALLEL * cost.weight_grad_s)
    tensor_f, tensor_b = shown * on_wire_f, shown * (on_wire_b - hidden_b)
    context_f, context_b = t.context_forward_s, t.context_backward_s
    if not framework.gathered_context and not (framework.sdpa_context and framework.compiled_layers):
        # PyTorch's gather is waited for after the first part of the sequence.
        parts = layouts.cp / layouts.ulysses if framework.sdpa_context else 1.0
        context_f = np.maximum(context_f - cost.forward_attention_s / parts, RING_SHOWS * t.context_gather_forward_s)
        context_b = np.maximum(context_b - cost.backward_attention_s, RING_SHOWS * t.context_gather_backward_s)
    context_f, context_b = context_f + t.exchange_forward_s, context_b + t.exchange_backward_s
    forward, backward = cost.forward_s + tensor_f + context_f, cost.backward_s + tensor_b + context_b
    # Another micro-batch's passes run beside the experts' all-to-alls, where the framework interleaves two.
    two = framework.overlap_experts * takes_turns(case)
    expert_f = np.maximum(t.expert_forward_s - two * forward, (1.0 - two) * t.expert_forward_s)
    expert_b = np.maximum(t.expert_backward_s - two * backward, (1.0 - two) * t.expert_backward_s)
    forward, backward = forward + expert_f, backward + expert_b
    gather_taken, reduce_taken = t.layer_gather_taken_s * each, t.layer_reduce_taken_s * each
    gather_f = shown_s(framework, gather_s, gather_taken, forward) + each * t.layer_copy_out_s
    twice = gathered_twice(layouts)
    gather_b = shown_s(framework, twice * gather_s + reduce_s, twice * gather_taken + reduce_taken, backward)
    often = np.where(layer_at_a_time(layouts), 1.0, case.scattering)
    if framework.defers_scatter:
        alone = shown_s(framework, twice * gather_s, twice * gather_taken, backward)
        gather_b = often * gather_b + (1.0 - often) * alone
    gather_b = gather_b + each * (twice * t.layer_copy_out_s + often * t.layer_copy_in_s)
    forward, backward = forward + gather_f, backward + gather_b
    wait_f, wait_b, idle_f, idle_b = host_waits_s(case, forward, backward)
    return LayerTime(
        forward_s=forward + wait_f,
        backward_s=backward + wait_b,
        tensor_s=tensor_f + tensor_b,
        context_s=context_f + context_b,
        expert_s=expert_f + expert_b,
        sharding_s=gather_f + gather_b,
        host_s=wait_f + wait_b,
        idle_forward_s=idle_f,
        idle_backward_s=idle_b,
    )


def host_waits_s(case: Case, forward_s: Array, backward_s: Array) -> tuple[Array, Array, Array, Array]:
    """Seconds by which the host's launches outlast a layer's passes, as an average of the step's micro-batches.

    Of the forward and of the backward pass; then the part of either that `LayerTime` calls idle.

    One pass may run ahead for the other: m micro-batches take the longer of m launches and m runs of both. Where the
    forward pass waits for its launches and the backward pass lags behind its own, a step besides begins with the wait
    or ends with the lag, whichever is shorter: what is launched before any moment and what runs after it, at the most.
    Once a step, or with all forward passes before all backward ones for every micro-batch.
    One doesn't run ahead where the host waits for every kernel, nor with experts, where each layer
    copies to the host how many tokens every expert gets (Megatron-Core, token_dispatcher.py), unless all get as many,
    or another micro-batch's backward pass is launched in turn and keeps the GPU busy (model_chunk_schedule_plan.py).
    """
    layouts = case.layouts
    host_f, host_b = host_s(case, case.by_layer)
    hooks_s = case.framework.host_recompute_s * case.cluster.host_pace * (not case.framework.compiled_layers)
    again = (layouts.recompute == Recompute.FULL) | by_operation(case)
    host_b = host_b + np.where(again, host_f + mix.shares(case.model).blocks / 2.0 * hooks_s, 0.0)
    none = np.zeros(1)
    if case.framework.blocking_launches:
        return host_f, host_b, none, none
    apart = np.maximum(host_f - forward_s, 0.0), np.maximum(host_b - backward_s, 0.0)
    counted = (mix.shares(case.model).sparse > 0.0) & (layouts.capacity_factor == 0.0) & ~takes_turns(case)
    if np.all(counted):
        return *apart, none, none
    both = np.maximum(host_f + host_b - forward_s - backward_s, 0.0)
    share = np.where(counted, 0.0, both / np.maximum(apart[0] + apart[1], 1e-30))
    idle_f, idle_b = share * apart[0], share * apart[1]
    times = np.where(layer_at_a_time(layouts), 1.0, 1.0 / layouts.micro_batches)
    lag = times * np.minimum(apart[0], np.maximum(backward_s - host_b, 0.0))
    return np.where(counted, apart[0], idle_f + lag), np.where(counted, apart[1], idle_b), idle_f, idle_b


def shown_s(framework: Framework, collective_s: Any, taken_s: Any, pass_s: Any) -> Array:
    """Seconds that sharded collectives add to a pass that they run beside: what outlasts it, or what they take from it.

    They take memory bandwidth and compute units by the byte, however slow the network (`DataCollectives.taken`). A
    framework whose overlap is 0 waits for them.
    """
    if framework.overlap_param_gather == 0.0:
        return np.asarray(collective_s)
    return np.asarray(np.maximum(collective_s - pass_s, taken_s))


def other_layer(
    case: Case, one: OneLayer, model: Transformer, parts: tuple[LayerCost, LayerTraffic]
) -> tuple[LayerTime, LayerCost]:
    """`layer_time` and cost of a layer that is not the average one: the average of a model of its own.

    parts: its cost and traffic over the distinct layouts.
    """
    own, spread = case.with_model(model), one.distinct.spread
    params = own.ranks.rank(1.0, False, False)
    cost, _ = with_accumulation(own, trained(own, params).total, spread(parts[0]), spread(one.ends), False)
    return layer_time(own, cost, traffic(own, spread(parts[1]), params)), cost
