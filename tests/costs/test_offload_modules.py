"""What modules of each layer keep, in host memory: bytes by hand, what is freed and waited for, legality, files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner import Cluster, Model, estimate
from planner.base.errors import InputError, LayoutError
from planner.choices.offload import MODULES, modules_text, read_modules
from planner.costs.case import Case
from planner.costs.memory.moved_modules import moved_module_bytes
from planner.costs.memory.rank import activations
from planner.hardware import load_cluster, load_framework
from planner.imports.megatron import megatron_run
from planner.layouts import Layouts, Precision, Recompute
from planner.models import load_model
from planner.setup import Setup
from planner.step.estimate import estimate as estimate_layouts
from planner.step.legality import check_legal
from planner.step.step_costs import step_costs

FRAMEWORK = load_framework("megatron-core")
T = 8192
"""Tokens of a micro-batch."""


def case(model: str = "llama3-8b", modules: str = "core_attn", **choices) -> Case:
    layouts = Layouts.of(**{"global_batch": 1, "offload_modules": read_modules(modules)} | choices)
    shape = replace(load_model(model), seq_len=T)
    return Case.of(Setup(shape, load_cluster("gb200-nvl72"), FRAMEWORK), layouts)


def sent(modules: str, model: str = "llama3-8b", **choices) -> float:
    return float(moved_module_bytes(case(model, modules, **choices))[0])


def test_a_dense_layers_modules_by_hand():
    """LLaMA 3 8B: hidden 4,096, 32 heads and 8 of keys of 128 channels; 16 bits."""
    heads, attended, sums = T * (4096 + 2 * 1024) * 2, T * 4096 * 2, T * 32 * 4
    assert sent("attn_norm") == sent("mlp_norm") == sent("qkv_linear") == T * 4096 * 2
    assert sent("core_attn") == heads + sums  # its output is the next product's input, which stays
    assert sent("core_attn+attn_proj") == heads + sums + attended
    assert sent("core_attn+attn_proj", tp=2) == (heads + sums + attended) / 2
    assert sent("attn_norm", tp=2, sequence_parallel=True) == T * 4096 * 2 / 2


def test_products_in_fp8_keep_their_inputs_apart():
    own = sent("core_attn", precision=Precision.FP8)
    assert own == sent("core_attn+attn_proj")
    assert sent("core_attn+attn_proj", precision=Precision.FP8) == own + T * 4096
    assert sent("qkv_linear", precision=Precision.FP8) == T * 4096


def test_a_mixtures_modules_by_hand():
    """Qwen3 30B: hidden 2,048, 8 of 128 experts a token of 768 inner elements, gate and up."""
    assert sent("expert_fc1", "qwen3-30b-a3b") == T * 8 * 2048 * 2
    assert sent("moe_act", "qwen3-30b-a3b") == T * 8 * 768 * 2 * 2
    assert sent("expert_fc1", "qwen3-30b-a3b", expert_imbalance=2.0) == 2 * T * 8 * 2048 * 2


def test_what_recomputation_drops_is_not_sent():
    fine = {"recompute": Recompute.FINE, "model": "deepseek-v3"}
    assert sent("qkv_linear", **fine) == 0.0 < sent("qkv_linear", "deepseek-v3")
    assert sent("core_attn", **fine) < sent("core_attn", "deepseek-v3")
    assert sent("moe_act", **fine) == sent("moe_act", "deepseek-v3")  # the activation is made again of its input


@pytest.mark.parametrize("model", ["llama3-8b", "qwen3-30b-a3b", "deepseek-v3"])
@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.SELECTIVE, Recompute.FINE])
@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP8])
def test_a_layer_sends_no_more_than_it_keeps(model, recompute, precision):
    if recompute == Recompute.FINE and model == "llama3-8b":
        pytest.skip("fine recomputation is of experts or latents")
    dense = model == "llama3-8b"
    every = "+".join(name for name in MODULES if not (dense and name in ("expert_fc1", "moe_act")))
    of = case(model, every, recompute=recompute, precision=precision)
    assert 0.0 < float(moved_module_bytes(of)[0]) <= float(activations(of).layer[0])


def test_each_layer_but_a_virtual_stages_last_is_freed_of_it():
    setup = Setup(load_model("llama3-8b"), load_cluster("gb200-nvl72"), FRAMEWORK)
    x = {"dp": 4, "pp": 2, "virtual_stages": 2, "schedule": "interleaved", "global_batch": 16}
    plain, costs = (step_costs(setup, Layouts.of(**x, offload_modules=read_modules(m))) for m in ("none", "core_attn"))
    without, with_ = (
        estimate_layouts(setup, Layouts.of(**x, offload_modules=read_modules(m))).memory for m in ("none", "core_attn")
    )
    one = float(costs.activations.moved[0])
    assert one == sent("core_attn")
    # The first rank holds 16 layers on two virtual stages, and the embedding.
    whole = float(16 * plain.activations.layer[0] + plain.activations.embedding[0])
    in_flight = float(without.activations_bytes[0]) / whole
    assert float(without.activations_bytes[0] - with_.activations_bytes[0]) == pytest.approx(in_flight * (16 - 2) * one)
    comes_back = float(with_.buffers_bytes[0] - without.buffers_bytes[0])
    assert comes_back == pytest.approx(one * (1 + FRAMEWORK.fragmentation))
    seconds = one / setup.cluster.host_link.reached_bytes_per_s + setup.cluster.host_link.latency_s
    assert float(costs.offload_layer_s[0]) == seconds


def test_a_slow_link_holds_the_step_up():
    layout = {"batch": 16, "dp": 8, "recompute": "none"}
    fast, slow = (
        estimate(Model("llama3-8b"), Cluster("dgx-h100", figures={"host_link.bandwidth_gbyte_per_s": rate}), **layout,
                 offload_modules="attn_norm+qkv_linear+core_attn+attn_proj+mlp_norm")
        for rate in (10000.0, 5.0)
    )  # fmt: skip
    assert fast.step_time_s == pytest.approx(estimate("llama3-8b", "dgx-h100", **layout).step_time_s)
    assert slow.step_time_s > 1.5 * fast.step_time_s
    assert slow.memory_gib == fast.memory_gib < estimate("llama3-8b", "dgx-h100", **layout).memory_gib


@pytest.mark.parametrize("text", ["none", "core_attn", "core_attn+attn_proj", "attn_norm+mlp_norm+expert_fc1+moe_act"])
def test_a_text_comes_back(text):
    assert modules_text(read_modules(text)) == text


@pytest.mark.parametrize("text", ["", "foo", "attn_proj", "core_attn+", "core_attn,moe_act", "none+core_attn"])
def test_a_text_that_names_none_is_refused(text):
    with pytest.raises(InputError, match=r"^offload_modules is .*; allowed: none, or some of attn_norm\+qkv_linear"):
        read_modules(text)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"offload_layers": 1}, "offload_modules excludes offload_layers"),
        ({"recompute": Recompute.FULL}, "offload_modules excludes offload_layers, recompute full"),
        ({"schedule": "zb-h1"}, "offload_modules excludes"),
        ({"offload_modules": read_modules("moe_act")}, "expert_fc1 and moe_act need experts"),
    ],
)
def test_what_is_illegal(choices, said):
    x = {"dp": 2, "pp": 2, "global_batch": 16, "offload_modules": read_modules("core_attn")}
    with pytest.raises(LayoutError, match=said):
        check_legal(load_model("llama3-8b"), load_cluster("dgx-h100"), Layouts.of(**x | choices))


def test_megatron_takes_them_and_gives_them_back():
    question = {"batch": 64, "dp": 8, "ep": 8, "offload_modules": "core_attn+attn_proj+expert_fc1"}
    plan = estimate(Model("qwen3-30b-a3b"), Cluster("dgx-h100"), **question)
    text = plan.export("megatron").text
    assert "--fine-grained-activation-offloading\n  --offload-modules core_attn attn_proj expert_fc1\n" in text
    assert "export NVTE_CPU_OFFLOAD_V1=1\n" in text
    run = megatron_run(text, load_cluster("dgx-h100"), FRAMEWORK, gpus=8, model="qwen3-30b-a3b", vocab=None)
    assert run.layouts.row(0)["offload_modules"] == "core_attn+attn_proj+expert_fc1"
    bridge = plan.export("megatron-bridge").text
    assert 'cfg.model.offload_modules = ["core_attn", "attn_proj", "expert_fc1"]' in bridge
    assert "Launch with NVTE_CPU_OFFLOAD_V1=1" in bridge
    assert "NVTE_CPU_OFFLOAD_V1" not in estimate("llama3-8b", "dgx-h100", batch=64, dp=8).export("megatron").text
    for target in ("torchtitan", "deepspeed"):
        text = " ".join(plan.export(target).text.replace("#", " ").replace("//", " ").split())
        assert "exported as offload_modules none" in text


def test_a_script_that_names_the_fused_group_or_none():
    said = "--fine-grained-activation-offloading --micro-batch-size 1 --global-batch-size 8 --bf16 --offload-modules"
    where = (load_cluster("dgx-h100"), FRAMEWORK)
    run = megatron_run(f"{said} fused_group_mlp", *where, gpus=8, model="qwen3-30b-a3b", vocab=None)
    assert run.layouts.row(0)["offload_modules"] == "expert_fc1+moe_act"
    with pytest.raises(InputError, match="--offload-modules has no value"):
        megatron_run(said, *where, gpus=8, model="qwen3-30b-a3b", vocab=None)
    bare = said.removesuffix("--offload-modules")
    with pytest.raises(InputError, match="--offload-modules is missing"):
        megatron_run(bare, *where, gpus=8, model="qwen3-30b-a3b", vocab=None)


def test_norms_lie_across_a_graphs_ends():
    plan = {"batch": 64, "dp": 8, "cuda_graphs": True, "offload_modules": "attn_norm"}
    text = " ".join(estimate("llama3-8b", "dgx-h100", **plan).export("megatron").text.replace("#", " ").split())
    assert "exported as cuda_graphs off" in text


def test_the_codes_are_bits():
    codes = np.array([read_modules(name) for name in MODULES if name != "attn_proj"])
    assert np.unique(codes).size == codes.size
    assert all(code & (code - 1) == 0 for code in codes.tolist())
