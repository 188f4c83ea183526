"""A step's parts and their costs: a layer's passes as they show, embedding and head, stages, collectives, the update.

The closed form (`planner.step.estimate`) and the exact timeline (`planner.step.timeline`) are made of the same parts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any, Self

import numpy as np

from planner.base import records
from planner.base.arrays import Array, record
from planner.costs.adapters import trained
from planner.costs.case import Case
from planner.costs.gradient_accumulation import with_accumulation
from planner.costs.layer.embedding_head import EmbeddingHeadCost, with_gathered_logits, with_modules
from planner.costs.layer.layer_cost import LayerCost
from planner.costs.memory.bytes_per_parameter import reduced_bytes
from planner.costs.memory.chosen_layers import layers_not_recomputed
from planner.costs.memory.rank import Activations
from planner.costs.network.collectives import rank_send_s
from planner.costs.network.data_parallel import broadcast_starts_s, data_traffic, gather_pieces
from planner.costs.network.traffic import LayerTraffic, Traffic, exposed_send_s, layer_traffic, traffic
from planner.costs.one_layer import OneLayer, one_layer
from planner.costs.optimizer import optimizer_s
from planner.costs.parameters import RankParameters
from planner.layouts import Layouts, Recompute
from planner.models import counts, mix
from planner.setup import Setup
from planner.step.given_stages import filled_one_by_one, with_given
from planner.step.layer_time import LayerTime, layer_time, other_layer
from planner.step.pipelines import (
    between_share,
    by_chunk,
    embedding_apart_from_head,
    end_shares,
    layer_at_a_time,
    shares_ends,
    weight_copies,
)
from planner.step.ranks import key_ranks
from planner.step.shared_ends import SharedHead, shared_ends
from planner.step.splits import Ends, Share, Stages, end_layers, split_layers


@record
class Unsplit:
    """Of a step's parts those that don't depend on how the layers lie on stages.

    Arrays of shape (n,), or of a grid as far as they depend on its choices.

    cost, layer: of one layer, without and with its exposed communication. Full recomputation repeats that layer.
    ends: embedding, head and multi-token prediction modules.
    layer_params: parameters of one layer on one rank.
    send_s: exposed seconds of one transfer of a micro-batch to the neighbouring stage.
    layer_not_recomputed: a layer that full recomputation leaves out. None if no layout has such layers.
    offload_layer_s: seconds in which a layer's activations go to the host, or come back. None if no layout offloads.
    shared_head: a rank's part of the head. None if no layout shares the head.
    dense_s: forward, backward and weight-gradient seconds of a dense-MLP layer minus those of an expert layer. 0 unless
    dense layers lead.
    """

    case: Case
    cost: LayerCost
    layer: LayerTime
    ends: EmbeddingHeadCost
    activations: Activations
    traffic: Traffic
    layer_params: Array
    send_s: Array
    layer_not_recomputed: LayerTime | None = None
    offload_layer_s: Array | None = None
    shared_head: SharedHead | None = None
    dense_s: tuple[Any, Any, Any] = (0.0, 0.0, 0.0)

    def take(self, index: Any) -> Self:
        """The costs of the layouts at an index array, mask or slice; of a grid, its rows there."""
        taken = records.take(self, index, self.case.layouts.shape[-1])
        shared = taken.shared_head is not None and np.any(shares_ends(taken.case.layouts))
        return taken if shared else replace(taken, shared_head=None)


@record
class StepCosts(Unsplit):
    """The parts of every layout's step.

    reduce_s, gather_s: data-parallel collectives of the rank with most parameters, before any overlap.
    gather_taken_s: seconds that the gather takes from compute beside it.
    update_s: seconds of the optimizer.
    busiest_params: parameters of the rank with most, before sharding.
    ranks: those that may be fullest (`key_ranks`), with their parameters.
    """

    stages: Stages
    ranks: tuple[tuple[Any, Share, RankParameters], ...]
    reduce_s: Array
    gather_s: Array
    gather_taken_s: Array
    update_s: Array
    busiest_params: Array

    def mean_layer(self) -> tuple[LayerTime, Array]:
        """The average layer where recomputation repeats only some, and the share of layers that it repeats."""
        layouts, stages, v = self.case.layouts, self.stages, self.case.layouts.virtual_stages
        if self.layer_not_recomputed is None:
            return self.layer, np.ones(1)
        middle = np.maximum(layouts.pp - 2, 0)
        early = np.minimum(stages.num_early, middle)
        numbers: tuple[Any, ...] = (1, early, middle - early, layouts.pp > 1)
        ranks = zip(stages.kinds, numbers, strict=True)
        left_out = sum(number * layers_not_recomputed(layouts, x.layers, v) for x, number in ranks)
        share = left_out / self.case.model.num_layers
        both = [self.layer, self.layer_not_recomputed]
        layer = records.combined(both, lambda repeated, once: repeated + share * (once - repeated))
        return layer, np.asarray(1.0 - share)


def step_costs(setup: Setup, layouts: Layouts) -> StepCosts:
    """The parts of every layout's step. layouts must be legal (`planner.step.legality`)."""
    some = unsplit(setup, layouts)
    return with_stages(some, layers_of_ends(some))


def unsplit(setup: Setup, layouts: Layouts, one: OneLayer | None = None) -> Unsplit:
    """The parts that don't depend on the stages. one: the layouts' `one_layer`, where it is known."""
    one = one or one_layer(setup, layouts)
    case, spread = one.case_of(layouts), one.distinct.spread
    params = case.ranks.rank(1.0, False, False)
    cost, bare_ends = with_accumulation(
        case, trained(case, params).total, spread(one.cost), spread(one.ends), embedding_apart_from_head(layouts)
    )
    bare_traffic = _traffic(case, spread(one.traffic), params)
    layer = layer_time(case, cost, bare_traffic)
    ends = _with_head_and_modules(case, one, bare_ends, layer, bare_traffic)
    ends, held, t, shared_head = shared_ends(case, cost, ends, spread(one.activations), bare_traffic)
    return Unsplit(
        case=case,
        cost=cost,
        layer=layer,
        ends=ends,
        activations=held,
        traffic=t,
        layer_params=params.total,
        send_s=exposed_send_s(case, t.send_s),
        layer_not_recomputed=_layer_not_recomputed(case, one, cost, params),
        offload_layer_s=_offload_layer_s(case, held),
        shared_head=shared_head,
        dense_s=_dense_s(case, one, layer, cost),
    )


def with_stages(some: Unsplit, ends: Ends) -> StepCosts:
    """All parts, given the layers of the ends."""
    case, layouts = some.case, some.case.layouts
    stages = with_given(split_layers(layouts, case.model.num_layers, ends, _chunks(layouts)), layouts, case.model)
    ranks = tuple((at, share, case.ranks.rank(**vars(share))) for at, share in key_ranks(layouts, stages))
    own = records.largest([held for _, _, held in ranks], lambda held: held.total)
    reduce_s, gather_s, gather_taken_s = _data_collectives(case, own, [share.layers for _, share, _ in ranks])
    return StepCosts(
        **vars(some), stages=stages, ranks=ranks, reduce_s=reduce_s, gather_s=gather_s, gather_taken_s=gather_taken_s,
        update_s=weight_copies(layouts) * optimizer_s(case, own), busiest_params=own.total,
    )  # fmt: skip


def _chunks(layouts: Layouts) -> Array:
    """Virtual stages per rank that a split by cost fills one by one; else 1."""
    return np.where(filled_one_by_one(layouts), layouts.virtual_stages, 1)


def _traffic(case: Case, of_layer: LayerTraffic, params: RankParameters) -> Traffic:
    """Communication of every layout. params: of one layer on one rank.

    Layer-at-a-time schedules gather and reduce the ends once for all micro-batches; a pipeline does so with a chunk
    (`planner.step.chunk_gathers`).
    """
    layouts = case.layouts
    t = traffic(case, of_layer, params)
    t = replace(t, tied_s=np.where(embedding_apart_from_head(layouts), t.tied_s, 0.0))
    if not np.any(t.ends_sharding_s):
        return t
    passes = np.where(layer_at_a_time(layouts) & ~by_chunk(layouts), layouts.micro_batches, 1)
    return replace(t, ends_sharding_s=t.ends_sharding_s / passes)


def _with_head_and_modules(
    case: Case, one: OneLayer, ends: EmbeddingHeadCost, layer: LayerTime, t: Traffic
) -> EmbeddingHeadCost:
    """Ends with the gather of the head's logits, and with the layers of multi-token prediction modules."""
    model = case.model
    module = layer if one.module is None else other_layer(case, one, mix.module_layer(model), one.module)[0]
    ends = with_gathered_logits(case, ends, t.logits_s)
    return with_modules(model, ends, module.forward_s, module.backward_s)


def _offload_layer_s(case: Case, held: Activations) -> Array | None:
    """Seconds in which a layer's activations of one micro-batch go to the host, or come back."""
    if not np.any(case.layouts.offload_layers) and not np.any(case.layouts.offload_modules):
        return None
    return np.asarray(held.moved / case.cluster.host_link.reached_bytes_per_s + case.cluster.host_link.latency_s)


def _layer_not_recomputed(case: Case, one: OneLayer, cost: LayerCost, params: RankParameters) -> LayerTime | None:
    """The time of a layer that is not recomputed where recomputation repeats only some. None if no layout has such
    layers. params: of a layer."""
    some = case.layouts.recompute_layers > 0
    if not np.any(some):
        return None

    def without_recompute(of_some: Case) -> Case:
        layouts = of_some.layouts
        return of_some.with_recompute(np.where(layouts.recompute_layers > 0, Recompute.NONE, layouts.recompute))

    own = without_recompute(case)
    t = one.distinct.spread(layer_traffic(without_recompute(one.case)))
    t = traffic(own, t, params)
    return layer_time(own, replace(cost, recompute_s=np.where(some, 0.0, cost.recompute_s)), t)


def _dense_s(case: Case, one: OneLayer, layer: LayerTime, cost: LayerCost) -> tuple[Any, Any, Any]:
    """`StepCosts.dense_s`: a dense-MLP layer's seconds minus an expert layer's."""
    leading = mix.leading_dense(case.model)
    if one.dense is None or not np.any(case.layouts.pp > 1):
        return 0.0, 0.0, 0.0
    dense, dense_cost = other_layer(case, one, mix.all_dense(case.model), one.dense)
    sparse = 1.0 - leading / case.model.num_layers  # the average layer's share of them
    pairs = (
        (dense.forward_s, layer.forward_s),
        (dense.backward_s, layer.backward_s),
        (dense_cost.weight_grad_s, cost.weight_grad_s),
    )
    forward, backward, weights = ((x - average) / sparse for x, average in pairs)
    return forward, backward, weights


def layers_of_ends(some: Unsplit) -> Ends:
    """Layers of the first and the last stage. The embedding and the head count as a number of layers each.

    Leading dense layers lie with the embedding: what one of them takes less than an expert layer is taken off that.
    """
    case, layer, ends, dense_s = some.case, some.layer, some.ends, some.dense_s
    model, layouts, mid = case.model, case.layouts, between_share(case.layouts)
    shares = end_shares(layouts) - mid
    more_s = mix.leading_dense(model) * (dense_s[0] + dense_s[1]) * (weight_copies(layouts) == 1)
    each_s = layer.total_s - more_s / model.num_layers
    embedding = (ends.embedding_forward_s + ends.embedding_backward_s + more_s) / each_s
    head = ends.head_s / each_s
    table = case.padded_vocab / layouts.tp * model.hidden / some.layer_params
    on_first, on_last = (share[0] * embedding + share[1] * head for share in (shares[:2], shares[2:]))
    sizes = (table, table + model.num_mtp_modules)
    return end_layers(
        layouts, model.num_layers, on_first, on_last, sizes, model.output_heads, counts.head_in_layers(model),
        _chunks(layouts),
    )  # fmt: skip


def _data_collectives(case: Case, own: RankParameters, layers: list[Any]) -> tuple[Array, Array, Array]:
    """Seconds of the gradient reduction, of the parameter gather, and what the gather takes from compute.

    own: parameters of the rank with most. layers: layers of each rank that may be the fullest.
    """
    framework, layouts, copies = case.framework, case.layouts, weight_copies(case.layouts)
    moves = trained(case, own)
    reduce_s, gather_s, gather_taken_s = data_traffic(case, own, copies)
    if framework.reduce_pass_bytes > 0:
        several = layouts.dp * layouts.cp > 1
        reduce_s = reduce_s + np.where(
            several, framework.reduce_pass_bytes * moves.total / case.device.memory_rate, 0.0
        )
    if framework.gather_piece_s > 0 or framework.owned_tensors:
        most = reduce(np.maximum, [np.asarray(n) for n in layers])
        gather_s = gather_s + framework.gather_piece_s * gather_pieces(case, most)
        gather_s = gather_s + framework.owned_tensors * broadcast_starts_s(case, most)
    # Two copies of a stage on two ranks of a pipeline sum their gradients: each sends and receives half twice.
    if np.any(copies > 1):
        between = 2.0 * rank_send_s(case.cluster, layouts, copies * moves.total * reduced_bytes(case) / 2.0)
        reduce_s = reduce_s + np.where(copies > 1, between, 0.0)
    return reduce_s, gather_s, gather_taken_s
