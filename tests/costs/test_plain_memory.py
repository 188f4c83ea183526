"""A rank's bytes beside the same told for one layout in plain numbers, on drawn layouts and frameworks."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from planner.choices.enumerations import GradDtype, OptimizerKind
from planner.choices.offload import read_modules
from planner.choices.training import read_training
from planner.costs.adapters import held_for_weights, trained
from planner.costs.layer.matmul_shapes import common_products, expert_products
from planner.costs.memory.moved_modules import moved_module_bytes
from planner.costs.memory.rank import activations, rank_memory
from planner.costs.memory.saved_activations import kept_tensors, saved_bytes, score_gradient_bytes
from planner.layouts import Attention, Layouts, Recompute
from planner.models import mix
from tests.costs.plain_memory import Remembered
from tests.costs.test_plain_network import CHIP, MODELS, at, one_rank
from tests.costs.toy import FRAMEWORK, case, device, number_formats


def drawn_framework(rng):
    """Every figure that a rank's memory reads, on or off."""
    flags = ("gathered_logits", "freed_in_turn", "one_sharded_copy", "spare_gradients", "param_remainders",
             "selective_operations", "stage_buffers", "reduces_by_policy", "defers_scatter",
             "zero2_by_layer", "keeps_gathered", "holds_router_loss", "kept_products",
             "kept_expert_outputs")  # fmt: skip
    some = {
        "gradient_bytes": 6.0, "bf16_gradient_bytes": 2.0, "grad_reduce_bytes": 4.0, "bf16_grad_reduce_bytes": 2.0,
        "bf16_scattered_bytes": 2.0,
        "kept_pass_gradient_bytes": 2.0, "host_gradients_zero": 1.0, "host_fp32_gradients_zero": 2.0,
        "update_parameters": 200.0,
        "bucket_bytes": 1.5, "update_bytes": 0.5, "gathered_inputs": 0.75, "logit_copies": 1.5,
        "split_logit_copies": 3.0, "pipelined_logit_copies": 2.0, "scatter_bytes": 6.0,
        "logit_chunks": 4.0, "fp8_parameter_bytes": 1.0, "fp8_copy_bytes": 1.0,
        "live_parameters": 900.0, "reduce_bucket_parameters": 400.0, "reduce_buffers": 2.0, "pass_gradient_bytes": 8.0,
        "gather_copy_bytes": 2.0, "fragmentation": 0.25, "reserved_bytes": 77.0,
        "overlap_experts": 0.5, "cached_keys_values": 2.0, "sharded_fp8_copy_bytes": 1.5,
    }  # fmt: skip
    chosen = {name: value for name, value in some.items() if rng.random() < 0.5}
    chosen["gate_tensors"] = rng.choice([2.5, 4.0, 5.0])
    return replace(FRAMEWORK, **{name: bool(rng.random() < 0.4) for name in flags}, **chosen)


def drawn_layout(rng):
    def pick(*values):
        return values[int(rng.integers(len(values)))]

    tp, dp, cp = pick(1, 1, 2, 4), pick(1, 1, 2, 4), pick(1, 1, 2)
    recompute = pick(*Recompute, Recompute.FULL)
    return {
        "tp": tp, "dp": dp, "cp": cp, "ep": pick(1, 2, 4), "etp": pick(tp, 1), "sequence_slices": pick(1, 1, 2),
        "pp": pick(1, 2), "virtual_stages": pick(1, 2, 3), "micro_batch": pick(1, 3),
        "global_batch": 3 * dp * pick(1, 2, 4),
        "zero": pick(0, 1, 2, 3), "dp_replicate": pick(1, 1, *(n for n in (2, 4) if dp % n == 0)),
        "sequence_parallel": pick(False, True), "recompute": recompute, "attention": pick(*Attention),
        "recompute_layers": pick(0, 1, 2) if recompute == Recompute.FULL else 0, "offload_layers": pick(0, 0, 1, 2),
        "offload_modules": 0 if recompute == Recompute.FULL else pick(0, 0, read_modules("core_attn+moe_act")),
        **number_formats(pick), "expert_imbalance": pick(1.0, 1.5), "capacity_factor": pick(0.0, 0.0, 1.25),
        "optimizer": pick(*OptimizerKind), "grad_reduce_dtype": pick(0, *GradDtype),
        "train": pick(0, 0, 0, read_training("lora:8")), "offload_optimizer": pick(False, True),
        "offload_fraction": pick(1.0, 0.75), "offload_parameters": pick(False, True),
    }  # fmt: skip


def drawn_rank(rng):
    def pick(*values):
        return values[int(rng.integers(len(values)))]

    return {
        "layers": pick(0, 1, 3, 4, 7), "in_flight": pick(0.0, 1.0, 2.0, 4.0, 12.0), "first": pick(0.0, 0.25, 1.0),
        "last": pick(0.0, 0.5, 1.0), "modules": pick(0.0, 1.0), "copies": pick(1, 2), "versions": pick(1, 3),
        "at_once": pick(1.0, 2.0, 4.0), "waiting": pick(False, True),
    }  # fmt: skip


def table_of(rows):
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def products_at(products, i, n):
    return [tuple(float(at(x, i, n)) for x in product) for product in products]


@pytest.mark.parametrize("model", MODELS, ids=range(len(MODELS)))
def test_a_rank_holds_what_its_sentences_say(model):
    rng = np.random.default_rng(33)
    for _ in range(8):
        rows, ranks, n = [drawn_layout(rng) for _ in range(50)], [drawn_rank(rng) for _ in range(50)], 50
        layouts = Layouts.of(**table_of(rows))
        of = case(device(CHIP, layouts), model, layouts, framework=drawn_framework(rng))
        place = table_of(ranks)
        own = of.ranks.rank(*(place[name] for name in ("layers", "first", "last", "modules")))
        moves, held, found = trained(of, own), activations(of), rank_memory(of, **place)
        together = of.over_layers
        plain, module = together.with_recompute(Recompute.NONE), together.with_model(mix.module_layer(model))
        tensors = {name: saved_bytes(each) for name, each in (
            ("saved", of), ("together", together), ("plain", plain), ("module", module))}  # fmt: skip
        before = {name: mix.shares(each.model).sparse * kept_tensors(each).before_experts_bytes for name, each in (
            ("before", together), ("module_before", module))}  # fmt: skip
        scores, adapters, shapes = (
            score_gradient_bytes(of),
            held_for_weights(of),
            (common_products(of), expert_products(of)),
        )
        moved = moved_module_bytes(of)
        for i, (row, rank) in enumerate(zip(rows, ranks, strict=True)):
            micro_batches = row["global_batch"] // row["dp"] // row["micro_batch"]
            asked = SimpleNamespace(
                **{name: tuple(float(at(x, i, n)) for x in both) for name, both in tensors.items()},
                **{name: float(at(each, i, n)) for name, each in before.items()},
                scores=float(at(scores, i, n)), moved=float(at(moved, i, n)), adapters=float(at(adapters, i, n)),
                common=products_at(shapes[0], i, n), routed=products_at(shapes[1], i, n),
            )  # fmt: skip
            x = SimpleNamespace(**row, micro_batches=micro_batches)
            told = Remembered(of, x, mix.shares(model), asked)
            got = {name: float(at(getattr(held, name), i, n)) for name in vars(held)}
            assert got == pytest.approx(told.activations(), rel=1e-9), (row, of.framework)
            want = told.rank(one_rank(own, i), one_rank(moves, i), SimpleNamespace(**rank))
            got = {name: float(at(getattr(found, name), i, n)) for name in vars(found)}
            assert got == pytest.approx(want, rel=1e-9), (row, rank, of.framework)
