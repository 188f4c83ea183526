"""Communication of one step by kind of parallelism, in seconds. Array-first, shape (n,)."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.costs.gradients import parameter_bytes, reduced_bytes
from planner.costs.kernels import Device
from planner.costs.network import (
    Group,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    dispatch_s,
    groups,
    rank_send_s,
    send_s,
)
from planner.costs.parameters import expert_shards
from planner.costs.routing import reached
from planner.costs.shapes import is_latent, padded_vocab, pass_tokens
from planner.hardware import Cluster, Framework
from planner.layouts import Layouts, Recompute
from planner.models import Transformer, mix

__all__ = ["LayerTraffic", "Traffic", "data_traffic", "gather_pieces", "layer_traffic", "traffic"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class LayerTraffic:
    """Seconds on the wire of one micro-batch, before any overlap, arrays of shape (n,).

    layer_forward_s, layer_backward_s: tensor-parallel collectives of one layer. ends_s: of embedding, head and loss;
    logits_s: gathering the head's logits, where a framework does.
    context_*: keys and values around the context ring; expert_*: all-to-alls.
    """

    layer_forward_s: Array
    layer_backward_s: Array
    context_forward_s: Array
    context_backward_s: Array
    expert_forward_s: Array
    expert_backward_s: Array
    ends_s: Array
    logits_s: Array


@dataclass(frozen=True, kw_only=True)
class Traffic(LayerTraffic):
    """All communication but the step's data-parallel collectives (`data_traffic`), arrays of shape (n,).

    send_s: one micro-batch's activations to the next stage.
    layer_gather_s, layer_reduce_s: ZeRO-3, one layer's parameters gathered, gradients scattered; layer_gather_link_s,
    layer_reduce_link_s: what the same bytes take of a node's links. ends_sharding_s: both, once, of embedding and head
    together, whose parameters stay gathered between the passes.
    tied_s: the tied embedding's gradient between first and last stage.
    """

    send_s: Array
    layer_gather_s: Array
    layer_reduce_s: Array
    layer_gather_link_s: Array
    layer_reduce_link_s: Array
    ends_sharding_s: Array
    tied_s: Array


def tensor_s(
    device: Device, framework: Framework, model: Transformer, layouts: Layouts, group: Group
) -> tuple[Array, Array]:
    """An all-reduce for each mixer and MLP of a layer and direction (Megatron-LM), or gather and scatter pairs of it.

    With sequence parallelism fp8 products gather fp8 operands (Transformer Engine, layernorm_linear.py: cast first).
    Full recomputation repeats both of the forward pass; with sequence parallelism the backward pass
    gathers the saved inputs again (Korthikanti et al. 2022, section 4.2.2), under the weight-gradient product.
    Without it, a gate and an up of their own may sum the gradient of the input that they share one by one. With it
    experts that are cut over the tensor group gather and scatter every copy of a token, whole ones none (Megatron-Core,
    token_dispatcher.py; Liu et al. 2025, arXiv 2504.14960).
    """
    size = pass_tokens(model, layouts) * model.hidden * device.element_bytes
    operand = np.where(layouts.sequence_parallel, device.matrix_bytes / device.element_bytes, 1.0)
    one = layouts.sequence_slices * (all_gather_s(group, size) + all_gather_s(group, operand * size))
    part = mix.shares(model)
    copies = np.where(layouts.sequence_parallel, np.maximum(model.top_k, 1), 1)
    routed = np.where(layouts.etp < layouts.tp, 0, copies)
    blocks = part.blocks + part.sparse * (routed + (np.asarray(model.num_shared_experts) > 0) - 1.0)
    again = np.where(layouts.recompute == Recompute.FULL, blocks, 0.0)
    if framework.gate_reduces > 0:
        gates = np.asarray(model.gated) * (part.dense + part.sparse)
        again = again + framework.gate_reduces * np.where(layouts.sequence_parallel, 0.0, gates)
    return blocks * one, (blocks + again) * one


def context_s(device: Device, model: Transformer, layouts: Layouts, group: Group) -> tuple[Array, Array]:
    """Ring attention: keys and values forward; keys, values and their gradients backward, of the average layer.

    Attention that is recomputed, alone or with its layer, passes keys and values round once more.
    """
    latent = is_latent(model)
    heads = np.where(latent, model.num_heads, np.maximum(model.num_kv_heads, layouts.tp))
    channels = model.head_dim + np.where(latent, model.v_head_dim, model.head_dim)
    size = layouts.micro_batch * model.seq_len * heads * channels / layouts.tp * device.element_bytes
    once = mix.shares(model).attention * all_gather_s(group, size)
    attends = (layouts.recompute == Recompute.SELECTIVE) | (layouts.recompute == Recompute.FULL)
    return once, np.where(attends, 3.0, 2.0) * once


def expert_s(
    device: Device, framework: Framework, model: Transformer, layouts: Layouts, group: Group
) -> tuple[Array, Array]:
    """Dispatch and combine, each a token's hidden state to top_k experts, averaged over dense and sparse layers.

    Full recomputation repeats both.
    """
    tokens = pass_tokens(model, layouts) * model.hidden / layouts.tp * device.element_bytes
    if framework.node_dispatch:
        one = dispatch_s(group, tokens, reached(model, group.ranks), reached(model, group.nodes))
    else:
        one = all_to_all_s(group, tokens * model.top_k)
    once = 2.0 * mix.shares(model).sparse * layouts.sequence_slices * one
    return once, np.where(layouts.recompute == Recompute.FULL, 2.0, 1.0) * once


def _started(cluster: Cluster, framework: Framework) -> Cluster:
    """The cluster whose network takes the framework's start-up on top of its latency."""
    latency_s = cluster.network.latency_s + framework.network_startup_s
    return replace(cluster, network=replace(cluster.network, latency_s=latency_s))


def layer_traffic(
    device: Device, cluster: Cluster, framework: Framework, model: Transformer, layouts: Layouts
) -> LayerTraffic:
    """The collectives of one layer, embedding and head for one micro-batch."""
    by = groups(_started(cluster, framework), layouts)
    tokens, k = pass_tokens(model, layouts), layouts.sequence_slices
    forward, backward = tensor_s(device, framework, model, layouts, by["tensor"])
    context, context_back = context_s(device, model, layouts, by["context"])
    expert, expert_back = expert_s(device, framework, model, layouts, by["expert"])
    hidden_bytes = tokens * model.hidden * device.element_bytes
    # Embedding output and head input gradient, summed over the tensor group, and the loss's three scalars a token.
    ends = 2.0 * all_reduce_s(by["tensor"], hidden_bytes) + 3.0 * all_reduce_s(by["tensor"], tokens * 4.0)
    logits = np.zeros_like(ends)
    if framework.gathered_logits:
        logits = all_gather_s(by["tensor"], tokens * padded_vocab(model, layouts) * device.element_bytes)
    return LayerTraffic(
        layer_forward_s=forward,
        layer_backward_s=backward,
        context_forward_s=context,
        context_backward_s=context_back,
        expert_forward_s=expert,
        expert_backward_s=expert_back,
        ends_s=k * ends,
        logits_s=k * logits,
    )


def traffic(
    device: Device,
    cluster: Cluster,
    framework: Framework,
    model: Transformer,
    layouts: Layouts,
    layer: LayerTraffic,
    layer_params: Array,
    expert_share: Array,
) -> Traffic:
    """All communication but the step's data-parallel collectives (`data_traffic`).

    layer_params: of one layer on one rank, before ZeRO's sharding; expert_share: fraction that are experts'.
    """
    cluster = _started(cluster, framework)
    data = _Data.of(cluster, framework, layouts, expert_share)
    hidden_bytes = pass_tokens(model, layouts) * model.hidden * device.element_bytes
    whole = layouts.zero == 3
    gather = reduce = gather_link = reduce_link = sharded_ends = np.zeros_like(layer_params)
    table = padded_vocab(model, layouts) / layouts.tp * model.hidden
    if np.any(whole):
        gather = np.where(whole, data.sharded_s(all_gather_s, layer_params, data.param_bytes), 0.0)
        reduce = np.where(whole, data.reduced_s(all_gather_s, layer_params), 0.0)
        link = data.on_links()
        gather_link = np.where(whole, link.sharded_s(all_gather_s, layer_params, data.param_bytes), 0.0)
        reduce_link = np.where(whole, link.reduced_s(all_gather_s, layer_params), 0.0)
        ends = table * np.where(np.asarray(model.tied) & (layouts.pp == 1), 1.0, 2.0)
        dense = replace(data, expert_share=np.zeros(1))
        both = dense.sharded_s(all_gather_s, ends, data.param_bytes) + dense.reduced_s(all_gather_s, ends)
        sharded_ends = np.where(whole, both, 0.0)
    sent = send_s(cluster, layouts, hidden_bytes, whole=framework.whole_sends)
    tied = 2.0 * rank_send_s(cluster, layouts, table * data.grad_bytes)
    return Traffic(
        **{f.name: getattr(layer, f.name) for f in fields(LayerTraffic)},
        send_s=framework.send_turns * layouts.sequence_slices * sent,
        layer_gather_s=gather,
        layer_reduce_s=reduce,
        layer_gather_link_s=gather_link,
        layer_reduce_link_s=reduce_link,
        ends_sharding_s=sharded_ends,
        tied_s=np.where(np.asarray(model.tied) & (layouts.pp > 1), tied, 0.0),
    )


def data_traffic(
    cluster: Cluster, framework: Framework, layouts: Layouts, stage_params: Array, expert_share: Array
) -> tuple[Array, Array, Array]:
    """Seconds of the gradient reduction, once a step or for ZeRO-2 once a micro-batch, and of the parameter gather.

    And what the gather's bytes take of a node's links. stage_params: of the rank with most, before sharding. All are 0
    for ZeRO-3, which has them in its layers.
    """
    cluster = _started(cluster, framework)
    data = _Data.of(cluster, framework, layouts, expert_share)
    zero = layouts.zero
    whole = (zero == 0) | ((zero == 1) & framework.whole_reduces)
    # A sharded gradient buffer can't hold another micro-batch's whole gradient: ZeRO-2 scatters after each.
    reduce = np.where(whole, data.reduced_s(all_reduce_s, stage_params), data.reduced_s(all_gather_s, stage_params))
    updated = (zero == 1) | (zero == 2)
    gather, link = (
        np.where(updated, x.sharded_s(all_gather_s, stage_params, data.param_bytes), 0.0)
        for x in (data, data.on_links())
    )
    return np.where(zero == 3, 0.0, reduce), gather, link


def gather_pieces(model: Transformer, layouts: Layouts, layers: Any) -> Array:
    """Pieces of a rank's parameter tensors, one a replica, where ZeRO 1 or 2 gathers them; shape (n,).

    A layer has two norms, two products of attention and two of the MLP or of each expert (a hybrid's the half of it);
    embedding, head and last norm are three more at most.
    """
    local = np.where(np.asarray(model.num_experts) > 0, np.maximum(model.num_experts, 1) / layouts.ep, 1.0)
    tensors = layers * mix.shares(model).blocks / 2.0 * (4.0 + 2.0 * local) + 3.0
    ranks = layouts.shards
    return np.asarray(np.where((ranks > 1) & ((layouts.zero == 1) | (layouts.zero == 2)), tensors * ranks, 0.0))


@dataclass(frozen=True, kw_only=True)
class _Data:
    """The data-parallel groups' collectives: dense parameters over all replicas, experts over those of one expert.

    by: groups; pace: of the bandwidth, what the sharded collectives get.
    """

    by: dict[str, Group]
    layouts: Layouts
    expert_share: Array
    param_bytes: Array
    grad_bytes: Array
    pace: Array

    @staticmethod
    def of(cluster: Cluster, framework: Framework, layouts: Layouts, expert_share: Array) -> _Data:
        """Those of layouts' ranks."""
        # Seen in measured runs of one trainer's ZeRO-1 on 4 to 32 nodes and of DeepSpeed's ZeRO-3 on 48 to 280, not in
        # DeepSpeed's ZeRO-1 or plain all-reduces: the more nodes a job has, the less bandwidth the sharded collectives
        # get, however few a group spans. Cause not established. Never below one NIC of a node at a send's rate.
        nodes = np.ceil(layouts.gpus / cluster.gpus_per_node)
        network = cluster.network
        floor = min(network.send_fraction / (network.fraction * cluster.nics_per_node), 1.0)
        slowed = np.clip(framework.sharded_nodes / nodes, floor, 1.0)
        return _Data(
            by=groups(cluster, layouts),
            layouts=layouts,
            expert_share=expert_share,
            param_bytes=parameter_bytes(layouts),
            grad_bytes=reduced_bytes(framework, layouts),
            pace=np.where(layouts.zero >= framework.sharded_stage, slowed, 1.0),
        )

    def on_links(self) -> _Data:
        """The same, as far as a node's links bound it: no network, no start-up."""
        by = {}
        for name, group in self.by.items():
            quick, none = np.full_like(group.ranks, np.inf), np.zeros_like(group.ranks)
            by[name] = replace(group, network_bandwidth_bytes_per_s=quick, latency_s=none)
        return replace(self, by=by, pace=np.ones(1))

    def sharded_s(self, collective: Any, params: Any, bytes_per_param: Any) -> Array:
        """Seconds of a collective over a rank's parameters, by the ranks over which a state is sharded."""
        dense, experts = params * (1.0 - self.expert_share), params * self.expert_share
        seconds = self._both(collective, dense * bytes_per_param, experts * bytes_per_param, "data", "expert_data")
        return np.asarray(seconds / self.pace)

    def reduced_s(self, collective: Any, params: Any) -> Array:
        """Seconds in which a collective sums the gradients: by those ranks, then each part over its copies.

        All parts each time, as FSDP does (fully_shard's set_requires_all_reduce, on unless it is told).
        """
        seconds = self.sharded_s(collective, params, self.grad_bytes)
        if not np.any(self.layouts.dp_replicate > 1):
            return seconds
        dense = params * (1.0 - self.expert_share) / self.layouts.shards
        experts = params * self.expert_share / expert_shards(self.layouts)
        sizes = (dense * self.grad_bytes, experts * self.grad_bytes)
        return seconds + self._both(all_reduce_s, *sizes, "replica", "expert_replica")

    def _both(self, collective: Any, dense_bytes: Any, expert_bytes: Any, dense: str, experts: str) -> Array:
        """Seconds of a collective over dense parameters, and over experts in groups of their own."""
        seconds = collective(self.by[dense], dense_bytes)
        if np.any(self.expert_share > 0):
            sparse = collective(self.by[experts], expert_bytes)
            seconds = seconds + np.where(self.expert_share > 0, sparse, 0.0)
        return np.asarray(seconds)
