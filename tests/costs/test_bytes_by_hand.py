"""Bytes of parameters, gradients, optimizer state, activations and buffers, worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from planner.base import records
from planner.costs.memory.rank import (
    Activations,
    Memory,
    activations,
    embedding_bytes,
    rank_memory,
    weight_grad_share,
)
from planner.costs.memory.saved_activations import attention_core_bytes, saved_bytes, score_gradient_bytes
from planner.costs.optimizer import offloaded_bytes
from planner.costs.parameters import RankParts
from planner.hardware import load_framework
from planner.layouts import Attention, GradDtype, Precision, Recompute
from planner.models.counts import expert_params, total_params
from planner.models.mix import sparse_layers
from tests.costs.toy import BYTES, FRAMEWORK, GPT, HYBRID, LLAMA, MLA, MOE, case, device, layer_bytes, layout

FUSED, UNFUSED = Attention.FUSED, Attention.UNFUSED


def one(f, model, **choices):
    chosen = layout(**choices)
    return float(np.ravel(f(case(BYTES, model, chosen)))[0])


def parameters(model, layers, first, last, **choices):
    own = RankParts(model=model, layouts=layout(**choices)).rank(layers, first, last)
    return float(own.dense[0]), float(own.experts[0])


def test_parameters_of_a_rank():
    """A layer: 256 and 32 of attention, 512 and 40 of the MLP, 32 of norms; a table of 256 rows, 16 positions."""
    layer, table, positions = 256 + 32 + 512 + 40 + 32, 256 * 8, 16 * 8
    assert parameters(GPT, 2, True, True) == (2 * layer + table + positions + 16, 0)  # tied: one table
    assert parameters(GPT, 1, True, False) == (layer + table + positions, 0)
    assert parameters(GPT, 1, False, True) == (layer + table + 16, 0)  # the head's own copy
    assert parameters(replace(GPT, tied=False), 2, True, True) == (2 * layer + 2 * table + positions + 16, 0)
    assert parameters(replace(GPT, embedding_norm=True), 1, True, False) == (layer + table + positions + 16, 0)
    assert parameters(LLAMA, 0, False, True) == (table + 8, 0)  # its norms have no bias
    assert RankParts(model=GPT, layouts=layout()).rank(2, True, False).total.tolist() == [2 * layer + table + positions]


def test_parameters_that_tensor_ranks_hold_whole():
    """Of two: norms, biases of what they sum, positions; products down to latents; a key and value head each."""
    split, whole = 256 + 24 + 512 + 32, 8 + 8 + 32
    assert parameters(GPT, 2, True, False, tp=2) == (2 * (split / 2 + whole) + 2048 / 2 + 128, 0)
    assert parameters(GPT, 1, False, True, tp=2) == (split / 2 + whole + 2048 / 2 + 16, 0)
    assert parameters(replace(GPT, qk_norm=True), 1, False, False, tp=2) == (split / 2 + whole + 8, 0)
    # One key and one value head of 4 by 8 for two ranks, of four queries' and outputs' 32 two each.
    assert parameters(replace(LLAMA, num_kv_heads=1), 1, False, False, tp=2) == (128 / 2 + 64 + 768 / 2 + 16, 0)
    # Down to latents of 6, and of 4 and 2 of the rotary key, with their norms; up to heads of 6, 4 and 4; out.
    down, up, out = 8 * 6 + 6 + 8 * (4 + 2) + 4, 6 * 2 * 6 + 4 * 2 * (4 + 4), 2 * 4 * 8
    assert parameters(MLA, 1, False, False) == (down + up + out + 768 + 16, 0)
    assert parameters(MLA, 1, False, False, tp=2) == (down + (up + out + 768) / 2 + 16, 0)
    # A state-space layer's norm, and an MLP's: 8 each.
    alone, two = (parameters(HYBRID, 2, False, False, tp=tp)[0] for tp in (1, 2))
    assert two == (alone - 16) / 2 + 16


def test_parameters_of_experts():
    """Of two layers one is dense: 256 + 768 + 16; the other 4 experts of 384, a shared one, a router of 32."""
    dense, around, expert = 256 + 768 + 16, 256 + 384 + 32 + 16, 3 * 8 * 16
    assert parameters(MOE, 2, False, False) == (dense + around, 4 * expert)
    assert parameters(MOE, 2, False, False, dp=2, ep=2) == (dense + around, 2 * expert)
    whole = 2 * 16 + 32  # norms and the router
    assert parameters(MOE, 2, False, False, tp=2) == ((dense + around - whole) / 2 + whole, 2 * expert)
    total = RankParts(model=MOE, layouts=layout()).rank(2, False, False).total
    assert float(total[0]) == dense + around + 4 * expert


def test_the_rank_with_most_parameters_layout_by_layout():
    ranks = [
        RankParts(model=MOE, layouts=layout()).rank(np.array(n), False, last)
        for n, last in (([2.0, 6.0], 0.0), (2.0, 1.0))
    ]
    most = records.largest(ranks, lambda rank: rank.total)
    assert most.layers.tolist() == [1728, 3 * 1728]
    assert most.ends.tolist() == [2048 + 8, 0]
    assert most.expert_share.tolist() == [1536 / (1536 + 1728 + 2056), 1536 / (1536 + 1728)]


def test_what_a_layer_saves():
    """48 tokens of 8: norms' and products' inputs 8 B each; queries, keys, values, outputs 32; inner 2 x 32."""
    hidden, heads, mlp = 384 * 8, 48 * 32 * 2, 48 * 64 * 2
    assert one(layer_bytes, GPT) == hidden + heads + mlp
    assert one(layer_bytes, GPT, tp=2) == hidden + (heads + mlp) / 2
    assert one(layer_bytes, GPT, tp=2, sequence_parallel=True) == (hidden + heads + mlp) / 2
    assert one(layer_bytes, GPT, cp=2) == (hidden + heads + mlp) / 2
    assert one(layer_bytes, GPT, attention=FUSED) == hidden + heads + mlp + 2 * 384
    assert one(layer_bytes, GPT, precision=Precision.FP32) == 2 * (hidden + heads + mlp)
    assert one(layer_bytes, LLAMA) == hidden + heads + 2 * mlp  # gate, up, their product's input
    assert one(layer_bytes, LLAMA, fused_norm=False) == 384 * 24 + heads + 2 * mlp
    assert one(layer_bytes, GPT, fused_norm=False) == hidden + heads + mlp  # a LayerNorm is fused anyway
    grouped = replace(LLAMA, num_kv_heads=1)
    assert one(layer_bytes, grouped) == hidden + 48 * 24 * 2 + 2 * mlp
    assert one(layer_bytes, grouped, tp=2) == hidden + (heads + 2 * mlp) / 2  # a copy a rank
    # Half the layers are dense with 32, half have 2 routed experts and a shared one of 16, with inputs and outputs.
    of_experts = 48 * 8 * (0.5 * 32 + (0.5 * 2 + 0.5) * 16) + 48 * 1.0 * 8 * 2 * 2
    assert one(layer_bytes, MOE) == hidden + heads + of_experts
    # Queries and keys of 6 for 2 heads, values and outputs of 4, latents of 6 and 4.
    latent = 48 * 2 * (2 * 2 * 6 + 2 * 4 + 2 * 4) + 48 * 2 * (6 + 4)
    assert one(layer_bytes, MLA) == hidden + latent + 2 * mlp


def test_what_a_layer_saves_in_fp8():
    """Products keep their inputs in one byte: of the norms, of the MLP's second, and a copy of attention's output."""
    fp8 = {"precision": Precision.FP8}
    out, inner = 48 * 8 * 1, 48 * 32
    assert one(layer_bytes, GPT, **fp8) == 384 * 6 + 48 * 32 * 2 + out + inner * 3
    assert one(layer_bytes, GPT, tp=2, **fp8) == 384 * 6 + (48 * 32 * 2 + out + inner * 3) / 2
    assert one(layer_bytes, LLAMA, **fp8) == 384 * 6 + 48 * 32 * 2 + out + inner * 7
    # Half the layers are sparse, whose router reads 16 bits; an expert's input is one byte, its output two.
    of_experts = 48 * 7 * (0.5 * 32 + (0.5 * 2 + 0.5) * 16) + 48 * 1.0 * 8 * (1 + 2)
    assert one(layer_bytes, MOE, **fp8) == 384 * 6.5 + 48 * 32 * 2 + out + of_experts
    # Two products read latent attention's input.
    latent = 48 * 2 * (2 * 2 * 6 + 2 * 4 + 2 * 4) + 48 * 2 * (6 + 4) + 48 * 2 * 4
    assert one(layer_bytes, MLA, **fp8) == 384 * 7 + latent + inner * 7


def test_what_attention_saves():
    """1,536 scores: softmax in 16 bits, dropout's output and mask; unfused an fp32 softmax and the mask as well."""
    assert one(attention_core_bytes, GPT, attention=FUSED) == 1536 * (2 + 2 + 1)
    assert one(attention_core_bytes, LLAMA, attention=FUSED) == 1536 * 2
    assert one(attention_core_bytes, GPT, attention=UNFUSED) == 1536 * (2 + 4 + 1 + 2 + 1)
    assert one(attention_core_bytes, LLAMA, attention=UNFUSED) == 1536 * (2 + 4 + 1)
    assert one(attention_core_bytes, GPT, attention=FUSED, precision=Precision.FP32) == 1536 * (4 + 4 + 1)
    # A 4-byte sum a token and head.
    assert one(attention_core_bytes, GPT) == 48 * 2 * 4
    assert one(attention_core_bytes, GPT, attention=Attention.FLASH1, tp=2) == 48 * 4


def test_gradients_of_scores():
    """1,536 scores: overwritten in place by a fused softmax, in fp32 twice besides by an eager one, none by flash."""
    assert one(score_gradient_bytes, GPT, attention=FUSED) == 1536 * 2
    assert one(score_gradient_bytes, GPT, attention=UNFUSED) == 1536 * (2 + 8)
    assert one(score_gradient_bytes, GPT, attention=FUSED, tp=2) == 768 * 2
    assert one(score_gradient_bytes, GPT) == 0.0
    # The MLP's gradients, 2 x 48 x 32 elements, are gone by then: the larger counts.
    assert float(held(attention=FUSED).working[0]) == float(held().working[0])
    assert float(held(attention=UNFUSED).working[0]) == float(held().working[0]) + 1536 * 10 - 3072 * 2


def test_what_recomputation_keeps():
    def kept(**choices):
        chosen = layout(**choices)
        return [float(x[0]) for x in saved_bytes(case(BYTES, GPT, chosen))]

    layer, core, with_dropout = 12288.0, 1536 * 5.0, 12288.0 + 768
    assert kept() == [layer + 384, 0.0]
    assert kept(attention=FUSED) == [with_dropout + core, 0.0]
    assert kept(attention=FUSED, recompute=Recompute.SELECTIVE) == [with_dropout, core]
    assert kept(recompute=Recompute.SELECTIVE) == [layer + 384, 0.0]  # flash recomputes by itself, in its blocks
    # The input, 48 x 8 elements, stays: the layer that is made again from it saves that same tensor.
    assert kept(attention=FUSED, recompute=Recompute.FULL) == [768.0, with_dropout + core - 768.0]
    assert kept(recompute=Recompute.FULL, sequence_slices=2) == [768.0, (layer + 384 - 768.0) / 2]
    assert kept(recompute=Recompute.FULL, tp=2, sequence_parallel=True)[0] == 384.0
    # Fine: the inputs of two products; of latent attention queries and keys of 6 for 2 heads, values of 4, too.
    fine = layout(recompute=Recompute.FINE)
    dropped = {MLA: 2 * 768 + 48 * 2 * 2 * (6 + 6 + 4), MOE: 2 * 768 + 48 * 2 * 0.5 * 2 * 16}
    for model, less in dropped.items():
        whole, least = (saved_bytes(case(BYTES, model, x)) for x in (layout(), fine))
        assert float(whole[0][0]) - float(least[0][0]) == less == float(least[1][0])
    assert one(embedding_bytes, GPT) == 768.0
    assert one(embedding_bytes, GPT, attention=FUSED) == 768.0 * 1.5
    assert one(embedding_bytes, GPT, tp=2, sequence_parallel=True) == 384.0


def test_what_a_split_backward_keeps():
    """Qi et al. 2023, section 2.2: 32 b s h bytes a GPT layer; sequence parallelism keeps operands in shards."""
    assert one(weight_grad_share, GPT) == pytest.approx(32 * 48 * 8 / (12288 + 384))
    # Two ranks: 12 + 8, 8 + 4, 16 + 8, 8 + 16 elements a token, of which four operands of 8 are halved.
    sharded = 48 * 2 * (80 - 4 * 8 / 2)
    assert one(weight_grad_share, GPT, tp=2, sequence_parallel=True) == pytest.approx(sharded / (6144 + 192))
    # MLA: 12 + 6, 6 + 8, 6 + 8, 16 + 4, 8 + 8, and 64 + 8, 8 + 32 of the gated MLP; two products start from latents.
    assert one(weight_grad_share, MLA) * one(kept_bytes, MLA) == pytest.approx(48 * 2 * (18 + 14 + 14 + 20 + 16 + 112))
    halves = (6 + 6) + (6 + 8) + (6 + 8) + (8 + 4) + (8 + 4) + (32 + 8) + (8 + 16)  # on two ranks
    of_hidden = 7 - 2  # products with an operand of hidden size: all but the two up from the latents
    two = one(weight_grad_share, MLA, tp=2, sequence_parallel=True)
    expected = 48 * 2 * (halves - of_hidden * 8 / 2)
    assert two * one(kept_bytes, MLA, tp=2, sequence_parallel=True) == pytest.approx(expected)


def kept_bytes(here):
    return saved_bytes(here)[0]


def held(model=GPT, framework=FRAMEWORK, **choices):
    chosen = layout(**choices)
    return activations(case(BYTES, model, chosen, framework=framework))


def test_what_one_micro_batch_makes_a_rank_hold():
    """12,288 logits in 2 bytes and two fp32 copies; gradients of 32 inner elements and of the hidden state."""
    base = held()
    assert [float(x[0]) for x in (base.layer, base.embedding, base.logits)] == [12672.0, 768.0, 12288 * 10.0]
    assert float(base.working[0]) == 2 * 48 * 32 * 2 + 2 * 768
    assert float(base.keys_values[0]) == 0.0
    assert float(held(tp=2).logits[0]) == 12288 * 5.0
    whole = replace(FRAMEWORK, gathered_logits=True)
    assert float(held(framework=whole, tp=2).logits[0]) == 12288 * 10.0
    assert float(held(tp=2).working[0]) == 48 * 32 * 2 + 2 * 768
    assert float(held(tp=2, sequence_parallel=True).working[0]) == 48 * 32 * 2 + 3 * 768
    assert float(held(sequence_parallel=True).working[0]) == float(base.working[0])
    assert float(held(recompute=Recompute.FULL).working[0]) == 12672 - 768 + 2 * 48 * 32 * 2 + 2 * 768
    sliced = held(sequence_slices=2)
    assert float(sliced.logits[0]) == 12288 * 5.0
    assert float(sliced.working[0]) == 48 * 32 * 2 + 768
    assert float(sliced.keys_values[0]) == 2 * 48 * 8 * 2
    assert float(held(replace(LLAMA, num_kv_heads=1), sequence_slices=2, tp=2).keys_values[0]) == 2 * 48 * 4 * 2
    assert float(held(MOE).working[0]) == 2 * 48 * 32 * 2 + 2 * 768
    assert float(held(replace(MOE, moe_ffn=40)).working[0]) == 2 * 48 * 80 * 2 + 2 * 768


def memory(model=GPT, framework=FRAMEWORK, layers=2.0, in_flight=3.0, first=True, last=True, more=None, **choices):
    chosen = layout(**choices)
    return rank_memory(
        case(BYTES, model, chosen, framework=framework), layers=np.array([layers]), in_flight=np.array([in_flight]),
        first=np.array([first]), last=np.array([last]), **(more or {}),
    )  # fmt: skip


PARAMS = 2 * 872 + 2048 + 128 + 16


@pytest.mark.parametrize(("zero", "shards"), [(0, (1, 1, 1)), (1, (1, 1, 8)), (2, (1, 8, 8)), (3, (8, 8, 8))])
def test_zero_shards_states_stage_by_stage(zero, shards):
    """Rajbhandari et al. 2020, section 3.1: 2 bytes of parameter, a gradient, 12 of optimizer; over dp x cp ranks."""
    m = memory(zero=zero, dp=4, cp=2)
    parameter, gradient, optimizer = shards
    assert float(m.parameters_bytes[0]) == PARAMS * 2 / parameter
    assert float(m.gradients_bytes[0]) == PARAMS * 4 / gradient
    assert float(m.optimizer_bytes[0]) == PARAMS * 12 / optimizer
    # ZeRO-2 and 3: the gradient of the ends, more than a layer's; ZeRO-3: two gathered layers and the ends.
    unscattered = (PARAMS - 2 * 872) * 4 if zero >= 2 else 0
    base = float(held(cp=2, dp=4).working[0])
    assert float(m.buffers_bytes[0]) == base + unscattered + (PARAMS * 2 if zero == 3 else 0)


def test_what_is_whole_while_it_is_at_work():
    """Layers of 872: ZeRO-2 and 3 hold the gradient of one, ZeRO-3 two gathered ones; or a chunk and the next."""

    def more(zero, at_once=1.0, model=GPT, layers=6.0, **choices):
        rank = {"model": model, "layers": layers, "first": False, "last": False, "dp": 2, **choices}
        whole, sharded = (memory(zero=z, more={"at_once": at_once}, **rank).buffers_bytes for z in (0, zero))
        return float((sharded - whole)[0])

    assert [more(zero) for zero in (1, 2, 3)] == [0, 872 * 4, 872 * (4 + 2 * 2)]
    assert [more(zero, at_once=3.0) for zero in (2, 3)] == [3 * 872 * 4, 3 * 872 * (4 + 2 * 2)]
    assert more(3, layers=1.0) == 872 * (4 + 2)  # there is no second layer
    half = replace(FRAMEWORK, bf16_grad_reduce_bytes=2.0, bf16_scattered_bytes=2.0)
    assert [more(zero, framework=half) for zero in (2, 3)] == [872 * 2, 872 * (2 + 2 * 2)]
    # DeepSpeed holds so many parameters and gradients at most, or its largest matrix, 8 x 32.
    limited = replace(FRAMEWORK, live_parameters=1000, reduce_bucket_parameters=300)
    assert [more(zero, framework=limited) for zero in (2, 3)] == [300 * 4, 300 * 4 + 1000 * 2]
    least = replace(FRAMEWORK, live_parameters=1, reduce_bucket_parameters=1)
    assert more(3, framework=least) == 256 * (4 + 2)
    assert more(3, framework=least, tp=2) == 128 * (4 + 2)
    # Or has two buffers of so many in 16 bits, ZeRO 3 one, beside the gradient of one matrix.
    buffers = replace(FRAMEWORK, reduce_bucket_parameters=300, reduce_buffers=2)
    both = [2 * 300 * 2 + 256 * 4, 300 * 2 + 256 * 4 + 872 * 2 * 2]
    assert [more(zero, framework=buffers) for zero in (2, 3)] == both
    # The average layer of a mixture: half of 1,040 + 688, and half of four experts of 384, two of them on a rank.
    assert more(3, model=MOE) == (864 + 768) * (4 + 2 * 2)
    assert more(3, model=MOE, ep=2) == (864 + 384) * (4 + 2 * 2)


def test_states_by_precision_copy_and_version():
    wide = memory(precision=Precision.FP32)
    assert [float(x[0]) for x in (wide.parameters_bytes, wide.gradients_bytes, wide.optimizer_bytes)] == [
        PARAMS * 4, PARAMS * 4, PARAMS * 8,
    ]  # fmt: skip
    half = memory(precision=Precision.FP16, framework=replace(FRAMEWORK, update_bytes=4.0))
    assert [float(x[0]) for x in (half.gradients_bytes, half.optimizer_bytes)] == [PARAMS * 2, PARAMS * 16]
    assert float(memory(offload_optimizer=True).optimizer_bytes[0]) == 0.0
    more = memory(more={"copies": np.array([2]), "versions": np.array([3])})
    assert [float(x[0]) for x in (more.parameters_bytes, more.gradients_bytes, more.optimizer_bytes)] == [
        PARAMS * 2 * 2 * 3, PARAMS * 4 * 2, PARAMS * 12 * 2,
    ]  # fmt: skip


DEEPSPEED, FSDP, CORE = (load_framework(name) for name in ("megatron-deepspeed", "fsdp", "megatron-core"))
BF16, FP32 = GradDtype.BF16, GradDtype.FP32


@pytest.mark.parametrize(
    ("choices", "parameters", "gradients", "states"),
    [
        # bf16 that adds up in fp32. BF16_Optimizer: a 16-bit gradient beside the sum, which its update reads.
        ({"zero": 0}, 2, 6, 12), ({"zero": 1}, 2, 6, 3), ({"zero": 2}, 2, 1, 3), ({"zero": 3}, 0.5, 1, 3),
        # 16 bits: the update casts a shard to fp32. estimate_zero2_model_states_mem_needs: 2 P + 18 P / N.
        ({"zero": 1, "grad_dtype": BF16}, 2, 2, 4), ({"zero": 2, "grad_dtype": BF16}, 2, 0.5, 4),
        ({"zero": 3, "grad_dtype": BF16}, 0.5, 0.5, 4), ({"zero": 2, "precision": Precision.FP16}, 2, 0.5, 4),
        ({"zero": 1, "precision": Precision.FP16, "grad_dtype": FP32}, 2, 4, 3),
        ({"zero": 3, "precision": Precision.FP16, "grad_dtype": FP32}, 0.5, 1, 3),
        # Offloaded: the sums of ZeRO 3, and those of ZeRO 2 in 16 bits.
        ({"zero": 1, "offload_optimizer": True}, 2, 4, 0), ({"zero": 2, "offload_optimizer": True}, 2, 1, 0),
        ({"zero": 2, "grad_dtype": BF16, "offload_optimizer": True}, 2, 0, 0),
        ({"zero": 2, "precision": Precision.FP16, "offload_optimizer": True}, 2, 0, 0),
        ({"zero": 3, "offload_optimizer": True}, 0.5, 0, 0),
        ({"zero": 3, "offload_optimizer": True, "offload_fraction": 0.75}, 0.5, 0.25, 0.75),
    ],
)  # fmt: skip
def test_deepspeeds_states_are_those_of_its_sources(choices, parameters, gradients, states):
    """Bytes per parameter of four ranks; deepspeed 0.19.8: engine, bf16_optimizer, stage_1_and_2, stage3."""
    m = memory(framework=DEEPSPEED, dp=4, **choices)
    each = (m.parameters_bytes, m.gradients_bytes, m.optimizer_bytes)
    assert [float(x[0]) for x in each] == [PARAMS * n for n in (parameters, gradients, states)]


def test_an_update_of_zero_3_casts_so_many_parameters_at_a_time():
    few = replace(DEEPSPEED, update_parameters=100.0)
    states = [memory(framework=few, dp=4, grad_dtype=BF16, zero=zero).optimizer_bytes[0] for zero in (2, 3)]
    assert states == [PARAMS * 4, PARAMS * 3 + 4 * 100]


def test_a_table_is_added_to_its_fp32_sum_through_a_copy():
    """2,048 parameters and 128 of positions, in fp32; not where the sum is a shard's."""
    plain = replace(DEEPSPEED, kept_pass_gradient_bytes=0.0)

    def copied(zero):
        own, less = (memory(framework=f, dp=4, zero=zero).buffers_bytes[0] for f in (DEEPSPEED, plain))
        return own - less

    assert (copied(1), copied(2)) == (4 * (2048 + 128 + 16), 0)


def test_what_pytorchs_fsdp_and_megatron_core_leave_on_the_accelerator():
    """CPUOffloadPolicy takes shards and gradients along, in fp32 too; HybridDeviceOptimizer copies gradients."""

    def left(framework, **choices):
        m = memory(framework=framework, dp=4, offload_optimizer=True, **choices)
        return [float(x[0]) / PARAMS for x in (m.parameters_bytes, m.gradients_bytes, m.optimizer_bytes)]

    wide = {"precision": Precision.FP32}
    assert left(FSDP, zero=3) == left(FSDP, zero=3, **wide) == [0, 0, 0]
    assert left(FSDP, zero=2) == [2, 0, 0]
    assert left(FSDP, zero=2, **wide) == [4, 0, 0]
    assert left(CORE, zero=1) == [2, 4, 0]


def test_offloaded_states_of_a_job():
    """16 bytes of every parameter once where ZeRO shards them, else once a replica; experts have fewer replicas."""

    def held(model=GPT, **choices):
        chosen = layout(**{"offload_optimizer": True, "global_batch": 8, "zero": 0} | choices)
        return float(offloaded_bytes(model, chosen, 1)[0])

    params = int(total_params(GPT))
    assert held() == held(tp=2) == held(dp=4, zero=1) == held(precision=Precision.FP32) == 16 * params
    assert held(dp=4) == 4 * 16 * params
    assert float(offloaded_bytes(GPT, layout(), 1)[0]) == 0.0
    experts = int(sparse_layers(MOE) * MOE.num_experts * expert_params(MOE))
    whole = 16 * int(total_params(MOE))
    assert held(MOE, dp=2) == 2 * whole
    assert held(MOE, dp=2, ep=2) == 2 * whole - 16 * experts


def test_experts_are_sharded_over_their_own_replicas():
    """dp 4 and ep 2: each expert has two replicas, so its state is halved where the rest is quartered."""
    plain = memory(model=MOE, zero=0)
    both = RankParts(model=MOE, layouts=layout()).rank(2.0, True, True).total
    assert plain.parameters_bytes.tolist() == (2 * both).tolist()
    assert plain.optimizer_bytes.tolist() == (12 * both).tolist()
    m = memory(model=MOE, zero=1, dp=4, ep=2)
    own = RankParts(model=MOE, layouts=layout(dp=4, ep=2)).rank(2.0, True, True)
    assert float(m.optimizer_bytes[0]) == float(own.dense[0]) * 12 / 4 + float(own.experts[0]) * 12 / 2


def test_activations_logits_buffers_and_what_is_on_top():
    m = memory()
    assert float(m.activations_bytes[0]) == 12672 * 2 * 3 + 3 * 768
    assert float(m.logits_bytes[0]) == 122880.0
    assert float(memory(first=False, last=False).activations_bytes[0]) == 12672 * 2 * 3
    assert float(memory(last=False).logits_bytes[0]) == 0.0
    loose = memory(framework=replace(FRAMEWORK, fragmentation=0.5, reserved_bytes=1e6), sequence_slices=2)
    tight = memory(sequence_slices=2)
    for name in ("activations_bytes", "logits_bytes", "buffers_bytes"):
        assert float(getattr(loose, name)[0]) == 1.5 * float(getattr(tight, name)[0])
    assert float(tight.buffers_bytes[0]) == 48 * 32 * 2 + 768 + 2 * (2 * 48 * 8 * 2)
    assert float(loose.reserved_bytes[0]) == 1e6
    parts = [loose.parameters_bytes, loose.gradients_bytes, loose.optimizer_bytes, loose.activations_bytes,
             loose.logits_bytes, loose.buffers_bytes, loose.reserved_bytes]  # fmt: skip
    assert float(loose.total_bytes[0]) == sum(float(x[0]) for x in parts)


def test_memory_that_is_freed_in_turn():
    """Logits before a layer works, gradients as the first of three micro-batches' activations go; 48 x 256 logits."""
    turn = replace(FRAMEWORK, freed_in_turn=True, gradient_passes=0.0)
    plain = memory()

    def of(**chosen):
        m = memory(framework=turn, **chosen)
        return float(m.logits_bytes[0]), float(m.gradients_bytes[0])

    assert float(plain.gradients_bytes[0]) == PARAMS * 4 < 12672 * 2 + 768
    # Of two micro-batches the second's gradient of the head, beside its logits', is more than a layer works with.
    summed = (PARAMS - 2 * 872) * 2 + 48 * 256 * (2 + 4) / 2
    assert float(memory(framework=turn).buffers_bytes[0]) == summed > float(plain.buffers_bytes[0])
    assert of() == (122880.0 - summed, 0.0)
    assert of(in_flight=1.0) == (122880.0 - summed, PARAMS * 4.0)  # another came before
    assert of(more={"waiting": True}) == (122880.0 - summed + 2 * 48 * 256 * (2 + 4), 0.0)
    alone = 122880.0 - float(plain.buffers_bytes[0])
    assert of(global_batch=3) == (alone, 0.0)
    assert of(dp=2, zero=0, global_batch=6) == (alone, PARAMS * 4.0)  # buckets
    assert of(dp=2, zero=0) == (122880.0 - summed, 2 * PARAMS * 4.0)  # and beside them the sum of two
    kept = 122880.0 - ((PARAMS - 2 * 872) * 2 + 48 * 256 * (2 + 4))
    assert of(pp=2) == (kept, 0.0)  # a pipeline's last stage keeps the logits themselves


def test_a_pipelines_last_stage_may_keep_its_logits():
    """48 x 256 of them, 4 bytes more; tensor ranks keep half each."""
    keeps = replace(FRAMEWORK, pipelined_logit_copies=3.0, split_logit_copies=2.0)
    plain = replace(FRAMEWORK, pipelined_logit_copies=2.0, logit_copies=2.0, split_logit_copies=2.0)

    def logits(framework, **chosen):
        return float(memory(framework=framework, **chosen).logits_bytes[0])

    assert logits(keeps, pp=2) - logits(plain, pp=2) == 48 * 256 * 4
    assert logits(keeps, pp=2, tp=2) - logits(plain, pp=2, tp=2) == 48 * 256 * 4 / 2


def test_the_shard_that_fp32_training_updates():
    """FSDP's gathered parameters are other bytes than the shard: 4 more over the ranks with ZeRO 1 and 2."""
    one = replace(FRAMEWORK, one_sharded_copy=True)

    def held(**chosen):
        return float(memory(framework=one, precision=Precision.FP32, dp=4, **chosen).parameters_bytes[0])

    assert [held(zero=zero) for zero in (0, 1, 2, 3)] == [PARAMS * n for n in (4, 5, 5, 1)]


def test_the_fullest_moment_of_sharded_states():
    """Of two layers of LLAMA's size with 6 B of copies: the loss beside the head, a pass, or the head's scatter."""
    turn = replace(FRAMEWORK, freed_in_turn=True, gradient_passes=0.0, scatter_bytes=6.0)
    whole, one = (memory(LLAMA, f, zero=3, dp=8) for f in (FRAMEWORK, turn))
    rank = RankParts(model=LLAMA, layouts=layout(dp=8)).rank(2.0, True, True)
    head, layer = float(rank.ends[0]) / 2, float(rank.layers[0]) / 2
    working = float(memory(LLAMA, zero=1, dp=8).buffers_bytes[0])
    reduced = float(whole.buffers_bytes[0]) - working - 2 * 2 * layer - 2 * 2 * head
    assert reduced == pytest.approx(max(4 * layer, 4 * 2 * head))
    scatter = head * (6 + 4 / 8) + 2 * layer + max(2 * head, 2 * layer)
    at_work = max(working + 2 * 2 * layer + 4 * layer, scatter)
    assert float(one.buffers_bytes[0]) == pytest.approx(at_work)
    logits = float(memory(LLAMA, zero=3, dp=8).logits_bytes[0])
    assert float(one.logits_bytes[0]) == pytest.approx(max(logits + 2 * head - at_work, 0.0))


def test_buffers_of_pipeline_stages():
    """Micro-batches of 48 x 8 in 16 bits: of two virtual stages' inputs and output gradients all but the ends'."""
    holds = replace(FRAMEWORK, stage_buffers=True)

    def more(**chosen):
        asked = {"pp": 2, "virtual_stages": 2, "global_batch": 12} | chosen
        found = [float(memory(framework=f, **asked).buffers_bytes[0]) for f in (holds, FRAMEWORK)]
        return found[0] - found[1]

    batches = 12 / layout(pp=2).micro_batch[0]
    assert more() == pytest.approx(batches * (4 - 1 - 1) * 384 * 2)
    assert more(last=False) == pytest.approx(batches * (4 - 1) * 384 * 2)
    assert more(sequence_parallel=True, tp=2) == pytest.approx(batches * 2 * 384 * 2 / 2)
    assert more(pp=1) == 0.0


def test_the_fullest_rank_counts():
    def rank(parameters, logits):
        zero = np.zeros(2)
        return Memory(
            parameters_bytes=np.array(parameters), gradients_bytes=zero, optimizer_bytes=zero, activations_bytes=zero,
            logits_bytes=np.array(logits), buffers_bytes=zero, reserved_bytes=zero,
        )  # fmt: skip

    fullest = records.largest(
        [rank([5.0, 1.0], [0.0, 1.0]), rank([2.0, 3.0], [1.0, 4.0])], lambda rank: rank.total_bytes
    )
    assert fullest.parameters_bytes.tolist() == [5.0, 3.0]
    assert fullest.logits_bytes.tolist() == [0.0, 4.0]


def test_what_is_known_is_not_computed_again():
    none = np.zeros(1)
    nothing = Activations(
        layer=none,
        embedding=none,
        logits=none,
        loss=none,
        modules=none,
        working=none,
        keys_values=none,
        weight_grad_share=none,
        whole=none,
        again=none,
        moved=none,
    )
    m = memory(more={"held": nothing})
    assert [float(x[0]) for x in (m.activations_bytes, m.logits_bytes, m.buffers_bytes)] == [0.0, 0.0, 0.0]


def test_inputs_that_stay_gathered():
    """Two inputs of 48 tokens x 8 in 16 bits: of tensor-parallel ranks 2, the other's half of each stays as well."""
    keeps = replace(FRAMEWORK, gathered_inputs=2.0)

    def layer(framework, **choices):
        chosen = layout(tp=2, **choices)
        return float(activations(case(BYTES, GPT, chosen, framework=framework)).layer[0])

    assert layer(keeps, sequence_parallel=True) == layer(FRAMEWORK, sequence_parallel=True) + 2 * 384 * 2 / 2
    assert layer(keeps) == layer(FRAMEWORK)  # nothing was split
    full = {"sequence_parallel": True, "recompute": Recompute.FULL}
    assert layer(keeps, **full) == layer(FRAMEWORK, **full)


def test_gradient_of_one_pass():
    """2 B a parameter, freed after each pass: they count where they are more than what the pass frees."""
    passing = replace(FRAMEWORK, pass_gradient_bytes=2.0)

    def more(**choices):
        return float((memory(framework=passing, **choices).total_bytes - memory(**choices).total_bytes)[0])

    own = RankParts(model=GPT, layouts=layout()).rank(2.0, True, True).total[0]
    freed = 12672 * 2 + 768 + 48 * 256 * (2 + 8)
    assert own * 2 < freed
    assert more() == 0.0
    alone = {"layers": 0.0, "last": False}  # the embedding alone: 2,176 parameters, 768 B of activations
    assert more(**alone) == 2176 * 2 - 768
    passing = replace(FRAMEWORK, pass_gradient_bytes=1.0)
    assert more(**alone) == 2176 - 768
    assert more(**alone, precision=Precision.FP32) == 0.0


def test_buckets_of_replicas_that_shard_nothing():
    own = RankParts(model=GPT, layouts=layout()).rank(2.0, True, True).total[0]
    buckets = replace(FRAMEWORK, bucket_bytes=2.0)
    for zero, more in ((0, 2 * own), (1, 0.0), (3, 0.0)):
        found = memory(framework=buckets, zero=zero, dp=2).gradients_bytes - memory(zero=zero, dp=2).gradients_bytes
        assert float(found[0]) == more


def test_parameters_of_fp8_training():
    """Two layers of 872 in a byte each beside a byte's transpose, or in two with both beside; the ends in two."""
    ends = PARAMS - 2 * 872
    kept = replace(FRAMEWORK, fp8_parameter_bytes=1.0, fp8_copy_bytes=1.0)
    beside = replace(FRAMEWORK, fp8_copy_bytes=2.0)

    def held(framework, **choices):
        return float(memory(framework=framework, precision=Precision.FP8, **choices).parameters_bytes[0])

    assert held(FRAMEWORK) == held(kept, zero=1) == 2 * PARAMS
    assert held(beside) == held(beside, zero=1) == 2 * PARAMS + 2 * 2 * 872
    assert held(kept, zero=0) == held(beside, zero=0), "16 bits stay where nothing else could be updated"
    assert float(memory(framework=beside).parameters_bytes[0]) == 2 * PARAMS
    assert held(kept, zero=3, dp=8) == (2 * ends + 2 * 872) / 8
    assert held(beside, zero=3, dp=8) == 2 * PARAMS / 8
    # Of two gathered layers ZeRO-3 holds the copies too.
    more = [
        float(memory(framework=f, zero=3, dp=8, precision=Precision.FP8).buffers_bytes[0])
        for f in (FRAMEWORK, kept, beside)
    ]
    assert more[1] - more[0] == 0.0
    assert more[2] - more[0] == 2 * 2 * 872


def test_copy_that_gathers_parameters():
    """A piece of 2 B a parameter is new memory where no block of a pass, inner activation or logits, is as large."""
    copying = replace(FRAMEWORK, gather_copy_bytes=2.0)

    def more(**choices):
        return float((memory(framework=copying, **choices).buffers_bytes - memory(**choices).buffers_bytes)[0])

    own = float(RankParts(model=GPT, layouts=layout()).rank(40.0, True, False).total[0])
    assert own * 2 > 48 * 32 * 2
    first_stage = {"layers": 40.0, "last": False}
    assert more(**first_stage, zero=1, dp=2) == own * 2
    assert more(**first_stage, zero=1, cp=2) == own * 2
    assert more(**first_stage, zero=0, dp=2) == more(**first_stage, zero=1) == more(**first_stage, zero=3, dp=2) == 0.0
    assert more(layers=2.0, zero=1, dp=2) == 0.0  # fits in the block of the logits


def test_gate_that_is_made_again():
    """Of four inner tensors of 48 x 32 in 16 bits three stay; recomputing a whole layer makes them all at once."""
    fused = replace(FRAMEWORK, gate_tensors=3.0)

    def less(field, model=LLAMA, **choices):
        chosen = layout(**choices)
        of = device(BYTES, chosen)
        found = [getattr(activations(case(of, model, chosen, framework=f)), field) for f in (FRAMEWORK, fused)]
        return float((found[0] - found[1])[0])

    assert less("layer") == 48 * 32 * 2
    assert less("layer", tp=2) == 48 * 32 * 2 / 2
    assert less("layer", model=MOE) == 48 * 2 * (0.5 * 32 + 0.5 * (2 + 1) * 16)
    assert less("layer", model=GPT) == less("working") == 0.0
    shifted = replace(FRAMEWORK, gate_tensors=5.0, kept_expert_outputs=False)

    def kept(framework):
        return activations(case(device(BYTES, layout()), LLAMA, layout(), framework=framework)).layer

    assert float((kept(shifted) - kept(FRAMEWORK))[0]) == 48 * 32 * 2
    assert (less("layer", recompute=Recompute.FULL), less("working", recompute=Recompute.FULL)) == (0.0, 48 * 32 * 2)
