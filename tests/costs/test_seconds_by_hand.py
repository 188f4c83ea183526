"""Seconds of kernels, layers, ends and the optimizer, worked out by hand for models of a few numbers."""

from dataclasses import replace

import numpy as np
import pytest

from planner.costs.gradient_accumulation import with_accumulation
from planner.costs.kernels.attention import attention_s, score_elements
from planner.costs.kernels.device import Device, aligned_share, matmul_s, slowest_of, stream_s
from planner.costs.layer.embedding_head import embedding_head_cost
from planner.costs.layer.layer_cost import layer_cost, matmuls_s, pointwise_s
from planner.costs.layer.matmul_shapes import attention_products, expert_products, mlp_products
from planner.costs.layer.slices import even_slices
from planner.costs.optimizer import optimizer_s
from planner.costs.parameters import RankParameters
from planner.hardware import load_framework
from planner.layouts import Attention, Layouts, MainDtype, OptimizerKind, Precision, Recompute
from tests.costs.toy import (
    BYTES,
    FLOP,
    FRAMEWORK,
    GPT,
    LAUNCHES,
    LLAMA,
    MLA,
    MOE,
    accelerator,
    case,
    device,
    layout,
    slice_shares,
)


def values(arrays):
    return [float(np.ravel(a)[0]) for a in arrays]


TILED = accelerator(flops=1000.0, tile_rows=8.0, tile_columns=8.0, depth_half=2.0)


@pytest.mark.parametrize(
    ("rows", "columns", "tile_elements"),
    [
        (16, 16, 4 * 64),  # four tiles of 8 x 8 on four units: one full wave
        (8, 8, 4 * 16 / 0.75),  # one such tile leaves three units idle; four of 4 x 4 at 75 % fill the wave
        (4, 4, 4 * 8 / 0.55),  # two of 2 x 4: half a wave, which costs a whole one
        (24, 16, 3 * 4 * 32 / 0.93),  # 1.5 waves of 8 x 8 count as 1.75: three whole ones of 4 x 8 are quicker
        (40, 8, 2.75 * 4 * 32 / 0.93),  # ten of 4 x 8: 2.5 waves, and half of what the third one lacks
    ],
)
def test_a_product_runs_in_waves_of_tiles(rows, columns, tile_elements):
    units = Device.of(replace(TILED, num_compute_units=4), np.array([int(Precision.BF16)]))
    seconds = float(matmul_s(units, rows, columns, 10)[0])
    assert seconds == pytest.approx(2.0 * tile_elements * (10 + 2) / 1000.0)


def test_a_product_moves_its_operands_and_result():
    bf16, fp8, fp32 = (device(BYTES, layout(precision=p)) for p in (Precision.BF16, Precision.FP8, Precision.FP32))
    # 3 x 5 times 5 x 7: 15 + 35 operands, 21 results.
    assert values([matmul_s(d, 3, 7, 5) for d in (bf16, fp8, fp32)]) == [142.0, 50.0 + 42.0, 284.0]
    assert values([stream_s(bf16, 100.0), stream_s(device(LAUNCHES, layout()), 100.0, 3.0)]) == [100.0, 3.0]
    assert values([matmul_s(device(LAUNCHES, layout()), 3, 7, 5)]) == [1.0]


def test_products_whose_rows_are_not_aligned_are_slower():
    """Rows of 64, 16, 8 and 2 bytes: the whole rate, the half, a quarter, an eighth."""
    figures = {"bytes_16": 0.5, "bytes_4": 0.25, "bytes_2": 0.125}
    of = device(accelerator(flops=1.0, aligned_fraction=figures), layout())
    sizes = np.array([96, 24, 8, 12, 6, 7])
    assert np.ravel(aligned_share(of, 2.0, sizes)).tolist() == [1.0, 0.5, 0.5, 0.25, 0.25, 0.125]
    assert np.ravel(aligned_share(of, 2.0, 96, sizes)).tolist() == np.ravel(aligned_share(of, 2.0, sizes)).tolist()
    assert np.ravel(aligned_share(of, 4.0, 7)).tolist() == [0.25]
    assert aligned_share(device(FLOP, layout()), 2.0, 7) == 1.0
    assert values([matmul_s(of, 3, 7, 5, 0.25)]) == [4 * 2 * 105.0]
    # Forward along depths 8, 8, 8, 32 of two bytes; backward across widths 24, 8, 32 and 8 too: 24 and 8 halve.
    forward = 2 * 48 * (2 * 8 * 24 + 2 * 8 * 8 + 2 * 8 * 32 + 32 * 8)
    backward = 2 * 48 * 2 * 768
    assert values(matmuls_s(case(of, GPT, layout()))[:3]) == [forward, backward, backward]
    # Heads of 4 channels: batched products at a quarter. Flash kernels compute them as heads of 32.
    fused = layout(attention=Attention.FUSED)
    slow = accelerator(flops=1.0, aligned_fraction=figures, flash_head_step=32.0)
    assert values(attention_s(case(slow, GPT, fused))) == [4 * 24576.0, 8 * 24576.0]
    whole, wide = (values(attention_s(case(x, GPT, layout()))) for x in (FLOP, slow))
    assert wide == [8 * x for x in whole]


def test_a_device_s_rates_by_precision():
    peaks = {"fp32": 10.0, "tf32": 20.0, "fp16": 40.0, "bf16": 50.0, "fp8": 100.0, "nvfp4": 200.0}
    spread = replace(accelerator(rate_spread=0.1, matrix_fraction=dict.fromkeys(peaks, 0.5)), peak_flops=peaks)
    every = np.array([int(p) for p in Precision])
    one, many = Device.of(spread, every), Device.of(spread, every, 100)
    assert one.matrix_rate.tolist() == [5.0, 10.0, 20.0, 25.0, 50.0, 100.0]
    assert one.attention_rate.tolist() == [10.0, 20.0, 40.0, 50.0, 50.0, 50.0]  # fp8: scores stay in bf16
    assert one.wide_rate.tolist() == [5.0, 10.0, 20.0, 25.0, 25.0, 25.0]  # so does the head
    assert one.element_bytes.tolist() == [4.0, 4.0, 2.0, 2.0, 2.0, 2.0]
    assert one.matrix_bytes.tolist() == [4.0, 4.0, 2.0, 2.0, 1.0, 0.5625]
    slower = 1.0 + 0.1 * float(slowest_of(100))
    assert many.matrix_rate == pytest.approx(one.matrix_rate / slower)
    assert many.attention_rate == pytest.approx(one.attention_rate / slower)
    assert float(slowest_of(1)) == 0.0
    # Blom 1958: the 0.991 quantile, (100 - 3/8) / (100 + 1/4), lies 2.49 deviations off (expected maximum: 2.51).
    assert float(slowest_of(100)) == pytest.approx(2.51, abs=0.03)
    lacking = Device.of(replace(spread, peak_flops={"fp16": 40.0}), every)
    assert np.isnan(lacking.matrix_rate).tolist() == [True, True, False, True, True, True]
    half = replace(spread, memory_bandwidth_bytes_per_s=8.0, efficiency=replace(spread.efficiency, memory_fraction=0.5))
    assert Device.of(half, every).memory_rate == 4.0


def test_the_products_of_a_layer():
    """48 tokens by the weights 8 x 24, 8 x 8, 8 x 32, 32 x 8: 768 in all, half on each of two tensor ranks."""
    forward = 2 * 48 * 768
    assert values(matmuls_s(case(FLOP, GPT, layout()))[:3]) == [forward] * 3
    assert values(matmuls_s(case(FLOP, GPT, layout(tp=2)))[:3]) == [forward / 2] * 3
    assert values(matmuls_s(case(LAUNCHES, GPT, layout()))[:3]) == [4.0] * 3
    moved = 2 * sum(48 * d + d * c + 48 * c for c, d in [(24, 8), (8, 8), (32, 8), (8, 32)])
    added = 768 * (2 * 4 - 2)  # a gradient's fp32 sum is read and written back, where a gradient was written
    assert values(matmuls_s(case(BYTES, GPT, layout()))[:3]) == [moved, moved, moved + added]
    apart = replace(FRAMEWORK, bf16_accumulate_bytes=6.0)  # a pass of its own adds it
    assert values(matmuls_s(case(BYTES, GPT, layout(), framework=apart))[:3]) == [moved] * 3
    # One byte an operand, two a result: forward, input gradient, weight gradient.
    fp8 = layout(precision=Precision.FP8)
    assert values(matmuls_s(case(BYTES, GPT, fp8))[:3]) == [10368.0, 9600.0, 7680.0 + added]
    sliced = layout(sequence_slices=2)
    assert values(matmuls_s(case(FLOP, GPT, sliced))[:3]) == [forward / 2] * 3


def test_products_of_experts_and_latents():
    def of(products, chosen):
        return [tuple(float(np.ravel(x)[0]) for x in product) for product in products(case(model=MOE, layouts=chosen))]

    spread, halves = layout(dp=2, ep=2), layout(tp=2)
    # 2 of 4 experts here: at balance each sees 2 / 2 of the tokens.
    assert of(expert_products, spread) == [(1, 32, 8, 1), (1, 8, 16, 1)]
    assert of(mlp_products, spread) == [
        (1, 64, 8, 0.5), (1, 8, 32, 0.5),  # one of two layers is dense, gated
        (1, 32, 8, 0.5), (1, 8, 16, 0.5),  # the shared expert
        (1, 4, 8, 0.5),  # the router
    ]  # fmt: skip
    assert of(expert_products, halves) == [(0.5, 16, 8, 2.0), (0.5, 8, 8, 2.0)]
    assert of(mlp_products, halves)[-1] == (1, 4, 8, 0.5)
    latent = [tuple(float(np.ravel(x)[0]) for x in p) for p in attention_products(case(model=MLA, layouts=layout()))]
    # Both latents down, output, queries up from their latent, keys and values up (4 without position and 4).
    assert latent[1:] == [(6, 8, 1), (6, 8, 1), (8, 8, 1), (12, 6, 1), (16, 4, 1)]
    assert latent[0][2] == 0  # none straight to queries, keys and values
    split = [tuple(float(np.ravel(x)[0]) for x in p) for p in attention_products(case(model=MLA, layouts=layout(tp=2)))]
    assert split[1:] == [(6, 8, 1), (6, 8, 1), (8, 4, 1), (6, 6, 1), (8, 4, 1)]
    straight = attention_products(case(model=replace(MLA, q_lora_rank=0), layouts=layout()))
    assert [float(np.ravel(x)[0]) for x in straight[4]] == [12, 8, 1]
    assert float(np.ravel(straight[1][2])[0]) == 0.0
    # Fewer key and value heads than tensor ranks are copied.
    grouped = attention_products(case(model=replace(LLAMA, num_kv_heads=1), layouts=layout(tp=2)))
    assert float(np.ravel(grouped[0][0])[0]) == (2 + 2 * 2) * 4 / 2


def test_attention_by_kernel():
    """3 x 2 heads x 16 x 16 scores = 1,536; two products of 8 channels: 24,576 FLOP."""
    flash, fused, unfused = (layout(attention=a) for a in (Attention.FLASH2, Attention.FUSED, Attention.UNFUSED))
    assert float(score_elements(case(model=GPT, layouts=flash))[0]) == 1536.0
    assert float(score_elements(case(model=GPT, layouts=layout(tp=2, cp=2)))[0]) == 384.0
    causal = 0.5 * (1 + 128 / 16)  # half, and the diagonal's blocks of 128
    assert values(attention_s(case(FLOP, GPT, flash))) == [24576 * causal, 2.5 * 24576 * causal]
    assert values(attention_s(case(FLOP, GPT, fused))) == [24576.0, 2 * 24576.0]
    assert values(attention_s(case(LAUNCHES, GPT, flash))) == [1.0, 3.0]
    assert values(attention_s(case(LAUNCHES, GPT, fused))) == [4.0, 7.0]
    assert values(attention_s(case(LAUNCHES, GPT, unfused))) == [8.0, 11.0]
    assert values(attention_s(case(BYTES, GPT, flash))) == [0.0, 0.0]
    # Two products forward, four backward at 2 bytes a score, softmax 3 and 4, dropout 5.
    assert values(attention_s(case(BYTES, GPT, fused))) == [1536 * 12.0, 1536 * 17.0]
    assert values(attention_s(case(BYTES, LLAMA, fused))) == [1536 * 7.0, 1536 * 12.0]  # no dropout
    assert values(attention_s(case(BYTES, GPT, unfused))) == [1536 * 38.0, 1536 * 46.0]
    # A product takes its 8 FLOP a score or its 2 bytes, whichever is longer.
    either = accelerator(flops=8.0, bandwidth=4.0)
    assert values(attention_s(case(either, LLAMA, fused))) == [1536 * (2 * 1 + 3 / 4), 1536 * (4 * 1 + 4 / 4)]
    wide = layout(attention=Attention.FUSED, precision=Precision.FP32)
    assert values(attention_s(case(BYTES, GPT, wide))) == [2 * 1536 * 12.0, 2 * 1536 * 17.0]
    slow = accelerator(
        flops=1.0, flash_forward={"flash2": 0.5}, flash_backward={"flash2": 0.25}, attention_matrix_fraction=0.5
    )
    assert values(attention_s(case(slow, GPT, flash))) == [2 * 24576 * causal, 10 * 24576 * causal]
    assert values(attention_s(case(slow, GPT, fused))) == [2 * 24576.0, 4 * 24576.0]
    assert values(attention_s(case(FLOP, MLA, flash)))[0] == 2 * 1536 * (6 + 4) * causal
    sliced = layout(sequence_slices=2)
    assert values(attention_s(case(FLOP, GPT, sliced)))[0] == 24576 * causal / 2
    short = accelerator(
        flops=1.0, flash_half_tokens={"flash2": 48.0}
    )  # 16 tokens: a quarter of the rate of long sequences
    assert values(attention_s(case(short, GPT, flash))) == [4 * 24576 * causal, 10 * 24576 * causal]


def test_rows_of_a_fused_softmax_wait_for_memory():
    """A row of 32 threads, four numbers each a load; registers leave a unit room for so many rows at a time.

    Forward a thread of 2,048 keys has 64 + 32 registers, so 5 blocks of four rows; backward, of two tensors, 160 and 3.
    Of 8,192 keys it has all that there are, 255, both ways: 2 blocks.
    """
    rows = 3 * 2 * 2048
    model, fused = replace(LLAMA, seq_len=2048), layout(attention=Attention.FUSED)
    slow = accelerator(memory_latency_s=1.0)
    assert values(attention_s(case(slow, model, fused))) == [rows * 16 / 2 / 20, rows * 16 / 2 / 12]
    masks = replace(FRAMEWORK, masked_softmax=True)
    assert values(attention_s(case(slow, model, fused, framework=masks))) == [rows * 16 / 20, rows * 16 / 12]
    long = replace(LLAMA, seq_len=8192)
    assert values(attention_s(case(slow, long, fused, framework=masks))) == [4 * rows * 64 / 8, 4 * rows * 64 / 8]
    # Memory's rate counts where it takes longer. A masked one moves 4 and 6 bytes a score, and 37 a query and key.
    both = accelerator(memory_latency_s=1e-9, bandwidth=1.0)
    scores = 3 * 2 * 2048**2
    whole = [scores * (2 * 2 + 4) + 2048**2 * 37, scores * (4 * 2 + 6)]
    assert values(attention_s(case(both, model, fused, framework=masks))) == whole
    # Rows of 16,384 keys are none of its: PyTorch's own softmax runs, operation by operation.
    unfused = layout(attention=Attention.UNFUSED)
    for of in (LAUNCHES, both):
        past = [
            values(attention_s(case(of, replace(LLAMA, seq_len=16384), x, framework=masks))) for x in (fused, unfused)
        ]
        assert past[0] == past[1]


def test_scores_in_fp32_are_as_fast_as_in_16_bits_up_to_their_own_products():
    """Of peaks of 8 and 1 FLOP/s 16 bits reach a quarter, 2; fp32 its own products' half, not a quarter of its own."""
    fused, wide = layout(attention=Attention.FUSED), layout(attention=Attention.FUSED, precision=Precision.FP32)
    of = accelerator(flops=1.0, attention_matrix_fraction=0.25, matrix_fraction={"fp16": 1.0, "bf16": 1.0, "fp32": 0.5})
    of = replace(of, peak_flops={"fp16": 8.0, "bf16": 8.0, "fp32": 1.0})
    assert values(attention_s(case(of, GPT, fused)))[0] == 24576 / 2.0
    assert values(attention_s(case(of, GPT, wide)))[0] == 24576 / 0.5
    near = replace(of, peak_flops={"fp16": 1.2, "bf16": 1.2, "fp32": 1.0})
    assert values(attention_s(case(near, GPT, wide)))[0] == pytest.approx(24576 / 0.3)
    alone = replace(of, peak_flops={"fp32": 1.0})
    assert values(attention_s(case(alone, GPT, wide)))[0] == 24576 / 0.25


def test_passes_over_memory():
    """Elements: hidden 384, queries and keys 768, with values 1,152, inner 1,536; two bytes each."""
    flash, fused = layout(), layout(attention=Attention.FUSED)
    forward = 2 * (2 * 384 * (2 + 3) + 1536 * 2 + 1152 * 2)
    backward = 2 * (2 * 384 * (5 + 2) + 1536 * 3 + 1152 * 2)
    assert values(pointwise_s(case(BYTES, GPT, flash))[:2]) == [forward, backward]
    dropout = (2 * 2 * 384 * 0.5, 2 * 2 * 384 * 2.5)
    assert values(pointwise_s(case(BYTES, GPT, fused))[:2]) == [forward + dropout[0], backward + dropout[1]]
    assert values(pointwise_s(case(LAUNCHES, GPT, fused))[:2]) == [5.0, 7.5]
    forward = 2 * (2 * 384 * (2 + 3) + 1536 * 5 + 768 * 8 + 1152 * 2)
    backward = 2 * (2 * 384 * (5 + 2) + 1536 * 8 + 768 * 8 + 1152 * 2)
    assert values(pointwise_s(case(BYTES, LLAMA, flash))[:2]) == [forward, backward]
    assert values(pointwise_s(case(LAUNCHES, LLAMA, flash))[:2]) == [12.0, 18.0]
    eager = layout(fused_norm=False)
    more = (2 * 2 * 384 * 16, 2 * 2 * 384 * 40)
    assert values(pointwise_s(case(BYTES, LLAMA, eager))[:2]) == [forward + more[0], backward + more[1]]
    assert values(pointwise_s(case(LAUNCHES, LLAMA, eager))[:2]) == [18.0, 27.0]
    assert values(pointwise_s(case(BYTES, GPT, eager))[:2]) == values(pointwise_s(case(BYTES, GPT, flash))[:2])
    # One of two layers is dense with 32 inner elements, the other has 2 experts and a shared one of 16.
    inner = 48 * (0.5 * 32 + 0.5 * 3 * 16)
    of_moe = 2 * (2 * 384 * (2 + 3) + inner * 5 + 768 * 8 + 1152 * 2)
    copies = 2 * 0.5 * 384 * (1 + 2 * (7 + 4))  # of half the layers' tokens two, sorted by expert and back
    assert values(pointwise_s(case(BYTES, MOE, flash))[:2])[0] == of_moe + copies
    spread = layout(dp=2, ep=2)
    assert values(pointwise_s(case(BYTES, MOE, spread))[:2])[0] == of_moe + copies
    # Two tensor ranks share heads and inner elements, with sequence parallelism the hidden state too.
    tp, sp = layout(tp=2), layout(tp=2, sequence_parallel=True)
    halves = [3840 + 7680 + 6144 + 2304, 5376 + 12288 + 6144 + 2304]
    assert values(pointwise_s(case(BYTES, LLAMA, sp))[:2]) == halves
    assert values(pointwise_s(case(BYTES, LLAMA, tp))[:2])[0] == 2 * 3840 + 7680 + 6144 + 2304


def test_norms_of_queries_and_keys_are_passed_over():
    """768 elements of queries and keys, a kernel for each; two tensor ranks share them."""
    normed = replace(LLAMA, qk_norm=True)
    for chosen, passes, kernels in (
        (layout(), (2, 5), 1),
        (layout(fused_norm=False), (18, 45), 7),
        (layout(tp=2), (1, 2.5), 1),
    ):
        plain, more = (values(pointwise_s(case(BYTES, m, chosen))[:2]) for m in (LLAMA, normed))
        assert [b - a for a, b in zip(plain, more, strict=True)] == [2 * 768 * n for n in passes]
        plain, more = (values(pointwise_s(case(LAUNCHES, m, chosen))[:2]) for m in (LLAMA, normed))
        assert [b - a for a, b in zip(plain, more, strict=True)] == [2 * kernels, 3 * kernels]


def test_an_odd_vocabulary_slows_the_heads_gradients():
    """250 logits of two bytes lie at multiples of 4. Forward both operands lie along 8 channels, 16 bytes."""
    of = accelerator(flops=1.0, aligned_fraction={"bytes_16": 0.5, "bytes_4": 0.25, "bytes_2": 0.125})
    one = 2 * 48 * 8 * 256
    for odd, back in ((False, 0.5), (True, 0.25)):
        chosen = replace(FRAMEWORK, odd_vocab=odd)
        cost = embedding_head_cost(case(of, LLAMA, layout(), framework=chosen))
        assert values([cost.head_forward_s, cost.head_backward_s]) == [one / 0.5, 2 * one / back]
        # 250 rows on two ranks are 125 each, of an odd number of bytes' pairs.
        cost = embedding_head_cost(case(of, LLAMA, layout(tp=2), framework=chosen))
        assert values([cost.head_backward_s]) == [one / (0.125 if odd else 0.5)]


# Bytes an element of queries on average over ranks, as `python benchmarks/oracle/sdpa_ring.py` prints them.
TRACED_COPIES = {2: (60.8, 164.5), 4: (142.3, 281.5), 8: (305.4, 515.6)}


@pytest.mark.parametrize("ranks", TRACED_COPIES)
def test_what_pytorchs_ring_of_attention_copies_is_as_traced(ranks):
    model = replace(LLAMA, seq_len=64)
    both = [
        values(pointwise_s(case(BYTES, model, layout(cp=ranks), framework=f))[:2])
        for f in (FRAMEWORK, replace(FRAMEWORK, sdpa_context=True))
    ]
    queries = 3 * 64 / ranks * model.num_heads * model.head_dim
    more = [(ring - plain) / queries for plain, ring in zip(*both, strict=True)]
    assert more == pytest.approx(TRACED_COPIES[ranks], rel=0.01)


def test_latent_attention_turns_a_part_of_its_channels():
    """Of 2 heads' queries 2 channels each and one key's 2, for 48 tokens; queries and keys of 6, values of 4 copied."""
    flash = layout()
    forward = 2 * (2 * 384 * (2 + 3) + 1536 * 5 + 48 * (2 * 2 + 2) * 8 + 48 * 2 * (6 + 6 + 4) * 2)
    assert values(pointwise_s(case(BYTES, MLA, flash)))[0] == forward


def test_fine_recomputation_repeats_norms_gates_and_products_up_from_latents():
    fine = layout(recompute=Recompute.FINE)
    of_moe = layer_cost(case(BYTES, MOE, fine)).recompute_s
    assert values([of_moe]) == [2 * (2 * 384 * 2 + 48 * 0.5 * 2 * 16 * 5)]
    of_latents = layer_cost(case(FLOP, MLA, fine)).recompute_s
    assert values([of_latents]) == [2 * 48 * (12 * 6 + 16 * 4)]
    moved = 2 * (2 * 384 * 2 + 48 * (2 * 2 + 2) * 8 + 48 * 2 * (6 + 6 + 4) * 2)
    by_memory = values([layer_cost(case(BYTES, MLA, fine)).recompute_s])[0]
    products = 2 * sum(48 * k + k * n + 48 * n for n, k in ((12, 6), (16, 4)))
    assert by_memory == moved + products
    # A dense GPT has no product to repeat.
    assert values([layer_cost(case(FLOP, GPT, fine)).recompute_s]) == [0.0]


@pytest.mark.parametrize("slices", [1, 2])
def test_a_layer_is_its_passes_times_the_slices(slices):
    costs = {}
    for mode in Recompute:
        chosen = layout(recompute=mode, sequence_slices=slices, attention=Attention.FUSED)
        costs[mode] = layer_cost(case(FLOP, GPT, chosen))
    none = costs[Recompute.NONE]
    assert values([none.forward_matmul_s, none.weight_grad_s]) == [73728.0, 73728.0]
    assert values([none.backward_matmul_s, none.recompute_s]) == [2 * 73728.0, 0.0]
    assert values([none.forward_attention_s, none.backward_attention_s]) == [24576.0, 2 * 24576.0]
    assert values([none.forward_s, none.backward_s]) == [73728 + 24576.0, 2 * (73728 + 24576.0)]
    assert values([costs[Recompute.SELECTIVE].recompute_s]) == [24576.0]
    assert values([costs[Recompute.FULL].recompute_s]) == [73728 + 24576.0]
    assert values([costs[Recompute.FULL].backward_s]) == [3 * (73728 + 24576.0)]
    moved = layout(sequence_slices=slices)
    cost = layer_cost(case(BYTES, GPT, moved))
    assert values([cost.forward_pointwise_s, cost.backward_pointwise_s]) == [18432.0, 24576.0]
    full = layout(sequence_slices=slices, recompute=Recompute.FULL)
    again = layer_cost(case(BYTES, GPT, full))
    assert values([again.recompute_s]) == values([again.forward_s])


def test_recomputation_that_stops_early_leaves_out_the_last_product_and_its_residual():
    """48 tokens through 32 x 8: 24,576 FLOP; three passes over 768 B. Not where dropout follows, nor after experts."""
    full = layout(recompute=Recompute.FULL)
    early = replace(FRAMEWORK, recompute_stops_early=True)

    def saved(accelerator, model, chosen=full):
        of = device(accelerator, chosen)
        whole, less = (layer_cost(case(of, model, chosen, framework=f)).recompute_s for f in (FRAMEWORK, early))
        return float((whole - less)[0])

    assert saved(FLOP, LLAMA) == saved(FLOP, GPT) == 2 * 48 * 32 * 8
    third = replace(early, whole_repeats_zero=3)
    again = [
        layer_cost(case(device(FLOP, x), LLAMA, x, framework=f)).recompute_s[0]
        for x in (layout(recompute=Recompute.FULL, dp=2, zero=stage) for stage in (2, 3)) for f in (early, third)
    ]  # fmt: skip
    assert again[0] == again[1] == again[2] == again[3] - 2 * 48 * 32 * 8
    assert saved(BYTES, LLAMA) == 3 * 2 * 48 * 8 + 2 * (48 * 32 + 32 * 8 + 48 * 8)  # and the product's operands
    assert saved(FLOP, LLAMA, layout(recompute=Recompute.FULL, sequence_slices=2)) == 2 * 48 * 32 * 8
    assert saved(FLOP, LLAMA, layout(recompute=Recompute.FULL, tp=2)) == 48 * 32 * 8
    assert saved(FLOP, GPT, layout(recompute=Recompute.FULL, attention=Attention.FUSED)) == 0.0
    assert saved(FLOP, MOE) == 2 * 48 * 32 * 8 / 2  # every other layer has experts
    quarter = accelerator(flops=1.0, aligned_fraction={"bytes_16": 1.0, "bytes_4": 1.0, "bytes_2": 0.25})
    assert saved(quarter, replace(LLAMA, ffn=31)) == 4 * 2 * 48 * 31 * 8  # rows of 62 bytes, at a quarter of the pace
    for mode in (Recompute.NONE, Recompute.SELECTIVE):
        assert saved(FLOP, LLAMA, layout(recompute=mode)) == 0.0
    names = ("fsdp", "megatron-core", "megatron-lm", "nanotron")
    assert [load_framework(name).recompute_stops_early for name in names] == [True, False, False, False]


def test_embedding_and_head():
    """384 hidden elements; 250 words are stored as 256 rows: 12,288 logits."""
    flash, fused = layout(), layout(attention=Attention.FUSED)
    cost = embedding_head_cost(case(BYTES, GPT, flash))
    product = 2 * (48 * 8 + 8 * 256 + 48 * 256)
    assert values([cost.embedding_forward_s, cost.embedding_backward_s]) == [384 * 4.0, 384 * 8.0]
    assert values([cost.head_forward_s, cost.head_backward_s]) == [product + 38 * 12288, 2 * product + 14 * 12288]
    fused_loss = replace(FRAMEWORK, entropy_forward_bytes=4.0, entropy_backward_bytes=6.0)
    cheap = embedding_head_cost(case(BYTES, GPT, flash, framework=fused_loss))
    assert values([cheap.head_forward_s, cheap.head_backward_s]) == [product + 4 * 12288, 2 * product + 6 * 12288]
    dropped = embedding_head_cost(case(BYTES, GPT, fused))
    assert values([dropped.embedding_forward_s, dropped.embedding_backward_s]) == [384 * 8.0, 384 * 10.0]
    launched = embedding_head_cost(case(LAUNCHES, GPT, flash))
    assert values([launched.embedding_forward_s, launched.embedding_backward_s]) == [3.0, 3.0]
    assert values([launched.head_forward_s, launched.head_backward_s]) == [7.0, 5.0]
    split = layout(tp=2, sequence_slices=2)
    computed = embedding_head_cost(case(FLOP, GPT, split))
    assert values([computed.head_forward_s, computed.head_backward_s]) == [2 * 48 * 8 * 128, 2 * 2 * 48 * 8 * 128]
    twice = embedding_head_cost(case(LAUNCHES, GPT, split))
    assert values([twice.embedding_forward_s, twice.head_backward_s]) == [6.0, 10.0]


def test_a_head_whose_logits_every_tensor_rank_gathers():
    """The product is a half, the cross-entropy of all 12,288 logits, which are copied side by side: 4 bytes each."""
    gathers = replace(FRAMEWORK, gathered_logits=True)
    split = layout(tp=2)
    cost = embedding_head_cost(case(BYTES, GPT, split, framework=gathers))
    product = 2 * (48 * 8 + 8 * 128 + 48 * 128)
    copied = 4 * 12288
    assert values([cost.head_forward_s]) == [product + copied + 38 * 12288]
    assert values([cost.head_backward_s]) == [2 * product + 14 * 12288]
    alone, plain = (embedding_head_cost(case(BYTES, GPT, layout(), framework=f)) for f in (gathers, FRAMEWORK))
    assert values([alone.head_forward_s]) == values([plain.head_forward_s])
    # Full recomputation that counts the head as a layer repeats product and copy, not the loss.
    full = layout(tp=2, recompute=Recompute.FULL)
    again = embedding_head_cost(case(BYTES, GPT, full, framework=replace(gathers, recomputed_head=True)))
    assert values([again.head_backward_s]) == [3 * product + copied + 14 * 12288]
    assert values([embedding_head_cost(case(BYTES, GPT, full, framework=gathers)).head_backward_s]) == [
        2 * product + 14 * 12288
    ]


def test_the_head_stays_in_16_bits():
    """fp8 at twice the rate of bf16: 2 x 48 x 8 x 256 FLOP at 1 FLOP/s, operands of two bytes."""
    twice = replace(FLOP, peak_flops=FLOP.peak_flops | {"fp8": 2.0})
    for of in (twice, BYTES):
        fp8, bf16 = (embedding_head_cost(case(of, GPT, x)) for x in (layout(precision=Precision.FP8), layout()))
        assert values([fp8.head_forward_s, fp8.head_backward_s]) == values([bf16.head_forward_s, bf16.head_backward_s])
    assert values([fp8.head_forward_s]) == [2 * (48 * 8 + 8 * 256 + 48 * 256) + 38 * 12288]


def test_the_optimizer_by_its_bytes():
    """25 of 100 parameters are updated here, at 46 bytes; 100 gradients of 4 bytes are passed over three times."""
    slow = replace(FRAMEWORK, host_step_s=7.0)
    own = RankParameters(layers=np.array([100.0]), experts=np.zeros(1), ends=np.zeros(1))

    def seconds(**choices):
        chosen = layout(dp=4, zero=1, **choices)
        return float(optimizer_s(case(of=BYTES, layouts=chosen, framework=slow), own)[0])

    assert seconds() == 25 * 46 + 3 * 100 * 4 + 7
    assert seconds(precision=Precision.FP16) == 25 * 46 + 3 * 100 * 2 + 7
    # Gradients out and 16-bit parameters in, over a host link that achieves 1 B/s; clipped here, updated at 30 bytes by
    # a host that gives each of 4 GPUs half of a fourth of its 8 B/s.
    host = 25 * (4 + 2) + 25 * 16 + 25 * 30
    assert seconds(offload_optimizer=True) == host + 3 * 100 * 4 + 7
    assert seconds(offload_optimizer=True, offload_fraction=0.25) == 0.25 * host + 0.75 * 25 * 46 + 3 * 100 * 4 + 7
    assert seconds(offload_fraction=0.25) == seconds()  # a share of what isn't offloaded


def test_adam_operation_by_operation_moves_more_where_it_runs():
    """25 of 100 parameters at 52 bytes more, half of that in bf16; none by a host's own kernel, nor another's."""
    own = RankParameters(layers=np.array([100.0]), experts=np.zeros(1), ends=np.zeros(1))

    def more(**choices):
        chosen = layout(dp=4, zero=1, **choices)
        both = [replace(FRAMEWORK, apart_update_bytes=bytes_) for bytes_ in (0.0, 52.0)]
        one, apart = (float(optimizer_s(case(BYTES, layouts=chosen, framework=f), own)[0]) for f in both)
        return apart - one

    assert more() == pytest.approx(25 * 52)
    assert more(main_dtype=MainDtype.BF16) == pytest.approx(25 * 26)
    assert more(offload_optimizer=True, offload_fraction=0.25) == pytest.approx(0.75 * 25 * 52)
    assert more(offload_optimizer=True) == more(optimizer=OptimizerKind.SGD) == 0.0


def test_gradients_that_wait_on_the_host_cross_its_link_with_every_micro_batch():
    """25 of 100 parameters: 4 bytes of each go there three times and come back twice; 2 of the update come back.

    Nothing of the update crosses where the parameters lie there too: chosen, or where there are fp32 shards alone.
    """
    own = RankParameters(layers=np.array([100.0]), experts=np.zeros(1), ends=np.zeros(1))
    chosen = layout(dp=4, zero=3, micro_batch=1, global_batch=12, offload_optimizer=True)

    def seconds(**figures):
        waits = replace(FRAMEWORK, host_fp32_gradients_zero=3.0, host_gradients_zero=3.0, **figures)
        return float(optimizer_s(case(of=BYTES, layouts=chosen, framework=waits), own)[0])

    assert seconds() == 25 * (4 * 5 + 2) + 25 * 16 + 25 * 30
    assert seconds(one_sharded_copy=True) == 25 * (4 * 5) + 25 * 16 + 25 * 30
    chosen = replace(chosen, offload_parameters=np.array([True]))
    assert seconds() == 25 * (4 * 5) + 25 * 16 + 25 * 30
    # Updated here, at 46 bytes; then 2 go there.
    chosen = replace(chosen, offload_optimizer=np.array([False]))
    assert seconds() == 25 * (46 + 2) + 3 * 25 * 4


def test_costs_of_a_table_are_those_of_its_rows():
    choices = [{"tp": 2}, {"cp": 2}, {"recompute": Recompute.FULL}, {"attention": Attention.FUSED}]
    rows = [layout(**c) for c in choices]
    table = Layouts.concatenate(rows)
    together = layer_cost(case(BYTES, GPT, table)).backward_s
    assert together.tolist() == [float(layer_cost(case(BYTES, GPT, r)).backward_s[0]) for r in rows]


def test_shares_of_slices():
    """A token costs 2 layers of 8 x 64 + 6 x 8 x 32 FLOP and 4 x 8 x 250; attention 2 x (16 + 3) x 2 a token before."""
    linear, per_token = 2 * (8 * 64 + 6 * 8 * 32) + 4 * 8 * 250, 2 * 19 * 2
    first, second = 12 * (12 * per_token / 2 + linear), 4 * (16 * per_token - 4 * per_token / 2 + linear)
    shares = slice_shares(LLAMA, [12, 4])
    assert shares.tolist() == pytest.approx([first / (first + second), second / (first + second)])
    even = slice_shares(LLAMA, even_slices(16, 4))
    assert even.sum() == pytest.approx(1.0)
    assert np.all(np.diff(even) > 0)


def test_a_token_in_a_window_costs_slices_no_more_than_the_window():
    """Windowed layers of 4 tokens: of 12 tokens the first 8 have 8 x 8 / 2 - 4 x 4 / 2 pairs, the last 4 each 4."""
    windowed = replace(LLAMA, num_window_layers=2, window=4)
    linear, per_pair = 2 * (8 * 64 + 6 * 8 * 32) + 4 * 8 * 250, 2 * 19 * 2
    work = np.array([8 * linear + 24 * per_pair, 4 * linear + 16 * per_pair])
    assert slice_shares(windowed, [8, 4]).tolist() == pytest.approx((work / work.sum()).tolist())


def test_slices_of_a_mixture_cost_the_experts_a_token_meets():
    """Two of eight experts of 32 are an MLP of 64, with a router's 2 x 8 x 8 FLOP per layer."""
    sparse = replace(LLAMA, num_experts=8, top_k=2, moe_ffn=32, num_dense_layers=0)
    linear, per_pair = 2 * (8 * 64 + 6 * 8 * 64 + 2 * 8 * 8) + 4 * 8 * 250, 2 * 19 * 2
    work = np.array([8 * linear + 32 * per_pair, 8 * linear + 96 * per_pair])
    assert slice_shares(sparse, even_slices(16, 2)).tolist() == pytest.approx((work / work.sum()).tolist())


def test_adding_up_gradients_of_micro_batches():
    """Of two micro-batches the second adds 6 B a parameter of 100 in fp16, 10 B in bf16; a table has 256 x 8."""
    adding = replace(FRAMEWORK, accumulate_bytes=6.0, bf16_accumulate_bytes=10.0)

    def more(model=GPT, framework=adding, apart=False, **choices):
        chosen = layout(**choices)
        here = case(BYTES, model, chosen, framework=framework)
        costs = layer_cost(here), embedding_head_cost(here)
        found = with_accumulation(here, np.array([100.0]), *costs, apart)
        fields = ("backward_pointwise_s",), ("embedding_backward_s", "head_backward_s")
        pairs = [(a, b, f) for a, b, names in zip(found, costs, fields, strict=True) for f in names]
        return values([getattr(a, f) - getattr(b, f) for a, b, f in pairs])

    assert more() == [100 * 10 / 2, 0.0, 2048 * 10 / 2]  # tied: one table
    assert more(pp=2) == more()  # a V: both on the first rank
    assert more(pp=2, apart=True) == more(LLAMA) == [500.0, 10240.0, 10240.0]
    assert more(precision=Precision.FP16) == [300.0, 0.0, 6144.0]
    assert more(dp=2, zero=1) == [500.0, 0.0, 10240.0]
    assert more(dp=2, zero=3) == [250.0, 0.0, 5120.0]
    assert more(micro_batch=6) == more(framework=FRAMEWORK) == [0.0, 0.0, 0.0]  # one micro-batch
