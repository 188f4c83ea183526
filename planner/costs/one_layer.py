"""A rank's costs of one layer, the embedding and the head for one micro-batch: computed for the distinct layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from planner.base.arrays import record
from planner.base.records import combined
from planner.costs.case import Case
from planner.costs.deduplicate import Distinct, distinct_for_one_layer
from planner.costs.layer.embedding_head import EmbeddingHeadCost, embedding_head_cost
from planner.costs.layer.layer_cost import LayerCost, layer_cost
from planner.costs.memory.rank import Activations, activations
from planner.costs.network.traffic import LayerTraffic, layer_traffic
from planner.layouts import Layouts, Precision
from planner.models import mix
from planner.setup import Setup

Costs = TypeVar("Costs", LayerCost, LayerTraffic, Activations)


@record
class OneLayer:
    """Records over the distinct layouts of a table or grid; `distinct` spreads them.

    module: cost and traffic of a multi-token prediction module's layer, where that is another than the average one.
    dense: the same of a layer with a dense MLP, where such layers lead.
    """

    distinct: Distinct
    case: Case
    cost: LayerCost
    ends: EmbeddingHeadCost
    traffic: LayerTraffic
    activations: Activations
    module: tuple[LayerCost, LayerTraffic] | None
    dense: tuple[LayerCost, LayerTraffic] | None

    def case_of(self, layouts: Layouts) -> Case:
        """The case of all the layouts."""
        return replace(self.case, device=self.distinct.spread(self.case.device), layouts=layouts)

    def take(self, rows: Any) -> OneLayer:
        """The costs of the rows at an index array or mask."""
        return replace(self, distinct=self.distinct.take(rows))


def one_layer(setup: Setup, layouts: Layouts) -> OneLayer:
    """The costs of one layer, embedding and head for one micro-batch; no layout's legality matters."""
    model = setup.model
    distinct = distinct_for_one_layer(model, layouts)
    case = Case.of(setup, distinct.layouts)

    def of(own: Case) -> tuple[LayerCost, LayerTraffic]:
        return layer_cost(own), layer_traffic(own)

    return OneLayer(
        distinct=distinct,
        case=case,
        cost=_average(layer_cost, case),
        ends=embedding_head_cost(case),
        traffic=_average(layer_traffic, case),
        activations=_average(activations, case),
        module=of(case.with_model(mix.module_layer(model))) if np.any(mix.has_own_module(model)) else None,
        dense=of(case.with_model(mix.all_dense(model))) if np.any(mix.leading_dense(model)) else None,
    )


def _average(of: Callable[[Case], Costs], case: Case) -> Costs:
    """The average layer's costs, where a framework keeps the products of some layers in 16 bits."""
    wide = case.framework.nvfp4_wide_layers * (case.layouts.precision == Precision.NVFP4)
    if not np.any(wide):
        return of(case)
    both = [of(case), of(replace(case, device=case.device.wide))]
    return combined(both, lambda narrow, full: (1.0 - wide) * narrow + wide * full)
