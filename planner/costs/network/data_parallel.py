"""Traffic of data parallelism: gradients summed, parameters gathered, by ZeRO stage and copies. Array-first, (n,)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools, record
from planner.costs.adapters import trained
from planner.costs.case import Case
from planner.costs.memory.bytes_per_parameter import (
    layer_parameter_bytes,
    parameter_bytes,
    rank_parameter_bytes,
    reduced_bytes,
)
from planner.costs.network.collectives import all_gather_s, all_reduce_s, reduce_scatter_s
from planner.costs.network.groups import OF_REPLICAS, Group, groups, with_startup
from planner.costs.parameters import RankParameters
from planner.hardware import Cluster
from planner.layouts import Layouts, OptimizerKind
from planner.models import mix


@record
class DataCollectives:
    """The data-parallel groups' collectives: dense parameters over all replicas, experts over those of one expert.

    by: groups; param_bytes: of a layer's parameter; pace: of the bandwidth, what the sharded collectives get.
    """

    by: dict[str, Group]
    layouts: Layouts
    expert_share: Array
    param_bytes: Array
    grad_bytes: Array
    pace: Array

    @staticmethod
    def of(case: Case, expert_share: Array) -> DataCollectives:
        """The collectives of a case's ranks."""
        # Seen in measured runs of one trainer's ZeRO-1 on 4 to 32 nodes and of DeepSpeed's ZeRO-3 on 48 to 280, not in
        # DeepSpeed's ZeRO-1 or plain all-reduces: the more nodes a job has, the less bandwidth the sharded collectives
        # get, however few a group spans. Cause not established. Never below one NIC of a node at a send's rate.
        cluster, layouts = case.cluster, case.layouts
        nodes = np.ceil(layouts.gpus / cluster.gpus_per_node)
        network = cluster.network
        floor = min(network.send_fraction / (network.fraction * cluster.nics_per_node), 1.0)
        slowed = np.clip(case.framework.sharded_nodes / nodes, floor, 1.0)
        return DataCollectives(
            by=_groups(case, cluster),
            layouts=layouts,
            expert_share=expert_share,
            param_bytes=layer_parameter_bytes(case),
            grad_bytes=reduced_bytes(case),
            pace=np.where(layouts.zero >= case.framework.sharded_stage, slowed, 1.0),
        )

    def taken(self, share: float) -> DataCollectives:
        """What the same take from compute beside them: by the byte a share of a node's links' time, and a ring's steps.

        Steps over many ranks show whole in measured runs: MosaicML's on 128 to 512 GPUs, torchtitan's on 8 and 128,
        Modalities' on 16 to 2,048 and MaxText's on 64 to 512 grow by as much or more. Why is not established.
        """
        by = {}
        for name, group in self.by.items():
            quick, none = np.full_like(group.ranks, np.inf), np.zeros_like(group.ranks)
            links = group.node_bandwidth_bytes_per_s / share if share > 0.0 else quick
            by[name] = replace(
                group, node_bandwidth_bytes_per_s=links, network_bandwidth_bytes_per_s=quick, latency_s=none
            )
        return replace(self, by=by, pace=np.ones(1))

    def sharded_s(self, collective: Any, params: Any, bytes_per_param: Any) -> Array:
        """Seconds of a collective over a rank's parameters, by the ranks over which a state is sharded."""
        dense, experts = params * (1.0 - self.expert_share), params * self.expert_share
        return self.moved_s(collective, dense * bytes_per_param, experts * bytes_per_param)

    def moved_s(self, collective: Any, dense_bytes: Any, expert_bytes: Any) -> Array:
        """The same of so many bytes of dense parameters and of experts."""
        return np.asarray(self._both(collective, dense_bytes, expert_bytes, "data", "expert_data") / self.pace)

    def reduced_s(self, collective: Any, params: Any) -> Array:
        """Seconds in which a collective sums the gradients: by those ranks, then each part over its copies.

        All parts each time, as FSDP does (fully_shard's set_requires_all_reduce, on unless it is told).
        """
        seconds = self.sharded_s(collective, params, self.grad_bytes)
        if not np.any(self.layouts.dp_replicate > 1):
            return seconds
        dense = params * (1.0 - self.expert_share) / self.layouts.shards
        experts = params * self.expert_share / self.layouts.expert_shards
        sizes = (dense * self.grad_bytes, experts * self.grad_bytes)
        return seconds + self._both(all_reduce_s, *sizes, "replica", "expert_replica")

    def _both(self, collective: Any, dense_bytes: Any, expert_bytes: Any, dense: str, experts: str) -> Array:
        """Seconds of a collective over dense parameters, and over experts in groups of their own."""
        seconds = collective(self.by[dense], dense_bytes)
        if (self.expert_share > 0).any():
            sparse = collective(self.by[experts], expert_bytes)
            seconds = seconds + np.where(self.expert_share > 0, sparse, 0.0)
        return np.asarray(seconds)


def _groups(case: Case, cluster: Cluster) -> dict[str, Group]:
    """The groups of replicas, placed once for the layouts whose ranks differ."""
    each, later = case.ranks.distinct, with_startup(cluster, case.framework.network_startup_s)
    return {name: each.spread(group) for name, group in groups(later, each.layouts, OF_REPLICAS).items()}


def flat_copies_s(case: Case) -> tuple[Array, Array]:
    """Seconds in which a gathered parameter is copied out of the unit's buffer, and its gradient into one, (n,).

    FSDP2 does both on the stream that computes (PyTorch, _fsdp_collectives.py: split_with_sizes_copy, and chunk_cat,
    which casts to the precision that is reduced). FSDP1's parameters are views, but their gradients are put together
    (the backward pass of split), cast where they are reduced in more bits and divided (_runtime_utils.py,
    default_hooks.py, reduce_scatter_hook): seen on pretended ranks of PyTorch 2.13.
    """
    framework, used = case.framework, case.by_layer & (case.layouts.shards > 1)
    own, reduced = parameter_bytes(case.layouts), reduced_bytes(case)
    copied = 2.0 * layer_parameter_bytes(case), own + reduced
    passes = 0.0, 2.0 * own + np.where(reduced > own, own + reduced, 0.0) + 2.0 * reduced
    out, into = (
        np.where(used, (framework.flat_copies * a + framework.flat_gradients * b) / case.device.memory_rate, 0.0)
        for a, b in zip(copied, passes, strict=True)
    )
    return out, into


def gathered_twice(layouts: Layouts) -> Bools:
    """Whether the backward pass gathers a layer anew; what ZeRO-2 has gathered stays until then."""
    return np.asarray(layouts.zero == 3)


def data_traffic(case: Case, own: RankParameters, copies: Any = 1) -> tuple[Array, Array, Array]:
    """Seconds of the gradient reduction, once a step or for ZeRO-2 once a micro-batch, and of the parameter gather.

    And what the gather takes from compute beside it. own: of the rank with most, before sharding, of which only the
    trained ones move; copies: that it holds of them. All are 0 where layers have them (`Case.by_layer`).
    """
    own = trained(case, own)
    data = DataCollectives.of(case, own.expert_share)
    stage_params = copies * own.total
    zero = case.layouts.zero
    # Muon's replicas sum whole gradients: each then updates whole matrices (Megatron-Core, layer_wise_optimizer.py).
    muon = case.layouts.optimizer == OptimizerKind.MUON
    whole = (zero <= case.framework.whole_reduces) | ((zero == 1) & muon)
    # A sharded gradient buffer can't hold another micro-batch's whole gradient: ZeRO-2 scatters after each.
    reduce = np.where(whole, data.reduced_s(all_reduce_s, stage_params), data.reduced_s(reduce_scatter_s, stage_params))
    if case.framework.reduce_bucket_bytes > 0:
        reduce = reduce + np.where(zero == 0, bucket_starts_s(case, data.by["data"], stage_params), 0.0)
    late_sum, late_scatter, late_gather = late_buckets_s(case, stage_params)
    reduce = reduce + np.where(whole, late_sum, late_scatter)
    in_layers = case.by_layer
    updated = ((zero == 1) | (zero == 2)) & ~in_layers
    kept = rank_parameter_bytes(own, case)
    gather, taken = (
        np.where(updated, x.moved_s(all_gather_s, copies * kept.dense, copies * kept.experts), 0.0)
        for x in (data, data.taken(1.0 - case.framework.overlap_param_gather))
    )
    gather = gather + np.where(updated, late_gather, 0.0)
    return np.where(in_layers, 0.0, reduce), gather, taken


def bucket_starts_s(case: Case, group: Group, params: Any) -> Array:
    """Seconds in which the buckets of so many parameters' gradients, but the first, start their all-reduces, (n,)."""
    buckets = np.ceil(params * parameter_bytes(case.layouts) / case.framework.reduce_bucket_bytes)
    return np.asarray((buckets - 1.0) * all_reduce_s(group, 0.0))


def late_buckets_s(case: Case, params: Any) -> list[Array]:
    """By how much later, for a longer latency, buckets of so many parameters but the first start, (n,): sums, scatters,
    gathers.

    What they take to start at the link's own latency is in the fitted overlaps, which count one collective.
    """
    f, layouts, longer = case.framework, case.layouts, case.cluster.network.stretched
    if not f.large_bucket_parameters or longer is None:
        return [np.zeros(1)] * 3
    sooner = replace(case.cluster, network=case.cluster.network.later(1.0 / longer))
    own, late = (_groups(case, cluster)["data"] for cluster in (sooner, case.cluster))
    each = np.maximum(f.large_bucket_parameters, f.large_bucket_per_replica * layouts.dp * layouts.cp)
    more = np.ceil(params / each) - 1.0
    return [more * (each_s(late, 0.0) - each_s(own, 0.0)) for each_s in (all_reduce_s, reduce_scatter_s, all_gather_s)]


def parameter_tensors(case: Case, layers: Any) -> Array:
    """A rank's parameter tensors, shape (n,).

    A layer has two norms, two products of attention and two of the MLP or of each expert (a hybrid's the half of it);
    embedding, head and last norm are three more at most.
    """
    experts = np.asarray(case.model.num_experts)
    local = np.where(experts > 0, np.maximum(experts, 1) / case.layouts.ep, 1.0)
    return np.asarray(layers * mix.shares(case.model).blocks / 2.0 * (4.0 + 2.0 * local) + 3.0)


def gather_pieces(case: Case, layers: Any) -> Array:
    """Pieces of a rank's parameter tensors, one a replica, where ZeRO 1 or 2 gathers them; shape (n,)."""
    layouts = case.layouts
    used = (layouts.shards > 1) & ((layouts.zero == 1) | (layouts.zero == 2))
    return np.asarray(np.where(used, parameter_tensors(case, layers) * layouts.shards, 0.0))


def broadcast_starts_s(case: Case, layers: Any) -> Array:
    """Seconds in which all broadcasts but the first start, where ranks own whole tensors and send them on, (n,).

    Each owner sends all of its own in one, which starts as a gather's pass does, for it goes around the same ring.
    """
    shards = case.layouts.shards
    later = np.minimum(parameter_tensors(case, layers), shards) - 1.0
    starts = later * all_gather_s(_groups(case, case.cluster)["data"], 0.0)
    return np.asarray(np.where((case.layouts.zero == 1) & (shards > 1), starts, 0.0))
