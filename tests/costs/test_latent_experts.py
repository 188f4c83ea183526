"""Experts behind a latent (LatentMoE, Elango et al. 2026, arXiv 2601.18089), worked out by hand on the toy mixture.

Routed experts see a latent of 4 channels where the hidden state has 8: they cost what those of a model of 4 channels
do. Everything else, shared experts and router among it, stays as wide as it was.
"""

from dataclasses import replace

import numpy as np
import pytest

from planner.base.errors import InputError
from planner.costs.layer.expert_routing import Routing, permute_s
from planner.costs.layer.fp8_casts import casts_s
from planner.costs.layer.layer_cost import layer_cost
from planner.costs.layer.matmul_shapes import expert_products, mlp_products
from planner.costs.memory.saved_activations import layer_tensors, saved_bytes, weight_grad_share
from planner.costs.network.traffic import layer_traffic
from planner.costs.parameters import RankParts
from planner.layouts import Precision
from planner.models import counts
from planner.models.possible import check
from tests.costs.toy import BYTES, FLOP, LLAMA, MOE, case, device, layout

PLAIN = replace(MOE, num_dense_layers=0)  # two layers with 4 experts of 16, of which a token meets 2, and one shared
LATENT = replace(PLAIN, moe_latent=4)
NARROW = replace(PLAIN, hidden=4)
CUT = {"tp": 2, "dp": 2, "ep": 4, "sequence_parallel": True}


def values(products):
    return [tuple(float(np.ravel(x)[0]) for x in product) for product in products]


@pytest.mark.parametrize("choices", [{}, {"ep": 2, "dp": 2}, CUT])
def test_routed_experts_are_those_of_a_narrow_model(choices):
    chosen = layout(**choices)
    assert values(expert_products(case(model=LATENT, layouts=chosen))) == values(
        expert_products(case(model=NARROW, layouts=chosen))
    )
    for precision in (Precision.BF16, Precision.FP8):
        of = layout(precision=precision, **choices)
        for how in Routing:
            latent, narrow = (permute_s(case(BYTES, m, of), how) for m in (LATENT, NARROW))
            assert [float(x[0]) for x in latent] == [float(x[0]) for x in narrow]
        tensors = [layer_tensors(case(BYTES, m, of)) for m in (LATENT, NARROW)]
        assert tensors[0].expert_inputs == tensors[1].expert_inputs
        assert tensors[0].expert_outputs == tensors[1].expert_outputs
    sent = [layer_traffic(case(BYTES, m, chosen)) for m in (LATENT, NARROW)]
    assert sent[0].expert_forward_s == sent[1].expert_forward_s
    assert sent[0].expert_backward_s == sent[1].expert_backward_s
    assert counts.expert_params(LATENT) == counts.expert_params(NARROW) == 3 * 4 * 16


def test_two_products_for_all_of_a_layer_s_experts():
    """Down 8 to 4 and up again, 48 tokens: 2 x 2 x 48 x 32 FLOP forward and twice that backward."""
    more = 2 * 2 * 48 * 32
    chosen = layout()
    routed = 3 * 2 * 2 * 48 * 16  # three products of 2 x 48 copies' tokens, for every channel they are wide
    latent, plain = (layer_cost(case(FLOP, m, chosen)) for m in (LATENT, PLAIN))
    assert latent.forward_matmul_s == plain.forward_matmul_s - 4 * routed + more
    assert latent.backward_matmul_s == plain.backward_matmul_s - 2 * 4 * routed + 2 * more
    assert values(mlp_products(case(model=LATENT, layouts=chosen)))[-2:] == [(1, 4, 8, 1), (1, 8, 4, 1)]
    assert (
        len(mlp_products(case(model=PLAIN, layouts=chosen)))
        == len(mlp_products(case(model=LATENT, layouts=chosen))) - 2
    )
    # Every tensor rank has them whole, for its part of the tokens.
    cut = layout(**CUT)
    assert values(mlp_products(case(model=LATENT, layouts=cut)))[-2:] == [(0.5, 4, 8, 1), (0.5, 8, 4, 1)]
    # In one of two layers, where the other's MLP is dense.
    assert values(mlp_products(case(model=replace(LATENT, num_dense_layers=1), layouts=chosen)))[-2:] == [
        (1, 4, 8, 0.5),
        (1, 8, 4, 0.5),
    ]
    own = [RankParts(model=m, layouts=cut).rank(2.0, False, False) for m in (LATENT, PLAIN)]
    assert own[0].layers - own[1].layers == 2 * counts.latent_params(LATENT) == 2 * 2 * 8 * 4
    assert own[0].experts * 2 == own[1].experts


def test_what_they_keep():
    """The latents that come back from the experts, in the products' bytes; down from the hidden state that is kept."""
    for precision, size in ((Precision.BF16, 2), (Precision.FP8, 1)):
        for choices, tokens in (({}, 48), (CUT, 24)):
            chosen = layout(precision=precision, **choices)
            latent, plain = (layer_tensors(case(BYTES, m, chosen)) for m in (LATENT, PLAIN))
            assert latent.latents - plain.latents == tokens * 4 * size
            assert latent.product_inputs == plain.product_inputs
            assert latent.inner == plain.inner
            assert latent.routed_inputs == plain.routed_inputs


def kept_by_a_split_backward(model, chosen):
    of = device(BYTES, chosen)
    return float((weight_grad_share(case(of, model, chosen)) * saved_bytes(case(of, model, chosen))[0])[0])


def test_what_a_split_backward_keeps():
    """Operands of every product: by the experts' 2 copies of three products 4 channels fewer, 12 twice for the two."""
    whole, cut = layout(), layout(**CUT)
    # Gate and up are one product here: two operands of hidden size for each copy.
    more = kept_by_a_split_backward(LATENT, whole) - kept_by_a_split_backward(PLAIN, whole)
    assert more == pytest.approx(48 * 2 * (2 * 12 - 2 * 2 * 4))
    # In shards of two ranks: half the copies' operands of 4 channels instead of 8, half the tokens of the two products.
    rows = sum(r * n for r, _, _, n in values(expert_products(case(model=PLAIN, layouts=cut))))
    more = kept_by_a_split_backward(LATENT, cut) - kept_by_a_split_backward(PLAIN, cut)
    assert more == pytest.approx(48 * 2 * (0.5 * 2 * 12 - rows * 0.5 * 4))


def test_their_casts_to_fp8():
    """Forward the copies' inputs are cast in 4 channels, not 8, and both inputs of the two products; backward both
    outputs of these, and the copies again: 4 bytes an element."""
    chosen = layout(precision=Precision.FP8)
    cost = [layer_cost(case(BYTES, m, chosen)) for m in (LATENT, PLAIN)]
    # Passes beside the casts: permutation and the products' own traffic.
    beside = [permute_s(case(BYTES, m, chosen), Routing.EAGER) for m in (LATENT, PLAIN)]
    alone = [[c.forward_pointwise_s - b[0], c.backward_pointwise_s - b[1]] for c, b in zip(cost, beside, strict=True)]
    forward, backward = (float((latent - plain)[0]) for latent, plain in zip(*alone, strict=True))
    assert forward == pytest.approx(48 * 4 * (12 - 2 * 4))
    assert backward == pytest.approx(48 * 4 * (12 - 2 * 4))
    # Of two tensor ranks each has half the tokens' of the products, and half the copies, of experts whole on one.
    cut = layout(precision=Precision.FP8, **CUT)
    both = [casts_s(case(BYTES, m, cut), False) for m in (LATENT, PLAIN)]
    assert [float((latent - plain)[0]) for latent, plain in zip(*both, strict=True)] == pytest.approx([48 * 4 * 2] * 2)


def test_a_dense_model_has_none():
    with pytest.raises(InputError, match="moe_latent is 4; allowed: 0, for there are no experts"):
        check(replace(LLAMA, moe_latent=4))
    assert check(LATENT) is LATENT
