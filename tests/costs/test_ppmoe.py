"""PPMoE: tensor ranks pick the tokens of their own experts and sum the outputs (Chen et al. 2023, arXiv 2304.11414)."""

from dataclasses import replace

import numpy as np
import pytest

from planner.costs.layer.expert_routing import Routing, permute_s
from planner.costs.layer.matmul_shapes import expert_products
from planner.costs.memory.saved_activations import layer_tensors
from planner.costs.network.collectives import all_reduce_s
from planner.costs.network.groups import groups
from planner.costs.network.traffic import layer_traffic
from planner.costs.parameters import RankParts
from planner.layouts import Dispatcher
from planner.step.legality import first_broken
from tests.costs.toy import BYTES, CLUSTER, MOE, case, layout

ROUTED = replace(MOE, num_shared_experts=0, num_dense_layers=0)  # two layers of experts alone
PICKS = {"dispatcher": Dispatcher.PPMOE, "tp": 2, "ep": 2, "etp": 1}


def test_a_layer_sums_its_hidden_states_over_the_tensor_group_and_sends_no_token():
    """Section 3: of b s h elements one all-reduce in a node forward, and one backward, as a dense MLP's."""
    x = layout(dp=2, **PICKS)
    one = case(BYTES, ROUTED, x)
    found = layer_traffic(one)
    size = one.pass_tokens * ROUTED.hidden * one.device.element_bytes
    once = all_reduce_s(groups(CLUSTER, x)["tensor"], size)
    # Attention's, and the experts'.
    assert found.layer_forward_s == pytest.approx(2.0 * once, rel=1e-12)
    assert found.layer_backward_s == pytest.approx(2.0 * once, rel=1e-12)
    assert float(np.max(found.expert_forward_s)) == float(np.max(found.expert_backward_s)) == 0.0
    cut = layer_traffic(case(BYTES, ROUTED, layout(dp=2, tp=2, ep=1)))
    assert found.layer_forward_s == pytest.approx(cut.layer_forward_s, rel=1e-12)


def test_a_rank_has_half_the_experts_whole_and_their_copies_alone():
    picks, cut = (case(BYTES, ROUTED, layout(dp=2, **way)) for way in (PICKS, {"tp": 2, "ep": 1}))
    for x in (picks, cut):
        work = sum(float(np.ravel(r * c * d * n)[0]) for r, c, d, n in expert_products(x))
        assert work == pytest.approx(sum(float(np.ravel(r * c * d * n)[0]) for r, c, d, n in expert_products(cut)))
    own, other = (RankParts(model=ROUTED, layouts=x.layouts).rank(2.0, 1.0, 1.0) for x in (picks, cut))
    assert own.experts == other.experts
    # top_k copies of each token on all ranks of the group together, so half of them on one of two.
    inputs, all_copies = (float(np.ravel(layer_tensors(x).expert_inputs)[0]) for x in (picks, cut))
    assert inputs == pytest.approx(all_copies / 2.0)
    assert float(permute_s(picks, Routing.FUSED)[0][0]) < float(permute_s(cut, Routing.FUSED)[0][0])


@pytest.mark.parametrize("change", [{"ep": 1}, {"etp": 2}, {"sequence_parallel": True}, {"tp": 1, "ep": 1}])
def test_what_it_needs_is_said(change):
    said = first_broken(ROUTED, CLUSTER, layout(**{"dp": 2} | PICKS | change))[0]
    assert "dispatcher ppmoe" in said
