"""Parameters of one rank: of its layers, experts and ends, and what ZeRO leaves of them. Array-first, shape (n,)."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from planner.base.arrays import Array, record
from planner.costs.deduplicate import Distinct, distinct_ranks
from planner.costs.shapes import padded_vocab
from planner.layouts import Layouts
from planner.models import Transformer, counts, mix


@record
class RankParameters:
    """Parameters of one rank before ZeRO's sharding, arrays of shape (n,).

    layers: of its layers without experts, multi-token prediction's among them; experts: of those; ends: of embedding,
    last norm and head.
    """

    layers: Array
    experts: Array
    ends: Array

    @cached_property
    def dense(self) -> Array:
        """Parameters that all replicas share."""
        return self.layers + self.ends

    @cached_property
    def total(self) -> Array:
        """All parameters of the rank."""
        return self.dense + self.experts

    @cached_property
    def expert_share(self) -> Array:
        """The experts' fraction of all parameters; 0 if there are none, such as adapters of a rank without layers."""
        return np.asarray(self.experts / np.maximum(self.total, 1.0))


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


@record
class RankParts:
    """The parts that layouts' ranks are made of, each counted once for all their ranks.

    whole_embedding: whether every tensor rank has all of it.
    """

    model: Transformer
    layouts: Layouts
    whole_embedding: bool = False

    @cached_property
    def distinct(self) -> Distinct:
        """The layouts whose ranks have other parts."""
        return distinct_ranks(self.model, self.layouts)

    @cached_property
    def mine(self) -> Transformer:
        """The model that one tensor rank of the distinct layouts holds."""
        return tensor_rank(self.model, self.distinct.layouts)

    def _each(self, count: Callable[[Transformer], Any], model: Transformer | None = None) -> Any:
        """What so many parameters of a tensor rank's model are, of all the layouts."""
        return self.distinct.spread(count(self.mine if model is None else model))

    @cached_property
    def whole_expert(self) -> Any:
        """Parameters of a routed expert, cut as the layers are."""
        return self._each(counts.expert_params)

    @cached_property
    def expert(self) -> Any:
        """Parameters of one of a layer's routed experts that are a rank's."""
        return counts.expert_params(self.model) / (self.layouts.etp * self.layouts.ep)

    @cached_property
    def sparse(self) -> Any:
        """Routed experts of an average layer."""
        return np.asarray(self.model.num_experts) * mix.shares(self.model).sparse

    @cached_property
    def average(self) -> Any:
        """Parameters of an average layer without its routed experts."""
        return self._each(counts.layers_params) / self.model.num_layers - self.sparse * self.whole_expert

    @cached_property
    def ends(self) -> tuple[Any, Any, Any]:
        """Parameters of the embedding, of the norm before the head, and of a head with a table of its own."""
        head = self._each(lambda mine: counts.head_params(mine, False))
        embedding = counts.embedding_params(self.model) if self.whole_embedding else self._each(counts.embedding_params)
        return embedding, counts.norm_params(self.mine), head

    @cached_property
    def dense_more(self) -> Any:
        """Parameters of a layer's dense MLP beyond those of a layer with experts."""
        whole = [self._each(counts.layers_params, each(self.mine)) for each in (mix.all_dense, mix.all_sparse)]
        return (whole[0] - whole[1]) / self.model.num_layers

    @cached_property
    def module(self) -> Any:
        """Parameters of multi-token prediction; the projection's columns are cut over the tensor ranks."""
        cut = (1.0 - 1.0 / self.layouts.tp) * counts.mtp_projection_params(self.model)
        return self._each(counts.mtp_params) - cut

    def rank(self, layers: Any, first: Any, last: Any, modules: Any = None, dense: Any = 0.0) -> RankParameters:
        """Parameters of a rank with `layers` layers, the embedding where `first`, norm and head where `last`.

        modules: share of multi-token prediction's that it has; None: the head's. dense: how many more of its layers
        have a dense MLP than of as many average ones.

        A tied head is a second copy of the embedding where first and last stage are different ranks. Tensor ranks hold
        norms, router, products down to latents and biases that are added to their sum whole, and a key and value head
        each (Megatron-Core). Beside the modules lies a second copy of the embedding, where that is on another rank.
        """
        model, expert, (embedding, norm, head) = self.model, self.expert, self.ends
        tied = np.asarray(model.tied)
        own_head = np.where(tied & ~(np.asarray(first) < last), 0.0, head) if tied.any() else head
        ends = first * embedding + last * (norm + own_head)
        of_layers, of_experts = layers * self.average, layers * self.sparse * expert
        if np.any(dense):
            routed = np.asarray(model.num_experts)
            of_layers = of_layers + dense * (self.dense_more + routed * self.whole_expert)
            of_experts = of_experts - dense * routed * expert
        further = np.asarray(model.num_mtp_layers)
        if further.any():
            routed = mix.sparse_modules(model) * model.num_experts
            modules = last if modules is None else modules
            of_layers = of_layers + modules * (self.module - routed * self.whole_expert)
            of_experts = of_experts + modules * routed * expert
            # The embedding again, where it is not the head's table.
            again = (np.asarray(first) < modules) & (further > 0) & ~(tied & (np.asarray(last) > 0))
            ends = ends + np.where(again, modules * head, 0.0)
        return RankParameters(layers=np.asarray(of_layers), experts=np.asarray(of_experts), ends=np.asarray(ends))


def state_parameters(own: RankParameters, layouts: Layouts, from_stage: int) -> Array:
    """Parameters whose state a rank holds, where ZeRO shards it from a stage on: experts over their own replicas."""
    shards, of_experts = layouts.state_shards[from_stage]
    return np.asarray(own.dense / shards + own.experts / of_experts)
