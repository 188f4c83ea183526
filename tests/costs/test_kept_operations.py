"""PyTorch's selective checkpointing by operation, and what else torchtitan keeps and sends, worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from planner.costs.layer.kept_operations import kept_operation_bytes
from planner.costs.layer.layer_cost import layer_cost, pointwise_s
from planner.costs.memory.rank import activations
from planner.costs.memory.saved_activations import layer_tensors, saved_bytes
from planner.costs.network import traffic
from planner.layouts import Attention, Recompute
from tests.costs.toy import BYTES, FLOP, FRAMEWORK, HYBRID, LLAMA, MLA, MOE, case, layout

TOKENS, E = 48, 2
OPERATIONS = replace(FRAMEWORK, selective_operations=True)
SELECTIVE = {"recompute": Recompute.SELECTIVE, "attention": Attention.FLASH2}


def of(model, framework=OPERATIONS, on=BYTES, **choices):
    return case(on, model, layout(**(SELECTIVE | choices)), framework=framework)


def one(value):
    return float(np.ravel(value)[0])


def test_a_dense_layer_keeps_every_second_product():
    """Of LLaMA's five: queries, keys and values (24), gate (32) and down (8), with its input and attention's output."""
    assert one(kept_operation_bytes(of(LLAMA))) == TOKENS * E * (8 + 24 + 8 + 32 + 8)
    kept, again = saved_bytes(of(LLAMA))
    sums = TOKENS * 2 * 4
    assert one(kept) == TOKENS * E * 80 + sums
    whole, _ = saved_bytes(case(BYTES, LLAMA, layout(attention=Attention.FLASH2), framework=OPERATIONS))
    assert one(again) == one(whole) - one(kept)


def test_what_reduce_scatters_end_with_stays():
    """Two tensor ranks: half of each width but the down product's; input and two sums in parts of the tokens."""
    kept = kept_operation_bytes(of(LLAMA, tp=2, sequence_parallel=True))
    assert one(kept) == TOKENS * E * (24 / 2 + 8 / 2 + 32 / 2 + 8 + 3 * 8 / 2)
    assert one(kept_operation_bytes(of(LLAMA, tp=2))) == TOKENS * E * (24 / 2 + 8 / 2 + 32 / 2 + 8 + 8)


def test_latent_attention_with_a_latent_of_queries_has_five_products():
    """Kept: down to queries' latent (6), to keys' (4 + 2), the output (8); the MLP's second, its up product (32)."""
    assert one(kept_operation_bytes(of(MLA))) == TOKENS * E * (8 + 6 + 6 + 8 + 2 * 4 + 32)


def test_products_that_run_again():
    """The output's product (64) and the up product (256): 2 FLOP a weight and token; attention's does not."""
    assert one(layer_cost(of(LLAMA, on=FLOP)).recompute_s) == pytest.approx(2 * TOKENS * (64 + 256))
    alone = layer_cost(of(LLAMA, FRAMEWORK, FLOP))
    assert one(alone.recompute_s) == one(alone.forward_attention_s)


def test_a_hybrid_runs_all_but_attention_again():
    """Its layers have other products each, of which nobody says which are the second ones: none stays."""
    cost = layer_cost(of(HYBRID, on=FLOP))
    again = cost.forward_matmul_s + cost.forward_scan_s + cost.forward_pointwise_s
    assert one(cost.forward_scan_s) > 0.0
    assert one(cost.recompute_s) == pytest.approx(one(again))


def test_a_compiled_layer_has_no_last_product_of_an_mlp_backward():
    """Nothing needs down's output (8) or what it is scattered to, and where it was repeated it is so no more."""
    compiled = replace(OPERATIONS, compiled_layers=True)
    assert one(kept_operation_bytes(of(LLAMA, compiled))) == TOKENS * E * (8 + 24 + 8 + 32)
    kept = kept_operation_bytes(of(LLAMA, compiled, tp=2, sequence_parallel=True))
    assert one(kept) == TOKENS * E * (24 / 2 + 8 / 2 + 32 / 2 + 2 * 8 / 2)
    assert one(kept_operation_bytes(of(MLA, compiled))) == one(kept_operation_bytes(of(MLA)))  # up stays, not down
    again = one(layer_cost(of(MLA, on=FLOP)).recompute_s) - one(layer_cost(of(MLA, compiled, FLOP)).recompute_s)
    assert again == pytest.approx(2 * TOKENS * LLAMA.ffn * LLAMA.hidden)


def test_a_compiled_gate_is_one_kernel():
    """Of 32 inner elements 2 values less forward (the activated gate, written and read) and 2 backward."""
    eager = pointwise_s(of(LLAMA))
    fused = pointwise_s(of(LLAMA, replace(OPERATIONS, compiled_layers=True)))
    less = TOKENS * 32 * E * 2
    assert [one(a) - one(b) for a, b in zip(eager[:2], fused[:2], strict=True)] == pytest.approx([less, less])


def test_logits_of_tensor_ranks_have_copies_of_their_own():
    framework = replace(OPERATIONS, split_logit_copies=3.5)
    whole, split = (one(activations(of(LLAMA, framework, tp=t)).logits) for t in (1, 2))
    assert (whole / split) == pytest.approx((2 + 4 * 2.0) / ((2 + 4 * 3.5) / 2))


def test_several_sequences_are_copied_around_gathers_and_scatters():
    """A read and a write of a whole activation for each: 4 bytes a channel and token, of two a block and direction."""
    copied = replace(OPERATIONS, copied_sequences=True)
    for sequences, times in ((1, 0), (2, 1)):
        both = [
            traffic.layer_traffic(of(LLAMA, f, tp=2, sequence_parallel=True, micro_batch=sequences))
            for f in (OPERATIONS, copied)
        ]
        each = sequences * LLAMA.seq_len * 8 * E * 2 * 2 * 2
        more = [one(b) - one(a) for a, b in zip(*((t.layer_forward_s, t.layer_backward_s) for t in both), strict=True)]
        assert more == pytest.approx([times * each, times * each * 1.5])


def test_gathers_run_again_and_reduce_scatters_do_not():
    shared = traffic.layer_traffic(of(LLAMA, tp=2, sequence_parallel=True))
    assert one(shared.layer_backward_s) == pytest.approx(1.5 * one(shared.layer_forward_s))
    summed = traffic.layer_traffic(of(LLAMA, tp=2))
    assert one(summed.layer_backward_s) == pytest.approx(2.0 * one(summed.layer_forward_s))


def test_tokens_go_to_their_experts_again_where_exchanges_are_not_kept():
    """Two copies of a token to experts and back, 8 numbers each, in the one of LLaMA's two layers that has experts."""
    again = replace(OPERATIONS, exchanges_again=True)
    kept, sent = ({"ep": 2, "dp": 2, "framework": f} for f in (OPERATIONS, again))
    fewer = one(kept_operation_bytes(of(MOE, **kept))) - one(kept_operation_bytes(of(MOE, **sent)))
    assert fewer == TOKENS * E * 2 * 2 * 8 * (MOE.num_layers - 1) / MOE.num_layers
    once, twice = (traffic.layer_traffic(of(MOE, **way)) for way in (kept, sent))
    assert one(twice.expert_forward_s) == one(once.expert_forward_s) > 0
    assert one(twice.expert_backward_s) == one(once.expert_backward_s) + one(once.expert_forward_s)


def test_products_of_parts_that_are_compiled_apart_run_again():
    """Attention's output and the layer's input stay, 8 numbers each of a token in 16 bits; all products run again."""
    apart = of(LLAMA, replace(OPERATIONS, kept_products=False))
    assert one(kept_operation_bytes(apart)) == TOKENS * E * (8 + 8)
    faster = of(LLAMA, replace(OPERATIONS, kept_products=False), FLOP)
    assert one(layer_cost(faster).recompute_s) == pytest.approx(2 * TOKENS * (24 * 8 + 64 + 2 * 256 + 256))


def test_gathered_keys_and_values_stay_and_go_back_once():
    """Two context ranks: keys and values of twice the tokens, 16 elements a token more; gradients alone backward."""
    gathered = replace(FRAMEWORK, gathered_context=True)
    none = {"recompute": Recompute.NONE, "cp": 2, "dp": 1}
    more = layer_tensors(of(LLAMA, gathered, **none)).heads - layer_tensors(of(LLAMA, FRAMEWORK, **none)).heads
    assert one(more) == TOKENS / 2 * E * 16
    sent = traffic.layer_traffic(of(LLAMA, gathered, **none))
    assert one(sent.context_backward_s) == pytest.approx(one(sent.context_forward_s))
    ring = traffic.layer_traffic(of(LLAMA, FRAMEWORK, **none))
    assert one(ring.context_backward_s) == pytest.approx(2.0 * one(ring.context_forward_s))


def test_pytorchs_ring_keeps_keys_and_values_of_every_query_head():
    """One head of keys and values for two of queries, of 4 channels: 8 elements a token more, its own tokens alone."""
    model, none = replace(LLAMA, num_kv_heads=1), {"recompute": Recompute.NONE, "dp": 1}
    sdpa = replace(FRAMEWORK, sdpa_context=True)
    for ranks, more in ((1, 0), (2, 8), (4, 8)):
        kept = [one(layer_tensors(of(model, f, cp=ranks, **none)).heads) for f in (FRAMEWORK, sdpa)]
        assert kept[1] - kept[0] == TOKENS / ranks * E * more


def test_a_norm_of_queries_and_keys_keeps_them():
    plain, normed = (layer_tensors(of(m, FRAMEWORK)).heads for m in (LLAMA, replace(LLAMA, qk_norm=True)))
    assert one(normed - plain) == TOKENS * E * 16


def test_logits_in_parts():
    whole, parts = (activations(of(LLAMA, replace(FRAMEWORK, logit_chunks=n))).logits for n in (1.0, 8.0))
    assert one(whole) == 8 * one(parts)
