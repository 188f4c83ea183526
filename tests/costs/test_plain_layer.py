"""A layer's seconds and tensors, the ends and the update beside the same told for one layout in plain numbers."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from planner.choices.enumerations import OptimizerKind
from planner.costs.gradient_accumulation import with_accumulation
from planner.costs.kernels.attention import attention_s
from planner.costs.kernels.state_space import ssm_bytes, ssm_s
from planner.costs.layer.embedding_head import embedding_head_cost
from planner.costs.layer.expert_bias import expert_bias_s
from planner.costs.layer.expert_routing import routed_s
from planner.costs.layer.fp8_casts import casts_s
from planner.costs.layer.kept_operations import dropped_products_s, kept_operation_bytes
from planner.costs.layer.layer_cost import layer_cost
from planner.costs.memory.saved_activations import attention_core_bytes, layer_tensors, saved_bytes
from planner.costs.optimizer import muon_s, optimizer_s
from planner.layouts import Attention, Dispatcher, Layouts, Recompute
from planner.models import mix
from tests.costs.plain_layer import Layer
from tests.costs.test_plain_memory import table_of
from tests.costs.test_plain_network import MODELS, at, drawn_parameters, one_rank
from tests.costs.toy import FRAMEWORK, accelerator, case, device, number_formats

CHIP = replace(
    accelerator(flops=900.0, bandwidth=40.0, kernel_latency_s=0.3, expert_product_s=2.5, wide_expert_product_s=1.5,
                tile_rows=16.0, tile_columns=8.0, depth_half=3.0,
                aligned_fraction={"bytes_16": 0.8, "bytes_4": 0.5, "bytes_2": 0.25}),
    num_compute_units=3,
)  # fmt: skip
CLAMPED = replace(MODELS[2], clamped=True, expert_bias=True, qk_norm=True, num_window_layers=1, window=5)
QUERIES = replace(MODELS[3], q_lora_rank=0)


def drawn_framework(rng):
    """Every figure that a layer, the ends or the update read, on or off."""
    flags = ("fused_experts", "compiled_layers", "fused_rotary", "eager_llama", "sdpa_context", "gathered_context",
             "fp8_attention", "recompute_stops_early", "selective_operations", "gathered_logits", "recomputed_head",
             "fused_routing", "fp32_expert_outputs", "kept_expert_outputs", "single_adds",
             "one_sharded_copy", "repeats_attention", "odd_vocab", "masked_softmax")  # fmt: skip
    return replace(
        FRAMEWORK, **{name: bool(rng.random() < 0.4) for name in flags}, eager_norm_bytes=rng.choice([0.0, 8.0]),
        whole_repeats_zero=rng.choice([1.0, 3.0, 4.0]),
        accumulate_bytes=rng.choice([0.0, 6.0]), bf16_accumulate_bytes=10.0, apart_update_bytes=rng.choice([0.0, 52.0]),
        gradient_bytes=rng.choice([2.0, 6.0]), gate_tensors=rng.choice([3.0, 4.0, 5.0]),
        host_step_s=0.2, host_gradients_zero=rng.choice([2.0, 4.0]), host_fp32_gradients_zero=rng.choice([3.0, 4.0]),
    )  # fmt: skip


def drawn_layout(rng):
    def pick(*values):
        return values[int(rng.integers(len(values)))]

    tp, dp, cp = pick(1, 1, 2, 4), pick(1, 1, 2, 4), pick(1, 1, 2, 4)
    return {
        "tp": tp, "dp": dp, "cp": cp, "ep": pick(1, 2, 4), "etp": pick(tp, 1), "ulysses": pick(1, cp),
        "sequence_slices": pick(1, 1, 2), "micro_batch": pick(1, 3), "global_batch": 3 * dp * pick(1, 2, 4),
        "zero": pick(0, 1, 2, 3), "dp_replicate": pick(1, 1, *(n for n in (2, 4) if dp % n == 0)),
        "sequence_parallel": pick(False, True), "recompute": pick(*Recompute), "attention": pick(*Attention),
        **number_formats(pick), "fused_norm": pick(False, True), "expert_imbalance": pick(1.0, 1.5),
        "capacity_factor": pick(0.0, 0.0, 1.25), "optimizer": pick(*OptimizerKind),
        "dispatcher": pick(*(d for d in Dispatcher if tp > 1 or d != Dispatcher.PPMOE)),
        "offload_optimizer": pick(False, True), "offload_fraction": pick(1.0, 0.75),
        "offload_parameters": pick(False, False, True),
    }  # fmt: skip


def asked_of(of, i, n, precise):
    """What planner says of the kernels of one layout."""

    def pair(both):
        return tuple(float(at(x, i, n)) for x in both)

    passes = [pair(casts_s(of, of.framework.fused_experts))] if precise < of.device.element_bytes[i] else []
    passes += [pair(routed_s(of))] if of.model.num_experts else []
    passes += [pair(expert_bias_s(of))] if of.model.expert_bias and not of.framework.fused_experts else []
    return SimpleNamespace(
        passes=passes, attention=pair(attention_s(of, fp8=of.framework.fp8_attention)), scan=pair(ssm_s(of)),
        dropped=float(at(dropped_products_s(of), i, n)), scans=float(at(ssm_bytes(of), i, n)),
        core=float(at(attention_core_bytes(of), i, n)), stays=float(at(kept_operation_bytes(of), i, n)),
    )  # fmt: skip


def of_row(record, i, n):
    return {name: float(at(getattr(record, name), i, n)) for name in vars(record)}


@pytest.mark.parametrize("model", [*MODELS, CLAMPED, QUERIES], ids=range(len(MODELS) + 2))
def test_a_layer_lasts_and_holds_what_its_sentences_say(model):
    rng, n = np.random.default_rng(34), 25
    for _ in range(6):
        rows = [drawn_layout(rng) for _ in range(n)]
        layouts = Layouts.of(**table_of(rows))
        of = case(device(CHIP, layouts), model, layouts, framework=drawn_framework(rng))
        own, params, apart = (
            drawn_parameters(rng, n, model.num_experts > 0),
            rng.uniform(10, 99, n),
            rng.random(n) < 0.5,
        )
        cost, ends = layer_cost(of), embedding_head_cost(of)
        later, later_ends = with_accumulation(of, params, cost, ends, apart)
        update, muon = optimizer_s(of, own), muon_s(of, own)
        for i, row in enumerate(rows):
            x = SimpleNamespace(**row, train=0, micro_batches=row["global_batch"] // row["dp"] // row["micro_batch"])
            one = device(CHIP, layouts.take(np.array([i])))
            told = Layer(of, one, x, mix.shares(model), asked_of(of, i, n, float(of.device.matrix_bytes[i])))
            assert of_row(cost, i, n) == pytest.approx(told.cost(), rel=1e-9), (row, of.framework)
            assert of_row(ends, i, n) == pytest.approx(told.ends(), rel=1e-9), (row, of.framework)
            layer, embedding, head = told.added(float(params[i]), bool(apart[i]))
            more = of_row(later, i, n)["backward_pointwise_s"] - of_row(cost, i, n)["backward_pointwise_s"]
            assert more == pytest.approx(layer, rel=1e-6), row
            was, now = of_row(ends, i, n), of_row(later_ends, i, n)
            assert now["embedding_backward_s"] == pytest.approx(was["embedding_backward_s"] + embedding, rel=1e-9)
            assert now["head_backward_s"] == pytest.approx(was["head_backward_s"] + head, rel=1e-9)
            want = told.update(one_rank(own, i), float(at(muon, i, n)))
            assert float(at(update, i, n)) == pytest.approx(want, rel=1e-9), (row, of.framework)
            assert of_row(layer_tensors(of), i, n) == pytest.approx(told.tensors(), rel=1e-9), (row, of.framework)
            saved = [float(at(s, i, n)) for s in saved_bytes(of)]
            assert saved == pytest.approx(told.saved(), rel=1e-9, abs=1e-9), (row, of.framework)
