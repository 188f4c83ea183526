"""What the parts of a step cost: a layer's passes as they show, ends, stages, collectives, the update. Array-first.

The closed form (`planner.step.estimate`) and the exact timeline (`planner.step.timeline`) are made of the same parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.base import records
from planner.costs.case import Case
from planner.costs.gradient_accumulation import with_accumulation
from planner.costs.layer.embedding_head import EndsCost, with_gathered_logits, with_modules
from planner.costs.layer.layer_cost import LayerCost
from planner.costs.memory.bytes_per_parameter import reduced_bytes
from planner.costs.memory.parameters import rank_parameters, state_parameters
from planner.costs.memory.rank import Activations
from planner.costs.network.collectives import rank_send_s
from planner.costs.network.data_parallel import data_traffic, gather_pieces, gathered_twice
from planner.costs.network.traffic import Traffic, traffic
from planner.costs.one_layer import OneLayer, one_layer
from planner.costs.optimizer import optimizer_s
from planner.hardware import Framework
from planner.layouts import Layouts, Recompute
from planner.models import counts, mix
from planner.setup import Setup
from planner.step.pipelines import end_shares, ends_apart, key_ranks, layer_at_a_time, weight_copies
from planner.step.splits import Stages, split_layers

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """The parts of every layout's step; arrays of shape (n,), or of a grid as far as they depend on its choices.

    reduce_s, gather_s: data-parallel collectives of the rank with most parameters, before any overlap; gather_link_s:
    what the gather's bytes take of a node's links.
    send_s: exposed seconds of one transfer of a micro-batch to the neighbouring stage. update_s: the optimizer's.
    busiest_params: parameters of the rank with most, before sharding.
    """

    case: Case
    cost: LayerCost
    layer: LayerTime
    ends: EndsCost
    activations: Activations
    stages: Stages
    traffic: Traffic
    reduce_s: Array
    gather_s: Array
    gather_link_s: Array
    send_s: Array
    update_s: Array
    busiest_params: Array

    def take(self, index: Any) -> StepCosts:
        """Those of a table's layouts at an index array, mask or slice."""
        return records.take(self, index, len(self.busiest_params))


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


def layer_time(case: Case, cost: LayerCost, t: Traffic) -> LayerTime:
    """A layer's passes with exposed communication, and the host's launches where they take longer.

    The context ring hides under the attention it feeds, ZeRO-3's gathers and scatters under the passes (`shown_s`).
    Where all micro-batches pass a layer before the next it is gathered and reduced once for all of them (Lamy-Poirier
    2021, arXiv 2106.02679): here, the m-th part of that falls to each.
    """
    framework, layouts = case.framework, case.layouts
    repeats = np.where(layer_at_a_time(layouts), layouts.micro_batches, 1)
    gather_s, reduce_s = t.layer_gather_s / repeats, t.layer_reduce_s / repeats
    shown = 1.0 - framework.overlap_tensor
    # The two column-parallel products' gradients, 7 of 12 parts of a GPT layer's weights, hide what the backward pass
    # proper reduces; with sequence parallelism half of it, for the gathers of output gradients are waited for.
    on_wire_f, on_wire_b = (framework.tensor_slowdown * x for x in (t.layer_forward_s, t.layer_backward_s))
    beside = framework.overlap_tensor_backward * np.where(layouts.sequence_parallel, 0.5, 1.0)
    hidden_b = np.minimum(beside * on_wire_f, 7.0 / 12.0 * cost.weight_grad_s)
    tensor_f, tensor_b = shown * on_wire_f, shown * (on_wire_b - hidden_b)
    context_f = np.maximum(t.context_forward_s - cost.forward_attention_s, 0.1 * t.context_forward_s)
    context_b = np.maximum(t.context_backward_s - cost.backward_attention_s, 0.1 * t.context_backward_s)
    forward, backward = cost.forward_s + tensor_f + context_f, cost.backward_s + tensor_b + context_b
    # Another micro-batch's passes run beside the experts' all-to-alls, where the framework interleaves two.
    two = framework.overlap_experts
    expert_f = np.maximum(t.expert_forward_s - two * forward, (1.0 - two) * t.expert_forward_s)
    expert_b = np.maximum(t.expert_backward_s - two * backward, (1.0 - two) * t.expert_backward_s)
    forward, backward = forward + expert_f, backward + expert_b
    # Launches of a layer of two blocks; a hybrid's has one.
    halves = layouts.sequence_slices * (mix.shares(case.model).blocks / 2.0)
    host_f, host_b = framework.host_layer_forward_s * halves, framework.host_layer_backward_s * halves
    again = np.where(layouts.recompute == Recompute.FULL, host_f, 0.0)
    # A host that waits for every kernel never runs ahead of the accelerator.
    ahead = 0.0 if framework.blocking_launches else 1.0
    wait_f = np.maximum(host_f - ahead * forward, 0.0)
    wait_b = np.maximum(host_b + again - ahead * backward, 0.0)
    forward, backward = forward + wait_f, backward + wait_b
    gather_link, reduce_link = t.layer_gather_link_s / repeats, t.layer_reduce_link_s / repeats
    gather_f = shown_s(framework, gather_s, gather_link, forward)
    twice = gathered_twice(layouts)
    gather_b = shown_s(framework, twice * gather_s + reduce_s, twice * gather_link + reduce_link, backward)
    return LayerTime(
        forward_s=forward + gather_f,
        backward_s=backward + gather_b,
        tensor_s=tensor_f + tensor_b,
        context_s=context_f + context_b,
        expert_s=expert_f + expert_b,
        sharding_s=gather_f + gather_b,
        host_s=wait_f + wait_b,
    )


def shown_s(framework: Framework, collective_s: Any, link_s: Any, pass_s: Any) -> Array:
    """Seconds that sharded collectives add to a pass that they run beside: what outlasts it, or what they cost it.

    They take memory bandwidth and compute units by the byte, however slow the network, and hold the units through a
    ring's steps: 1 - `overlap_param_gather` of the time that a node's links and those steps would need. A framework
    whose overlap is 0 waits for them.
    """
    if framework.overlap_param_gather == 0.0:
        return np.asarray(collective_s)
    return np.asarray(np.maximum(collective_s - pass_s, (1.0 - framework.overlap_param_gather) * link_s))


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
    window = np.where(by_layer, m * (v - 1) / v, 1.0)
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


def module_time(case: Case, one: OneLayer) -> LayerTime:
    """As `layer_time`, of a multi-token prediction module's layer that is another than the average one."""
    assert one.module is not None
    own, spread = case.with_model(mix.module_layer(case.model)), one.distinct.spread
    cost, wire = spread(one.module[0]), spread(one.module[1])
    params = rank_parameters(own.model, own.layouts, 1.0, False, False)
    cost, _ = with_accumulation(own, params.total, cost, spread(one.ends), False)
    t = traffic(own, wire, params.total, params.expert_share)
    return layer_time(own, cost, t)


def step_costs(setup: Setup, layouts: Layouts, one: OneLayer | None = None) -> StepCosts:
    """The parts of every layout's step.

    layouts must be legal (`planner.step.legality`). one: their `one_layer`, where it is known.
    """
    model, cluster, framework = setup.model, setup.cluster, setup.framework
    one = one or one_layer(setup, layouts)
    case, spread = one.case_of(layouts), one.distinct.spread
    cost, ends = spread(one.cost), spread(one.ends)
    params = rank_parameters(model, layouts, 1.0, False, False)
    apart = ends_apart(layouts)
    cost, ends = with_accumulation(case, params.total, cost, ends, apart)
    t = traffic(case, spread(one.traffic), params.total, params.expert_share)
    t = replace(t, tied_s=np.where(apart, t.tied_s, 0.0))
    # Where all micro-batches pass a layer before the next, the ends are gathered and reduced once for all of them.
    if np.any(t.ends_sharding_s):
        once = np.where(layer_at_a_time(layouts), layouts.micro_batches, 1)
        t = replace(t, ends_sharding_s=t.ends_sharding_s / once)
    layer = layer_time(case, cost, t)
    ends = with_gathered_logits(case, ends, t.logits_s)
    module = layer if one.module is None else module_time(case, one)
    ends = with_modules(model, ends, module.forward_s, module.backward_s)
    e = (ends.embedding_forward_s + ends.embedding_backward_s) / layer.total_s
    g = (ends.head_forward_s + ends.head_backward_s) / layer.total_s
    shares = end_shares(layouts)
    table = case.padded_vocab / layouts.tp * model.hidden / params.total
    on_first, on_last = (share[0] * e + share[1] * g for share in (shares[:2], shares[2:]))
    sizes = (table, table + model.num_mtp_modules)
    stages = split_layers(
        layouts, model.num_layers, on_first, on_last, sizes, model.output_heads, counts.head_in_layers(model)
    )
    ranks = key_ranks(layouts, stages)
    own = records.largest(
        [rank_parameters(model, layouts, r.layers, r.first, r.last) for r in ranks], lambda rank: rank.total
    )
    copies = weight_copies(layouts)
    busiest = own.total
    reduce_s, gather_s, gather_link_s = data_traffic(case, own, copies)
    if framework.reduce_pass_bytes > 0:
        several = layouts.dp * layouts.cp > 1
        reduce_s = reduce_s + np.where(several, framework.reduce_pass_bytes * busiest / case.device.memory_rate, 0.0)
    if framework.gather_piece_s > 0:
        most = reduce(np.maximum, [np.asarray(r.layers) for r in ranks])
        gather_s = gather_s + framework.gather_piece_s * gather_pieces(case, most)
    # Two copies of a stage on two ranks of a pipeline sum their gradients: each sends and receives half twice.
    if np.any(copies > 1):
        between = 2.0 * rank_send_s(cluster, layouts, copies * busiest * reduced_bytes(case) / 2.0)
        reduce_s = reduce_s + np.where(copies > 1, between, 0.0)
    gradients, updated = (state_parameters(own, layouts, from_stage) for from_stage in (2, 1))
    return StepCosts(
        case=case,
        cost=cost,
        layer=layer,
        ends=ends,
        activations=spread(one.activations),
        stages=stages,
        traffic=t,
        reduce_s=reduce_s,
        gather_s=gather_s,
        gather_link_s=gather_link_s,
        send_s=t.send_s * (1.0 - framework.overlap_pipeline),
        update_s=copies * optimizer_s(case, gradients, updated),
        busiest_params=busiest,
    )
