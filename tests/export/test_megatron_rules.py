"""What Megatron-Core 0.16.1 refuses or hangs on: the scaling of fp8, user buffers over PCIe, routers of one expert."""

from dataclasses import replace

import pytest

from planner.base.units import format_seconds
from planner.exporters.megatron_model import model_arguments, model_notes
from planner.imports.megatron import megatron_run
from planner.layouts import OptimizerKind, Precision, Recompute
from planner.models import load_model, model_names
from planner.step.timeline.timed import timed_estimate
from tests.export.test_frameworks import arguments, export, names, plan, value


@pytest.mark.parametrize(
    ("cluster", "form", "recipe", "bridge"),
    [
        ("dgx-h100", "hybrid", "tensorwise", "bf16_with_fp8_current_scaling_mixed"),
        ("dgx-b200", "e4m3", "mxfp8", "bf16_with_mxfp8_mixed"),
        ("mi300x-server", "hybrid", "tensorwise", "bf16_with_fp8_current_scaling_mixed"),
    ],
)
def test_fp8_is_scaled_as_nvidias_recipes_do_so_that_modules_may_be_repeated(cluster, form, recipe, bridge):
    """transformer_config.py: "Delayed scaling does not support moe_act and layernorm recompute for fp8"."""
    a_plan = plan("qwen3-30b-a3b", cluster, dp=16, ep=8, recompute=Recompute.FINE, precision=Precision.FP8)
    text, overrides = export("megatron", a_plan).text, export("megatron-bridge", a_plan).text
    assert value(text, "--recompute-modules") == "layernorm"
    assert (value(text, "--fp8-format"), value(text, "--fp8-recipe")) == (form, recipe)
    assert f'cfg.mixed_precision = get_mixed_precision_config("{bridge}")' in overrides
    assert ("cfg.mixed_precision.first_last_layers_bf16 = False" in overrides) == (recipe == "tensorwise")
    # The profile keeps parameters in 16 bits, the recipes in fp8.
    assert "cfg.mixed_precision.fp8_param_gather = False" in overrides


def test_fp8_parameters_beside_an_offloaded_optimizer_are_scaled_with_delay_and_repeat_no_modules():
    """arguments.py: --optimizer-cpu-offload beside --fp8-param-gather "in conjunction with --fp8-recipe delayed"."""
    layout = {"dp": 16, "recompute": Recompute.FINE, "precision": Precision.FP8, "offload_optimizer": True, "zero": 1}
    kept = export("megatron", plan("qwen3-30b-a3b", **layout))
    assert value(kept.text, "--fp8-recipe") == "tensorwise"
    narrow = export("megatron", plan("qwen3-30b-a3b", **layout, framework="megatron-core-deepep"))
    assert "--fp8-param-gather" in arguments(narrow.text)
    assert value(narrow.text, "--fp8-recipe") == "delayed"
    assert value(narrow.text, "--recompute-granularity") == "full"
    assert any("delayed scaling" in note for note in narrow.notes)
    muon = plan(dp=16, precision=Precision.FP8, optimizer=OptimizerKind.MUON, framework="megatron-core-deepep")
    assert "--fp8-param-gather" not in arguments(export("megatron", muon).text)


@pytest.mark.parametrize(
    ("cluster", "tp", "joined"),
    [
        ("dgx-h100", 8, True),
        ("dgx-h100", 16, False),
        ("gb200-nvl72", 16, True),
        ("h100-pcie", 2, False),
        ("mi300x-server", 8, False),
    ],
)
def test_user_buffers_join_tensor_ranks_of_one_nvlink_domain(cluster, tp, joined):
    a_plan = plan("llama3-70b", cluster, dp=4, tp=tp, sequence_parallel=True, framework="megatron-core")
    for to, word in (("megatron", "--tp-comm-overlap"), ("megatron-bridge", "tp_comm_overlap=True")):
        done = export(to, a_plan)
        body = "\n".join(line for line in done.text.splitlines() if not line.startswith("#"))
        assert (word in body) == joined
    text, asked = export("megatron", a_plan).text, a_plan.setup
    run = megatron_run(text, asked.cluster, asked.framework, gpus=4 * tp, model=None, vocab=None, attention="flash2")
    assert (run.setup.framework.overlap_tensor > 0) == joined
    assert format_seconds(timed_estimate(run.setup, run.layouts).step_time_s[0]) in text


def written(model: str) -> dict[str, tuple[str, ...]]:
    shape = load_model(model)
    return {name: tuple(values) for name, *values in model_arguments(shape, dropout=False, grouped=True)}


ROUTERS = {
    "mixtral-8x7b": {"load-balancing-type": "aux_loss"},
    "deepseek-v3": {"score-function": "sigmoid", "enable-expert-bias": None, "topk-scaling-factor": "2.5",
                    "num-groups": "8", "group-topk": "4", "load-balancing-type": "seq_aux_loss"},
    "kimi-k2": {"score-function": "sigmoid", "topk-scaling-factor": "2.827"},
    "glm-4.5": {"score-function": "sigmoid", "topk-scaling-factor": "2.5"},
    "llama4-scout": {"score-function": "sigmoid", "topk": "1", "pre-softmax": None},
    "deepseek-v2": {"pre-softmax": None, "topk-scaling-factor": "16"},
}  # fmt: skip


@pytest.mark.parametrize("model", ROUTERS)
def test_routers_are_the_models_own(model):
    for name, said in ROUTERS[model].items():
        assert written(model)[f"--moe-router-{name}"] == (() if said is None else (said,))


@pytest.mark.parametrize("model", [name for name in model_names() if not load_model(name).num_ssm_layers])
def test_every_preset_is_written_in_published_words_its_experts_balanced(model):
    """The plan takes experts as evenly loaded; a router of one expert needs a softmax before it, or Megatron stops."""
    found, shape = written(model), load_model(model)
    assert set(found) <= names("megatron", "arguments")
    if shape.num_experts:
        assert float(found["--moe-aux-loss-coeff"][0]) > 0
        assert shape.top_k > 1 or "--moe-router-pre-softmax" in found
    assert ("--qk-layernorm" in found) == bool(shape.qk_norm or shape.kv_lora_rank)


def test_a_window_has_the_token_itself_beside_those_before_it():
    """Megatron-LM's own script of GPT-OSS, whose window is of 128 tokens (examples/post_training/modelopt/conf)."""
    assert written("gpt-oss-20b")["--window-size"] == ("127,0",)


@pytest.mark.parametrize(
    ("model", "argument", "lost"),
    [
        ("gpt-oss-20b", "--softmax-type", None),
        ("llama4-scout", "--no-rope-freq", "chunks of 8,192"),
        ("gemma2-9b", "--quick-geglu", "caps on scores and logits"),
        ("gemma3-27b", "--quick-geglu", "norms behind each block"),
        ("gemma-2b", "--quick-geglu", "scaled embeddings"),
    ],
)
def test_traits_are_written_or_said_to_be_lost(model, argument, lost):
    assert argument in written(model)
    assert "--swiglu" not in written(model) or "gemma" not in model
    notes = [note for note in model_notes(load_model(model)) if "no argument for it" in note]
    assert [lost in note for note in notes] == ([] if lost is None else [True])


def test_a_mixture_of_ones_own_is_balanced_and_its_routing_said_to_be_unknown():
    own = replace(load_model("mixtral-8x7b"), name="mine")
    assert any(note.startswith("routing: planner doesn't know") for note in model_notes(own))
    assert not any(note.startswith("routing") for note in model_notes(load_model("mixtral-8x7b")))
    assert ("--moe-aux-loss-coeff", "1e-3") in model_arguments(own, dropout=False, grouped=True)
