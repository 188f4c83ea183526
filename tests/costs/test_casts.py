"""What fp8's casts and transposes move, worked out by hand for 48 tokens of toy models."""

from dataclasses import replace

import numpy as np
import pytest

from planner.costs.layer.fp8_casts import casts_s
from planner.costs.layer.layer_cost import pointwise_s
from planner.layouts import Dispatcher, Precision
from tests.costs.toy import BYTES, GPT, HYBRID, LAUNCHES, LLAMA, MLA, MOE, case, layout


def cast(model, of=BYTES, in_epilogue=False, precision=Precision.FP8, **choices):
    chosen = layout(precision=precision, **choices)
    return [float(np.ravel(x)[0]) for x in casts_s(case(of, model, chosen), in_epilogue)]


def tokens(forward, backward):
    return [48 * forward, 48 * backward]


def test_a_dense_layer():
    """Norms write 16 elements a byte narrower; the 8 and 32 that the other products take are cast and transposed.

    Backward the 16 are transposed, the gradients of 24, 2 x 32, 8 and 8 outputs cast and transposed.
    """
    assert cast(LLAMA) == tokens(-16 + 4 * 40, 2 * 16 + 4 * (24 + 64 + 16))
    assert cast(GPT) == tokens(-16 + 4 * 40, 2 * 16 + 4 * (24 + 32 + 16))
    assert cast(LLAMA, LAUNCHES) == [2.0, 6.0]


def test_tensor_ranks_cast_their_part_and_transpose_what_they_gather():
    half = tokens(-16 + 4 * 20, 2 * 16 + 4 * (12 + 32 + 16))
    assert cast(LLAMA, tp=2) == half
    assert cast(LLAMA, tp=2, sequence_parallel=True) == tokens(
        -16 / 2 + 3 * 20, 2 * (16 + 20) + 4 * (12 + 32) + 16 * (3 / 2 + 2)
    )
    assert cast(LLAMA, LAUNCHES, tp=2, sequence_parallel=True) == [2.0, 10.0]
    assert cast(LLAMA, sequence_parallel=True) == cast(LLAMA)


def test_nvfp4_quantizes_rows_and_columns_at_once_after_a_pass_for_the_largest():
    """Read twice in 16 bits, written twice in 4.5: norms' 16, inner 8 + 32, gradients of 24, 64, 8 and 8 outputs."""
    each = 2 + 2 + 2 * 4.5 / 8

    def of(model, **choices):
        return cast(model, precision=Precision.NVFP4, **choices)

    assert of(LLAMA) == pytest.approx(tokens(each * 56, each * 104))
    assert of(LLAMA, of=LAUNCHES) == [8.0, 8.0]
    # Nothing is transposed of what tensor ranks gather: each quantizes its part alone.
    assert of(LLAMA, tp=2, sequence_parallel=True) == pytest.approx(
        tokens(each * (16 / 2 + 20), each * (12 + 32 + 16 / 2))
    )


def test_experts_cast_every_copy_of_a_token():
    """Half the layers: 2 copies of 8 and a shared expert's 8 in 16 bits; 2 x 16 and 16 inner elements, dense 32."""
    inner = 8 + 0.5 * (32 + 16 + 32)
    back = 4 * (0.5 * 16 + 12 + 4)  # gradients of experts' outputs, of the mixer's and dense MLP's, of the shared one's
    columns = 4 * (24 + 0.5 * (64 + 32 + 64))
    assert cast(MOE) == tokens(-12 + 4 * (0.5 * (16 + 8) + inner), 2 * 12 + columns + back)
    fused = cast(MOE, in_epilogue=True)
    assert fused == tokens(-12 + 4 * (0.5 * (16 + 8) + inner - 16), 2 * 12 + columns - 4 * 32 + back)
    # Whole experts see the copies of a rank's part of the tokens.
    whole = cast(MOE, dp=2, tp=2, ep=2, etp=1)
    assert cast(MOE, dp=2, tp=2, ep=2, etp=2)[0] - whole[0] == 48 * 4 * 0.5 * 8


def test_experts_inputs_and_gradients_are_cast_one_by_one():
    """Half the layers have experts, four or two on a rank: of both products each beside the first; one kernel none."""
    assert cast(MOE, LAUNCHES) == [2.0 + 0.5 * 2 * 3, 6.0 + 0.5 * 2 * 3]
    assert cast(MOE, LAUNCHES, dp=2, ep=2) == [2.0 + 0.5 * 2, 6.0 + 0.5 * 2]
    assert cast(MOE, LAUNCHES, in_epilogue=True) == [2.0, 6.0]


def test_latents_and_state_spaces():
    """Latents of 6 and 4: products down to 6 and 6, up to 12 and 16. State-spaces: 68 wide in, 16 wide out."""
    assert cast(MLA) == tokens(-16 + 4 * (10 + 8 + 32), 2 * 16 + 4 * (6 + 6 + 12 + 16 + 64 + 16))
    assert cast(HYBRID) == tokens(-8 + 4 * (8 + 16), 2 * 8 + 4 * (34 + 16 + 8))


@pytest.mark.parametrize("model", [GPT, LLAMA, MOE, MLA], ids=lambda m: m.family)
def test_a_layer_in_fp8_costs_its_casts_more(model):
    """And experts' rows padded, unless the dispatch pads them (test_permute.py)."""
    hybrid = {"dispatcher": Dispatcher.HYBRIDEP}
    for choices in ({}, {"tp": 2, "sequence_parallel": True}):
        fp8, bf16 = layout(precision=Precision.FP8, **choices, **hybrid), layout(**choices, **hybrid)
        more = [
            float(np.ravel(a - b)[0])
            for a, b in zip(*(pointwise_s(case(BYTES, model, x)) for x in (fp8, bf16)), strict=True)
        ]
        assert more == [*cast(model, **choices), 0.0]
    sliced = replace(model, seq_len=model.seq_len // 2)
    assert cast(model, sequence_slices=2) == cast(sliced)
