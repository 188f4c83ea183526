"""What one layer, the embedding and the head cost a rank for one micro-batch: computed for the distinct layouts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.costs.case import Case
from planner.costs.deduplicate import Distinct, by_layer
from planner.costs.layer.embedding_head import EmbeddingHeadCost, embedding_head_cost
from planner.costs.layer.layer_cost import LayerCost, layer_cost
from planner.costs.memory.rank import Activations, activations
from planner.costs.network.traffic import LayerTraffic, layer_traffic
from planner.layouts import Layouts
from planner.models import mix
from planner.setup import Setup


@dataclass(frozen=True, kw_only=True)
class OneLayer:
    """Records over the distinct layouts of a table or grid; `distinct` spreads them.

    module: cost and traffic of a multi-token prediction module's layer, where that is another than the average one.
    """

    distinct: Distinct
    case: Case
    cost: LayerCost
    ends: EmbeddingHeadCost
    traffic: LayerTraffic
    activations: Activations
    module: tuple[LayerCost, LayerTraffic] | None

    def case_of(self, layouts: Layouts) -> Case:
        """The case of all the layouts."""
        return replace(self.case, device=self.distinct.spread(self.case.device), layouts=layouts)

    def take(self, rows: Any) -> OneLayer:
        """Of the layouts' rows at an index array or mask."""
        return replace(self, distinct=self.distinct.take(rows))


def one_layer(setup: Setup, layouts: Layouts) -> OneLayer:
    """The costs of one layer, embedding and head for one micro-batch; no layout's legality matters."""
    model = setup.model
    distinct = by_layer(model, layouts)
    case = Case.of(setup, distinct.layouts)
    module = None
    if np.any(mix.has_own_module(model)):
        own = case.with_model(mix.module_layer(model))
        module = layer_cost(own), layer_traffic(own)
    return OneLayer(
        distinct=distinct,
        case=case,
        cost=layer_cost(case),
        ends=embedding_head_cost(case),
        traffic=layer_traffic(case),
        activations=activations(case),
        module=module,
    )
