"""Biases of experts and a clamped gate (GPT-OSS), worked out by hand on the toy mixture."""

from dataclasses import replace

import numpy as np
import pytest

from planner.base.errors import InputError
from planner.costs.layer.expert_bias import expert_bias_s
from planner.costs.layer.layer_cost import pointwise_s
from planner.costs.memory.saved_activations import saved_bytes
from planner.layouts import Precision, Recompute
from planner.models import counts, load_model
from planner.models.possible import check
from tests.costs.toy import BYTES, FRAMEWORK, GPT, LAUNCHES, LLAMA, MOE, case, layout

PLAIN = replace(MOE, num_shared_experts=0, num_dense_layers=0)  # two layers of four experts of 16, two a token
BIASED, CLAMPED = replace(PLAIN, expert_bias=True), replace(PLAIN, clamped=True)
ONE_KERNEL = replace(FRAMEWORK, fused_experts=True)


def seconds(parts):
    return [float(np.ravel(x)[0]) for x in parts]


def more(of, one, other, chosen, framework=FRAMEWORK):
    """What the second model's pointwise passes take longer: forward, backward, repeated by fine recomputation."""
    a, b = (seconds(pointwise_s(case(of, m, chosen, framework=framework))) for m in (one, other))
    return [y - x for x, y in zip(a, b, strict=True)]


def test_a_bias_is_weighed_and_added_in_fp32_and_cast_back():
    """48 tokens, two copies of 8 channels each: 768 outputs.

    Forward the weighed bias is written (4 bytes), added (2 and 4 read, 4 written), joined (4 and 4), cast (4 and 2).
    Backward the gradient is cast up (2 and 4) and down (4 and 2) and joined (2 and 2), and for bias and probability
    multiplied (4 and 4) and summed (4).
    """
    outputs = 48 * 2 * 8
    assert more(BYTES, PLAIN, BIASED, layout()) == [28 * outputs, 40 * outputs, 0]
    assert more(BYTES, PLAIN, BIASED, layout(precision=Precision.FP8)) == [28 * outputs, 40 * outputs, 0]


def test_ranks_share_the_tokens_of_experts_that_are_whole():
    cut = layout(tp=2, dp=2, ep=4, etp=1, sequence_parallel=True)
    assert more(BYTES, PLAIN, BIASED, cut)[0] == 28 * 48 * 2 * 8 / 2
    over_tensor_ranks = layout(tp=2, dp=1, ep=1, etp=2, sequence_parallel=True)
    assert more(BYTES, PLAIN, BIASED, over_tensor_ranks)[0] == 28 * 48 * 2 * 8


@pytest.mark.parametrize(("ep", "experts"), [(1, 4), (2, 2), (4, 1)])
def test_a_rank_s_experts_are_launched_one_by_one(ep, experts):
    """Two kernels of each and two of all forward, five and two backward."""
    chosen = layout(dp=ep, ep=ep)
    assert seconds(expert_bias_s(case(LAUNCHES, BIASED, chosen))) == [2 * experts + 2, 5 * experts + 2]


def test_on_latents_outputs_are_as_wide_as_they():
    assert more(BYTES, replace(PLAIN, moe_latent=4), replace(BIASED, moe_latent=4), layout())[0] == 28 * 48 * 2 * 4


def test_layers_without_experts_have_none():
    half = replace(MOE, num_shared_experts=0)  # one of two layers is dense
    assert more(BYTES, half, replace(half, expert_bias=True), layout())[0] == 28 * 48 * 2 * 8 / 2


def test_a_gate_is_clamped_before_it_is_applied():
    """1,536 inner elements of two halves: clamped (4 read, 4 written), joined (4, 4); backward 4, 4, 4 and 4, 4."""
    inner = 48 * 2 * 16
    assert more(BYTES, PLAIN, CLAMPED, layout()) == [16 * inner, 20 * inner, 16 * inner]
    dense = replace(LLAMA, clamped=True)
    assert more(BYTES, LLAMA, dense, layout())[:2] == [16 * 48 * 32, 20 * 48 * 32]


def test_one_kernel_for_all_experts_does_both_as_it_goes():
    both = replace(BIASED, clamped=True)
    assert more(BYTES, PLAIN, both, layout(), ONE_KERNEL) == [0, 0, 0]
    assert more(LAUNCHES, PLAIN, both, layout(), ONE_KERNEL) == [0, 0, 0]


def test_both_halves_are_kept_again_once_clamped():
    """Unless one kernel does it; fine recomputation makes them anew, full recomputation all of the layer."""
    inner = 48 * 2 * 16
    at_once = replace(FRAMEWORK, fused_experts=True)
    kept = {Recompute.NONE: 4 * inner, Recompute.FINE: 0, Recompute.FULL: 0}
    for recompute, wanted in kept.items():
        chosen = layout(recompute=recompute)
        plain, clamped = (saved_bytes(case(BYTES, m, chosen)) for m in (PLAIN, CLAMPED))
        assert float(clamped[0][0] - plain[0][0]) == wanted
        assert float((sum(clamped) - sum(plain))[0]) == 4 * inner
        fused = [saved_bytes(case(BYTES, m, chosen, framework=at_once)) for m in (PLAIN, CLAMPED)]
        assert [float(x[0]) for x in fused[0]] == [float(x[0]) for x in fused[1]]


def test_parameters_of_biases():
    """Two of 16 and one of 8 in each of four experts, and four in the router, in either of two layers."""
    assert counts.total_params(BIASED) - counts.total_params(PLAIN) == 2 * (4 * (2 * 16 + 8) + 4)
    ungated = replace(PLAIN, gated=False)
    assert counts.expert_params(replace(ungated, expert_bias=True)) - counts.expert_params(ungated) == 16 + 8


def test_gpt_oss_has_both_and_others_neither():
    flags = [(bool(m.expert_bias), bool(m.clamped)) for m in map(load_model, ("gpt-oss-20b", "gpt-oss-120b"))]
    assert flags == [(True, True)] * 2
    assert not load_model("qwen3-30b-a3b").expert_bias
    assert not load_model("mixtral-8x7b").clamped


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (replace(LLAMA, expert_bias=True), "expert_bias is True; allowed: False, for there are no experts"),
        (replace(GPT, clamped=True), "clamped is True; allowed: False, for there are no gated MLPs"),
    ],
)
def test_what_is_not_there_has_no_bias_and_no_clamp(model, said):
    with pytest.raises(InputError, match=said):
        check(model)
