"""Attention and MLP side by side, worked out by hand on the toys: one norm or two, and a sum for both."""

from dataclasses import replace

import numpy as np
import pytest

from planner.base.errors import InputError
from planner.costs.layer.layer_cost import layer_cost
from planner.costs.memory.saved_activations import saved_bytes
from planner.costs.network.traffic import layer_traffic
from planner.exporters.megatron_model import model_notes
from planner.layouts import Attention, Precision, Recompute
from planner.models import counts, load_model
from planner.models.possible import check
from tests.costs.toy import BYTES, FLOP, FRAMEWORK, GPT, LAUNCHES, LLAMA, MOE, case, layout

ONE = replace(GPT, parallel_block=True)
TWO = replace(GPT, parallel_block=True, parallel_norms=True)
HIDDEN = 48 * 8  # elements of a micro-batch's hidden state


def first(x):
    return float(np.ravel(x)[0])


def wire(model, framework=FRAMEWORK, **choices):
    """Seconds of a layer's collectives over two ranks, in all-reduces: 768 B at 5 B/s after 4 s."""
    t = layer_traffic(case(BYTES, model, layout(tp=2, **choices), framework=framework))
    return pytest.approx([first(t.layer_forward_s) / (768 / 5 + 4), first(t.layer_backward_s) / (768 / 5 + 4)])


def test_both_are_summed_at_once_and_of_one_norm_s_gradient_too():
    """A norm each, and each norm's gradient is summed by itself, as GPT-NeoX's two column products do."""
    assert wire(GPT) == [2, 2]
    assert wire(ONE) == [1, 1]
    assert wire(TWO) == [1, 2]
    # Gathers and scatters are halves: of one norm, one of each; of two, two gathers and a scatter, and backward
    # a gather of the sum's gradient and two scatters.
    assert wire(ONE, sequence_parallel=True) == [1, 1]
    assert wire(TWO, sequence_parallel=True) == [1.5, 1.5]
    assert wire(ONE, recompute=Recompute.FULL) == [1, 2]
    assert wire(TWO, recompute=Recompute.FULL) == [1, 3]
    gated = replace(LLAMA, parallel_block=True)
    assert wire(gated, replace(FRAMEWORK, gate_reduces=1.0)) == [1, 2]


def test_fp8_gathers_are_a_byte_an_element():
    """A gather of 384 B and a scatter of 768; of two norms two gathers, and backward one with two scatters."""
    fp8 = {"precision": Precision.FP8, "sequence_parallel": True}
    gather, scatter = 384 / 2 / 5 + 2, 768 / 2 / 5 + 2
    for model, gathers, scatters in ((GPT, 2, 2), (ONE, 1, 1), (TWO, 2, 1)):
        t = layer_traffic(case(BYTES, model, layout(tp=2, **fp8)))
        assert first(t.layer_forward_s) == pytest.approx(gathers * gather + scatters * scatter)
        assert first(t.layer_backward_s) == pytest.approx(scatters * gather + gathers * scatter)


def test_one_norm_less_to_compute_and_no_product_less():
    """A norm moves four bytes an element forward and ten backward; launches are counted for a pair of them."""
    for lens, there, back in ((BYTES, 4 * HIDDEN, 10 * HIDDEN), (LAUNCHES, 0.5, 0.75)):
        plain, one, two = (layer_cost(case(lens, m, layout())) for m in (GPT, ONE, TWO))
        assert first(plain.forward_s - one.forward_s) == there
        assert first(plain.backward_s - one.backward_s) == back
        assert first(two.forward_s) == first(plain.forward_s)
    assert first(layer_cost(case(FLOP, ONE, layout())).forward_s) == first(
        layer_cost(case(FLOP, GPT, layout())).forward_s
    )


def test_what_a_layer_keeps():
    """The input once instead of an input a block, two bytes an element; of one norm its output once too."""
    plain, one, two = (first(saved_bytes(case(BYTES, m, layout()))[0]) for m in (GPT, ONE, TWO))
    assert (plain - one, plain - two) == (2 * 2 * HIDDEN, 2 * HIDDEN)
    eager = layout(fused_norm=False)
    assert FRAMEWORK.eager_norm_bytes > 0
    models = (LLAMA, *(replace(LLAMA, parallel_block=True, parallel_norms=n) for n in (False, True)))
    plain, one, two = (first(saved_bytes(case(BYTES, m, eager))[0]) for m in models)
    assert (plain - one, plain - two) == ((4 + FRAMEWORK.eager_norm_bytes) * HIDDEN, 2 * HIDDEN)
    # An fp8 product keeps its input in a byte.
    fp8 = layout(precision=Precision.FP8)
    plain, one, two = (first(saved_bytes(case(BYTES, m, fp8))[0]) for m in (GPT, ONE, TWO))
    assert (plain - one, plain - two) == ((2 + 1) * HIDDEN, 2 * HIDDEN)


def test_fp8_casts_of_one_norm_and_of_one_gradient():
    """Less, a token's 8 elements: a norm's 16 bits, a byte of its output saved before; backward 2 to transpose it, and
    4 to cast the gradient of the sum."""
    fp8 = layout(precision=Precision.FP8)
    plain, one, two = (layer_cost(case(BYTES, m, fp8)) for m in (GPT, ONE, TWO))
    assert first(plain.forward_pointwise_s - one.forward_pointwise_s) == (4 - 1) * HIDDEN
    assert first(plain.backward_pointwise_s - one.backward_pointwise_s) == (10 + 2 + 4) * HIDDEN
    assert first(plain.backward_pointwise_s - two.backward_pointwise_s) == 4 * HIDDEN


def test_dropout_and_residuals_stay_a_block_s():
    fused = layout(attention=Attention.FUSED)
    masks = [first(saved_bytes(case(BYTES, m, fused))[0]) for m in (GPT, replace(GPT, dropout=False))]
    beside = [first(saved_bytes(case(BYTES, m, fused))[0]) for m in (ONE, replace(ONE, dropout=False))]
    assert masks[0] - masks[1] == beside[0] - beside[1]


def test_parameters_and_what_contradicts():
    assert counts.total_params(GPT) - counts.total_params(ONE) == 2 * 2 * 8  # a gain and a shift a layer
    assert counts.total_params(TWO) == counts.total_params(GPT)
    with pytest.raises(InputError, match="parallel_block is True; allowed: False, for not every layer has"):
        check(replace(MOE, parallel_block=True))
    with pytest.raises(InputError, match="parallel_norms is True; allowed: False, for parallel_block is False"):
        check(replace(GPT, parallel_norms=True))


def test_megatron_has_no_argument_for_it():
    said = "attention and MLP side by side (parallel_block): Megatron-LM has no argument for it; exported one after"
    notes = {name: [n for n in model_notes(load_model(name)) if "parallel_block" in n] for name in ("phi-2", "gpt2")}
    assert notes == {"phi-2": [f"{said} the other"], "gpt2": []}
