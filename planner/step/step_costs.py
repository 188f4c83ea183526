"""What a step's parts cost: a layer's passes as they show, embedding and head, stages, collectives, the update.

The closed form (`planner.step.estimate`) and the exact timeline (`planner.step.timeline`) are made of the same parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from planner.base import records
from planner.base.arrays import Array
from planner.costs.adapters import trained
from planner.costs.case import Case
from planner.costs.gradient_accumulation import with_accumulation
from planner.costs.layer.embedding_head import EmbeddingHeadCost, with_gathered_logits, with_modules
from planner.costs.layer.layer_cost import LayerCost, layer_cost
from planner.costs.memory.bytes_per_parameter import reduced_bytes
from planner.costs.memory.rank import Activations
from planner.costs.network.collectives import rank_send_s
from planner.costs.network.data_parallel import data_traffic, gather_pieces
from planner.costs.network.traffic import Traffic, layer_traffic, traffic
from planner.costs.one_layer import OneLayer, one_layer
from planner.costs.optimizer import host_link_rate, optimizer_s
from planner.costs.parameters import RankParameters
from planner.layouts import Layouts, Recompute
from planner.models import counts, mix
from planner.setup import Setup
from planner.step.given_stages import is_given, with_given
from planner.step.layer_time import LayerTime, layer_time, other_layer
from planner.step.pipelines import (
    between_share,
    by_chunk,
    embedding_apart_from_head,
    end_shares,
    layer_at_a_time,
    shares_ends,
    trait,
    weight_copies,
)
from planner.step.ranks import key_ranks
from planner.step.shared_ends import SharedHead, shared_ends
from planner.step.splits import Stages, split_layers


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """The parts of every layout's step; arrays of shape (n,), or of a grid as far as they depend on its choices.

    reduce_s, gather_s: data-parallel collectives of the rank with most parameters, before any overlap; gather_link_s:
    what the gather's bytes take of a node's links.
    send_s: exposed seconds of one transfer of a micro-batch to the neighbouring stage. update_s: the optimizer's.
    busiest_params: parameters of the rank with most, before sharding. alone: a layer that recomputation leaves alone,
    where some are; `layer` is then one that it repeats. move_s: of a layer's activations to the host, or back; None
    where none go there. head: a rank's part of it, where layouts share it; None where none does. dense_s: forward,
    backward, and of that the weight gradient, of a layer with a dense MLP, less those of one with experts; 0 where no
    layer's place is known.
    """

    case: Case
    cost: LayerCost
    layer: LayerTime
    ends: EmbeddingHeadCost
    activations: Activations
    stages: Stages
    traffic: Traffic
    reduce_s: Array
    gather_s: Array
    gather_link_s: Array
    send_s: Array
    update_s: Array
    busiest_params: Array
    alone: LayerTime | None = None
    move_s: Array | None = None
    head: SharedHead | None = None
    dense_s: tuple[Any, Any, Any] = (0.0, 0.0, 0.0)

    def take(self, index: Any) -> StepCosts:
        """Those of a table's layouts at an index array, mask or slice; no shared head where none of them has one."""
        taken = records.take(self, index, len(self.busiest_params))
        if taken.head is None or np.any(shares_ends(taken.case.layouts)):
            return taken
        return replace(taken, head=None)


def step_costs(setup: Setup, layouts: Layouts, one: OneLayer | None = None, alike: bool = False) -> StepCosts:
    """The parts of every layout's step.

    layouts must be legal (`planner.step.legality`). one: their `one_layer`, where it is known.
    """
    one = one or one_layer(setup, layouts)
    case, spread = one.case_of(layouts), one.distinct.spread
    model, cost, ends = case.model, spread(one.cost), spread(one.ends)
    params = case.ranks.rank(1.0, False, False)
    apart = embedding_apart_from_head(layouts)
    moves = trained(case, params)
    cost, ends = with_accumulation(case, moves.total, cost, ends, apart)
    t = traffic(case, spread(one.traffic), params.total, params.expert_share, moves)
    t = replace(t, tied_s=np.where(apart, t.tied_s, 0.0))
    # Where all micro-batches pass a layer before the next, the ends are gathered and reduced once for all of them; in a
    # pipeline with a chunk (`chunk_gathers`).
    if np.any(t.ends_sharding_s):
        once = np.where(layer_at_a_time(layouts) & ~by_chunk(layouts), layouts.micro_batches, 1)
        t = replace(t, ends_sharding_s=t.ends_sharding_s / once)
    layer = layer_time(case, cost, t)
    ends = with_gathered_logits(case, ends, t.logits_s)
    module = layer if one.module is None else other_layer(case, one, mix.module_layer(model), one.module)[0]
    ends = with_modules(model, ends, module.forward_s, module.backward_s)
    held, head = spread(one.activations), None
    if np.any(barriers := trait(layouts, "barriers")):
        ends, held, t, head = shared_ends(case, cost, ends, held, t, barriers)
    stages = _stages(case, layer, ends, params.total, alike)
    ranks = key_ranks(layouts, stages)
    own = records.largest(
        [case.ranks.rank(r.layers, r.first, r.last, r.modules, r.dense) for r in ranks],
        lambda rank: rank.total,
    )
    reduce_s, gather_s, gather_link_s = _data_collectives(case, own, [rank.layers for rank in ranks])
    return StepCosts(
        case=case,
        cost=cost,
        layer=layer,
        ends=ends,
        activations=held,
        stages=stages,
        traffic=t,
        reduce_s=reduce_s,
        gather_s=gather_s,
        gather_link_s=gather_link_s,
        send_s=t.send_s * (1.0 - case.framework.overlap_pipeline),
        update_s=weight_copies(layouts) * optimizer_s(case, own),
        busiest_params=own.total,
        alone=_alone(case, one, cost, params),
        move_s=_move_s(case, held),
        head=head,
        dense_s=_dense_s(case, one, layer, cost),
    )


def _move_s(case: Case, held: Activations) -> Array | None:
    """Seconds in which a layer's activations of one micro-batch go to the host, or come back."""
    if not np.any(case.layouts.offload_layers):
        return None
    return np.asarray(held.layer / host_link_rate(case.cluster) + case.cluster.host_link.latency_s)


def _alone(case: Case, one: OneLayer, cost: LayerCost, params: RankParameters) -> LayerTime | None:
    """As `layer_time`, of a layer that is not recomputed where recomputation repeats some alone; None where no layout's
    does. params: of a layer."""
    some = case.layouts.recompute_layers > 0
    if not np.any(some):
        return None

    def kept(of: Case) -> Case:
        named = np.where(of.layouts.recompute_layers > 0, Recompute.NONE, of.layouts.recompute)
        return of.with_recompute(named)

    own = kept(case)
    t = one.distinct.spread(layer_traffic(kept(one.case)))
    t = traffic(own, t, params.total, params.expert_share, trained(own, params))
    return layer_time(own, replace(cost, recompute_s=np.where(some, 0.0, cost.recompute_s)), t)


def _dense_s(case: Case, one: OneLayer, layer: LayerTime, cost: LayerCost) -> tuple[Any, Any, Any]:
    """What a layer with a dense MLP takes less than one with experts, where layers have a place and kinds differ."""
    leading = mix.leading_dense(case.model)
    if not np.any(leading) or not np.any(is_given(case.layouts)):
        return 0.0, 0.0, 0.0
    model = mix.all_dense(case.model)
    own = one.case.with_model(model)
    dense, dense_cost = other_layer(case, one, model, (layer_cost(own), layer_traffic(own)))
    sparse = 1.0 - leading / case.model.num_layers  # the average layer's share of them
    pairs = (
        (dense.forward_s, layer.forward_s),
        (dense.backward_s, layer.backward_s),
        (dense_cost.weight_grad_s, cost.weight_grad_s),
    )
    forward, backward, weights = ((x - average) / sparse for x, average in pairs)
    return forward, backward, weights


def _stages(case: Case, layer: LayerTime, ends: EmbeddingHeadCost, layer_params: Array, alike: bool) -> Stages:
    """The split of the layers over the stages; the embedding and the head count as so many layers each."""
    model, layouts, mid = case.model, case.layouts, between_share(case.layouts)
    shares = end_shares(layouts) - mid
    embedding = (ends.embedding_forward_s + ends.embedding_backward_s) / layer.total_s
    head = ends.head_s / layer.total_s
    table = case.padded_vocab / layouts.tp * model.hidden / layer_params
    on_first, on_last = (share[0] * embedding + share[1] * head for share in (shares[:2], shares[2:]))
    sizes = (table, table + model.num_mtp_modules)
    stages = split_layers(
        layouts, model.num_layers, on_first, on_last, sizes, model.output_heads, counts.head_in_layers(model), alike
    )
    return with_given(stages, layouts, model)


def _data_collectives(case: Case, own: RankParameters, layers: list[Any]) -> tuple[Array, Array, Array]:
    """Seconds of the gradient reduction and the parameter gather, and what the gather takes of a node's links.

    own: parameters of the rank with most. layers: of each rank that may be the fullest.
    """
    framework, layouts, copies = case.framework, case.layouts, weight_copies(case.layouts)
    moves = trained(case, own)
    reduce_s, gather_s, gather_link_s = data_traffic(case, own, copies)
    if framework.reduce_pass_bytes > 0:
        several = layouts.dp * layouts.cp > 1
        reduce_s = reduce_s + np.where(
            several, framework.reduce_pass_bytes * moves.total / case.device.memory_rate, 0.0
        )
    if framework.gather_piece_s > 0:
        most = reduce(np.maximum, [np.asarray(n) for n in layers])
        gather_s = gather_s + framework.gather_piece_s * gather_pieces(case, most)
    # Two copies of a stage on two ranks of a pipeline sum their gradients: each sends and receives half twice.
    if np.any(copies > 1):
        between = 2.0 * rank_send_s(case.cluster, layouts, copies * moves.total * reduced_bytes(case) / 2.0)
        reduce_s = reduce_s + np.where(copies > 1, between, 0.0)
    return reduce_s, gather_s, gather_link_s
