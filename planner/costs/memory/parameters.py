"""Parameters of one rank: of its layers, experts and ends, and what ZeRO leaves of them. Array-first, shape (n,)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.costs.shapes import padded_vocab
from planner.layouts import Layouts
from planner.models import Transformer, counts, mix


@dataclass(frozen=True, kw_only=True)
class RankParameters:
    """Parameters of one rank before ZeRO's sharding, arrays of shape (n,).

    layers: of its layers without experts, multi-token prediction's among them; experts: of those; ends: of embedding,
    last norm and head.
    """

    layers: Array
    experts: Array
    ends: Array

    @property
    def dense(self) -> Array:
        """Those that all replicas share."""
        return self.layers + self.ends

    @property
    def total(self) -> Array:
        """All parameters of the rank."""
        return self.dense + self.experts

    @property
    def expert_share(self) -> Array:
        """Those of experts over all."""
        return self.experts / self.total


def tensor_rank(model: Transformer, layouts: Layouts) -> Transformer:
    """The model that one tensor rank holds: its share of heads and widths; all else, such as norms, it holds whole."""
    t = layouts.tp
    return replace(
        model,
        num_heads=model.num_heads / t,
        num_kv_heads=np.maximum(model.num_kv_heads, t) / t,
        ffn=np.asarray(model.ffn) / t,
        moe_ffn=np.asarray(model.moe_ffn) / t,
        ssm_heads=np.asarray(model.ssm_heads) / t,
        ssm_groups=np.asarray(model.ssm_groups) / t,
        vocab=padded_vocab(model, layouts) / t,
    )


def rank_parameters(
    model: Transformer, layouts: Layouts, layers: Any, first: Any, last: Any, modules: Any = None, dense: Any = 0.0
) -> RankParameters:
    """Parameters of a rank with `layers` layers, the embedding where `first`, norm and head where `last`.

    modules: share of multi-token prediction's that it has; None: the head's. dense: how many more of its layers have a
    dense MLP than of as many average ones.

    A tied head is a second copy of the embedding where first and last stage are different ranks. Tensor ranks hold
    norms, router, products down to latents and biases that are added to their sum whole, and a key and value head each
    (Megatron-Core). Beside the modules lies a second copy of the embedding, where that is on another rank.
    """
    mine, sparse = tensor_rank(model, layouts), np.asarray(model.num_experts) * mix.shares(model).sparse
    average = counts.layers_params(mine) / model.num_layers - sparse * counts.expert_params(mine)
    apart = np.asarray(first) < last
    head = replace(mine, tied=np.asarray(model.tied) & ~apart)
    ends = first * counts.embedding_params(mine)
    ends = ends + last * (counts.final_norm_params(mine) + counts.head_params(head))
    expert = counts.expert_params(model) / (layouts.etp * layouts.ep)
    of_layers, of_experts = layers * average, layers * sparse * expert
    if np.any(dense):
        mlp = counts.layers_params(mix.all_dense(mine)) - counts.layers_params(mix.all_sparse(mine))
        routed = np.asarray(model.num_experts)
        of_layers = of_layers + dense * (mlp / model.num_layers + routed * counts.expert_params(mine))
        of_experts = of_experts - dense * routed * expert
    further = np.asarray(model.num_mtp_layers)
    if np.any(further):
        routed = mix.sparse_modules(model) * model.num_experts
        # The projection's columns are cut over the tensor ranks.
        module = counts.mtp_params(mine) - (1.0 - 1.0 / layouts.tp) * counts.mtp_projection_params(model)
        modules = last if modules is None else modules
        of_layers = of_layers + modules * (module - routed * counts.expert_params(mine))
        of_experts = of_experts + modules * routed * expert
        # The embedding again, where it is not the head's table.
        again = (np.asarray(first) < modules) & (further > 0) & ~(np.asarray(model.tied) & (np.asarray(last) > 0))
        ends = ends + np.where(again, modules * counts.head_params(replace(mine, tied=False)), 0.0)
    return RankParameters(
        layers=np.asarray(of_layers, dtype=np.float64),
        experts=np.asarray(of_experts, dtype=np.float64),
        ends=np.asarray(ends, dtype=np.float64),
    )


def expert_replicas(layouts: Layouts) -> Any:
    """Replicas of an expert: of the ranks that share the layers, those that do not hold other experts or parts."""
    return np.maximum(layouts.tp * layouts.dp * layouts.cp // np.maximum(layouts.etp * layouts.ep, 1), 1)


def expert_shards(layouts: Layouts) -> Any:
    """Ranks over which ZeRO shards an expert's state."""
    return np.maximum(expert_replicas(layouts) // layouts.dp_replicate, 1)


def state_parameters(own: RankParameters, layouts: Layouts, from_stage: int) -> Array:
    """Parameters whose state a rank holds, where ZeRO shards it from a stage on: experts over their own replicas."""
    whole = layouts.zero < from_stage
    shards, of_experts = (np.where(whole, 1, n) for n in (layouts.shards, expert_shards(layouts)))
    return np.asarray(own.dense / shards + own.experts / of_experts)
