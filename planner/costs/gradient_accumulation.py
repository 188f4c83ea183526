"""Seconds of adding one micro-batch's gradients to those of the micro-batches before it. Array-first, shape (n,)."""

from dataclasses import replace
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.costs.adapters import frozen
from planner.costs.case import Case
from planner.costs.layer.embedding_head import EmbeddingHeadCost
from planner.costs.layer.layer_cost import LayerCost
from planner.costs.memory.bytes_per_parameter import accumulated_bytes


def with_accumulation(
    case: Case, layer_params: Array, cost: LayerCost, ends: EmbeddingHeadCost, apart: Any
) -> tuple[LayerCost, EmbeddingHeadCost]:
    """The costs of a layer and of the ends, with the addition in their backward passes.

    layer_params: trained ones of one layer on one rank. apart: where embedding and head lie on different ranks.
    Micro-batches of all sizes take the same time for it.
    """
    if case.framework.accumulate_bytes == case.framework.bf16_accumulate_bytes == 0:
        return cost, ends
    seconds = accumulated_bytes(case) / case.device.memory_rate
    table_s = (1.0 - frozen(case)) * case.padded_vocab / case.layouts.tp * case.model.hidden * seconds
    one_table = np.asarray(case.model.tied) & ~np.asarray(apart)
    cost = replace(cost, backward_pointwise_s=cost.backward_pointwise_s + layer_params * seconds)
    return cost, replace(
        ends,
        embedding_backward_s=ends.embedding_backward_s + np.where(one_table, 0.0, table_s),
        head_backward_s=ends.head_backward_s + table_s,
    )
