"""What Megatron-Core 0.16.1 refuses or hangs on: the scaling of fp8, user buffers over PCIe, routers of one expert."""

import json
import re
from dataclasses import replace

import pytest

from planner import Model, recommend
from planner.base.errors import FileFormatError, LayoutError
from planner.base.units import format_seconds
from planner.choices.training import read_training
from planner.exporters.megatron_bridge import RECIPES, WITHOUT_PEFT
from planner.exporters.megatron_model import model_arguments, model_notes
from planner.imports.megatron import megatron_run
from planner.layouts import Attention, Dispatcher, GradDtype, OptimizerKind, Precision, Recompute, Split
from planner.models import load_model, model_names
from planner.plan_file import read_plan
from planner.step.timeline.timed import timed_estimate
from tests.export.test_frameworks import arguments, export, names, plan, value
from tests.models import configs


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


def bridge(a_plan) -> dict[str, str]:
    """The overrides of the exported function, by name."""
    return dict(re.findall(r"^    cfg\.(\S+) = (.*)$", export("megatron-bridge", a_plan).text, re.MULTILINE))


def test_the_dataset_builds_no_mask():
    """gpt_dataset.py builds sequence x sequence numbers unless it is told not to; every kernel has its causal mask."""
    for attention in ("flash3", "unfused"):
        script = export("megatron", plan(dp=8, attention=Attention[attention.upper()])).text
        assert "--no-create-attention-mask-in-dataloader" in arguments(script)


@pytest.mark.parametrize(("cluster", "said"), [("gb200-nvl72", True), ("dgx-b300", True), ("dgx-h100", False)])
def test_a_file_for_blackwell_says_which_kernel_is_meant(cluster, said):
    """FlashAttention 3 is Hopper's alone."""
    text = export("megatron", plan("llama3-8b", cluster, dp=8, attention=Attention.FLASH3)).text
    top = " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    assert ("flash3 stands for Blackwell's best kernel, cuDNN's or FlashAttention 4." in top) == said


def test_megatron_fsdp_starts_without_a_whole_copy():
    """training.py moves all of a rank's part to the GPU before it is sharded, unless built on the meta device."""
    own = "--init-model-with-meta-device"
    assert own in arguments(export("megatron", plan("llama3-70b", dp=64, zero=3)).text)
    assert own not in arguments(export("megatron", plan("llama3-8b", dp=64, zero=1)).text)
    # shared_experts.py: its gate_weight is a parameter without reset_parameters, at which Megatron-FSDP stops.
    assert own not in arguments(export("megatron", plan("qwen2-57b-a14b", dp=64, ep=8, zero=3)).text)


def test_latent_attention_turns_user_buffers_off():
    """extensions/transformer_engine.py: TELinear with a buffer that is not qkv, proj, fc1 or fc2, as q_down_proj is."""
    latent = plan("deepseek-v3", dp=8, tp=8, ep=64, etp=1, sequence_parallel=True, global_batch=64, framework="nemo")
    assert latent.setup.framework.overlap_tensor > 0
    assert "--tp-comm-overlap" not in arguments(export("megatron", latent).text)
    assert bridge(latent)["comm_overlap"].startswith("CommOverlapConfig(tp_comm_overlap=False")
    bare = replace(latent.setup, framework=replace(latent.setup.framework, overlap_tensor=0.0))
    same = (timed_estimate(x, latent.layouts).step_time_s[0] for x in (latent.setup, bare))
    assert next(same) == next(same)


def test_muon_excludes_what_overlaps_and_none_is_predicted():
    """arguments.py of Megatron-Core 0.16.1: "Muon optimizer does not support overlap grad reduce for now"."""
    muon = plan("llama3-8b", dp=16, zero=1, optimizer=OptimizerKind.MUON, framework="megatron-core")
    assert not {"--overlap-grad-reduce", "--overlap-param-gather"} & set(arguments(export("megatron", muon).text))
    said = bridge(muon)
    assert said["ddp.overlap_grad_reduce"] == said["ddp.overlap_param_gather"] == "False"
    assert "overlap_grad_reduce=False, overlap_param_gather=False" in said["comm_overlap"]
    without = {"overlap_grad_reduce": 0.0, "overlap_param_gather": 0.0}
    bare = replace(muon.setup, framework=replace(muon.setup.framework, **without))
    same = (timed_estimate(x, muon.layouts).step_time_s[0] for x in (muon.setup, bare))
    assert next(same) == next(same)
    text, asked = export("megatron", muon).text, muon.setup
    run = megatron_run(text, asked.cluster, asked.framework, gpus=16, model=None, vocab=None, attention="flash2")
    assert run.switches == {}


def test_bridge_overrides_what_recipes_of_megatron_bridge_0_3_1_set():
    """llama31_405b sets account_for_*, which a layout excludes (transformer_config.py); deepseek_v3 moments in bf16,
    which Adam without the precision-aware optimizer must have in fp32 (optimizer_config.py); gpt3_175b user buffers."""
    said = bridge(plan("llama3-405b", dp=1, tp=8, pp=4, sequence_parallel=True, layer_split=Split.BALANCED))
    assert said["model.pipeline_model_parallel_layout"] != "None"
    assert {said[f"model.account_for_{end}_in_pipeline_split"] for end in ("embedding", "loss")} == {"False"}
    assert {said[f"model.num_layers_in_{end}_pipeline_stage"] for end in ("first", "last")} == {"None"}
    formats = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    for kind, aware, kept in (
        (OptimizerKind.ADAM, "False", ("float32",) * 4),
        (OptimizerKind.ADAM_BF16, "True", ("bfloat16", "float32", "bfloat16", "bfloat16")),
    ):
        said = bridge(plan("deepseek-v3", dp=64, ep=64, zero=1, optimizer=kind, grad_dtype=GradDtype.BF16))
        assert said["optimizer.use_precision_aware_optimizer"] == aware
        assert tuple(said[f"optimizer.{name}"] for name in formats) == tuple(f"torch.{dtype}" for dtype in kept)
    said = bridge(plan("gpt3-175b", dp=4, tp=8, pp=8, framework="megatron-core"))
    assert "tp_comm_overlap=False" in said["comm_overlap"]


def test_recipes_are_published_and_say_no_more_is_theirs_than_is():
    """Of every module of recipes with a preset's, functions are those of 0.3.1 (framework_names)."""
    for name, (module, function) in RECIPES.items():
        own = [function] if module in WITHOUT_PEFT else [function, function.replace("pretrain", "peft")]
        assert {f"{module}.{one}" for one in own} <= names("megatron-bridge", "recipes"), name
        load_model(name)
    for name, module in (("qwen3-30b-a3b", "qwen.qwen3_moe"), ("gpt-oss-20b", "gpt_oss.gpt_oss"),
                         ("qwen3-235b-a22b", "qwen.qwen3_moe"), ("kimi-k2", "kimi.kimi_k2")):  # fmt: skip
        text = export("megatron-bridge", plan(name, dp=32, ep=32)).text
        assert f"from megatron.bridge.recipes.{module} import" in text
    header = export("megatron-bridge", plan("deepseek-v3", dp=64, ep=64)).text.partition("import torch")[0]
    assert "what isn't set below of model and optimizer" in header


def test_kimis_recipe_trains_with_the_plans_optimizer():
    """kimi_k2_pretrain_config has dist_muon, of which optimizer/muon.py says "muon with dist optimizer is not
    supported"."""
    said = bridge(plan("kimi-k2", dp=64, ep=64, zero=1))
    assert (said["optimizer.optimizer"], said["optimizer.use_distributed_optimizer"]) == ('"adam"', "True")
    said = bridge(plan("kimi-k2", dp=64, ep=64, zero=1, optimizer=OptimizerKind.MUON))
    assert (said["optimizer.optimizer"], said["optimizer.use_distributed_optimizer"]) == ('"dist_muon"', "False")
    assert bridge(plan("glm-4.5", dp=32, ep=32))["model.mtp_num_layers"] == "None"


def test_adapters_start_from_a_recipe_for_adapters():
    """recipes/llama/llama3.py and recipes/qwen/qwen2.py have *_peft_config; llama2.py has none. Their data are packed
    to a length of their own, one row a micro-batch."""
    lora = {"dp": 16, "train": read_training("lora:16"), "zero": 1}
    text = export("megatron-bridge", plan("llama3-8b", **lora)).text
    assert "from megatron.bridge.recipes.llama.llama3 import llama3_8b_peft_config" in text
    assert "    cfg.dataset.packed_sequence_specs = None\n" in text
    assert "your_peft_config" in export("megatron-bridge", plan("llama2-7b", **lora)).text


@pytest.mark.parametrize("to", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize("model", ["mistral-7b", "gpt-oss-20b"])
def test_windows_over_context_ranks_exchange_heads(to, model):
    """Transformer Engine, context_parallel.py: "Context parallelism does not support sliding window attention with
    cp_comm_type p2p", nor a learnable softmax but with a2a."""
    ring = plan(model, dp=2, cp=4, tp=1, global_batch=16)
    done = export(to, ring)
    assert done.layouts.row(0)["ulysses"] == 4
    assert any("sliding windows over context ranks" in note for note in done.notes)
    assert ('"a2a"' in done.text) or value(done.text, "--cp-comm-type") == "a2a"
    with pytest.raises(LayoutError, match=r"cp 16: .* sliding windows over context ranks run by exchanged heads alone"):
        export(to, plan(model, dp=1, cp=16, tp=1, global_batch=16))
    best = recommend(model, "dgx-h100", gpus=8, batch=8, cp=4, framework=to).best
    assert best.layout["ulysses"] == 4


def test_latent_attention_over_context_ranks_takes_a_ring():
    """context_parallel.py: "Context parallelism does not support MLA with cp_comm_type a2a"."""
    done = export("megatron", plan("deepseek-v3", dp=16, cp=4, ulysses=4, ep=64, global_batch=16))
    assert value(done.text, "--cp-comm-type") == "p2p"


@pytest.mark.parametrize("to", ["megatron", "megatron-bridge"])
def test_experts_with_biases_are_whole_on_a_tensor_rank(to):
    """transformer_config.py: "Bias in Moe is only supported when ETP==1"."""
    done = export(to, plan("gpt-oss-20b", dp=4, tp=2, ep=4, etp=2, sequence_parallel=True))
    assert done.layouts.row(0)["etp"] == 1
    best = recommend("gpt-oss-20b", "dgx-h100", gpus=8, batch=16, tp=2, framework=to).best
    assert best.layout["etp"] == 1


def test_a_search_finds_experts_under_tensor_ranks_with_sequence_parallelism_alone():
    """moe_layer.py raises where tensor ranks of experts have none; planner had advised it for Mixtral on many GPUs."""
    question = {"gpus": 64, "batch": 64, "tp": 8, "ep": 8, "top": 1}
    assert recommend("mixtral-8x7b", "dgx-h100", **question).best.layout["sequence_parallel"]
    with pytest.raises(LayoutError, match="experts are trained under tensor parallelism with sequence parallelism"):
        recommend("mixtral-8x7b", "dgx-h100", sequence_parallel=False, **question)
    free = recommend("mixtral-8x7b", "dgx-h100", sequence_parallel=False, any_framework=True, **question)
    assert not free.best.layout["sequence_parallel"]


def written(model: str) -> dict[str, tuple[str, ...]]:
    shape = load_model(model)
    return {name: tuple(values) for name, *values in model_arguments(shape, dropout=False, grouped=True)}


ROUTERS = {
    "gpt-oss-20b": {"dtype": "fp32", "load-balancing-type": "aux_loss"},
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


KIMI = configs.KIMI_K2 | {"scoring_func": "sigmoid", "routed_scaling_factor": 2.827, "norm_topk_prob": True}
KIMI |= {"rope_theta": 50000.0, "rope_scaling": {
    "type": "yarn", "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 1.0, "beta_slow": 1.0,
    "original_max_position_embeddings": 4096,
}}  # fmt: skip


def of_file(tmp_path, name: str, config) -> tuple[dict[str, tuple[str, ...]], str]:
    """The arguments, and the notes in one, of a config.json in a folder of that name, or a file ending in .json."""
    path = tmp_path / name
    if path.suffix != ".json":
        path.mkdir()
        path /= "config.json"
    path.write_text(json.dumps(config))
    shape = load_model(str(path))
    return {key: tuple(values) for key, *values in model_arguments(shape, dropout=False, grouped=True)}, " ".join(
        model_notes(shape)
    )


def test_what_a_config_states_comes_before_every_name(tmp_path):
    """One config.json of Kimi's kind under three names had three routers."""
    found = [of_file(tmp_path, name, KIMI) for name in ("DeepSeek-V3", "Mixtral-8x7B", "mymoe.json")]
    assert found[0] == found[1] == found[2]
    said, notes = found[0]
    assert said["--moe-router-topk-scaling-factor"] == ("2.827",)
    assert said["--moe-router-score-function"] == ("sigmoid",)
    assert said["--moe-router-load-balancing-type"] == ("seq_aux_loss",)
    assert (said["--rotary-scaling-factor"], said["--mscale"], said["--mscale-all-dim"]) == (("32",), ("1",), ("1",))
    assert "doesn't know" not in notes.replace("norms' epsilon: planner doesn't know", "")
    assert "YaRN's beta_fast 1: Megatron-LM has no argument" in notes


def test_a_softmax_router_has_no_scale_and_no_bias_whatever_its_folder(tmp_path):
    """transformer_config.py: "Expert bias for aux-loss-free routing only supports sigmoid score function"."""
    plain = KIMI | {"scoring_func": "softmax", "routed_scaling_factor": 1.0}
    said, notes = of_file(tmp_path, "Kimi-K2-Base", plain)
    router = {name for name in said if name.startswith("--moe-router")}
    assert router == {f"--moe-router-{name}" for name in ("topk", "load-balancing-type", "dtype")}
    assert "routing" not in notes
    raw, _ = of_file(tmp_path, "raw", plain | {"norm_topk_prob": False, "routed_scaling_factor": 16})
    assert "--moe-router-pre-softmax" in raw
    assert raw["--moe-router-topk-scaling-factor"] == ("16",)
    _, notes = of_file(tmp_path, "unlike", KIMI | {"norm_topk_prob": False})
    assert "weights that don't sum to 1: Megatron-LM has no argument" in notes
    with pytest.raises(FileFormatError, match="scoring_func is 'tanh'; allowed: softmax or sigmoid"):
        of_file(tmp_path, "tanh.json", KIMI | {"scoring_func": "tanh"})


def test_layers_with_experts_are_those_that_a_config_says(tmp_path):
    every_other = ("([" + ",".join(["0,1"] * 24) + "])",)
    assert written("llama4-maverick")["--moe-layer-freq"] == every_other
    steps, _ = of_file(tmp_path, "mine.json", configs.LLAMA4 | {"use_qk_norm": False})
    listed, _ = of_file(tmp_path, "listed.json", configs.LLAMA4 | {"moe_layers": list(range(1, 48, 2))})
    assert steps["--moe-layer-freq"] == listed["--moe-layer-freq"] == every_other
    assert "--qk-l2-norm" in listed
    assert "--qk-l2-norm" not in steps
    assert {"--no-rope-freq", "--moe-apply-probs-on-input"} <= set(steps)
    qwen, _ = of_file(tmp_path, "qwen.json", configs.QWEN3_MOE | {"mlp_only_layers": [3]})
    assert qwen["--moe-layer-freq"] == ("([" + ",".join("0" if i == 3 else "1" for i in range(48)) + "])",)
    first, _ = of_file(tmp_path, "first.json", configs.QWEN3_MOE | {"mlp_only_layers": [0, 1]})
    assert first["--moe-layer-freq"] == ("([0]*2+[1]*46)",)


def test_yarn_outside_latent_attention_has_no_argument_and_no_advice(tmp_path):
    """gpt_model.py of 0.16.1 has YaRN there, but arguments.py none of its values; --use-rope-scaling is LLaMA 3.1's."""
    yarn = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    said, notes = of_file(tmp_path, "any.json", configs.GPT_OSS | {"rope_theta": 150000, "rope_scaling": yarn})
    for text in (notes, " ".join(model_notes(load_model("gpt-oss-20b")))):
        assert "scaling of rotary positions, yarn " in text
        assert "--use-rope-scaling" not in text
        assert "clamped gate" not in text
    assert not {"--use-rope-scaling", "--rotary-scaling-factor"} & set(said)
    assert said["--softmax-type"] == ("learnable",)


def test_what_a_model_says_in_words_travels_in_a_plan(tmp_path):
    saved = tmp_path / "plan.json"
    recommend("gpt-oss-20b", "dgx-h100", gpus=8, batch=16, tp=1, pp=1, top=1).save(saved)
    assert '"router": "softmax"' in saved.read_text()
    assert read_plan(saved).setup.model == load_model("gpt-oss-20b")


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
        ("gpt-oss-20b", "--softmax-type", "scaling of rotary positions, yarn factor 32"),
        ("llama4-scout", "--no-rope-freq", "chunks of 8,192"),
        ("gemma2-9b", "--quick-geglu", "caps on scores and logits"),
        ("gemma3-27b", "--quick-geglu", "norms behind each block"),
        ("gemma-2b", "--quick-geglu", "scaled embeddings"),
        ("opt-6.7b", "--num-layers", "its activation, ReLU"),  # Metaseq's; arguments.py has GELU and squared ReLU
    ],
)
def test_traits_are_written_or_said_to_be_lost(model, argument, lost):
    assert argument in written(model)
    assert "--swiglu" not in written(model) or "gemma" not in model
    notes = [note for note in model_notes(load_model(model)) if "no argument for it" in note]
    assert [lost in note for note in notes] == ([] if lost is None else [True])


@pytest.mark.parametrize(
    ("model_type", "arguments", "lost"),
    [
        ("granite", {}, "multipliers of embeddings"),
        ("glm4", {"--rotary-percent": ("0.5",), "--add-qkv-bias": ()}, "norms behind each block"),
        ("cohere2", {"--no-rope-freq": ("4",), "--normalization": ("LayerNorm",)}, "scaled logits"),
        ("minimax_m2", {"--rotary-percent": ("0.5",)}, ""),
    ],
)
def test_traits_of_a_config_are_written_or_said_to_be_lost(model_type, arguments, lost, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(configs.CONFIGS[model_type] | {"rope_theta": 10000, "rotary_dim": 64}))
    model = load_model(str(file))
    found = {name: tuple(values) for name, *values in model_arguments(model, dropout=False, grouped=False)}
    assert arguments.items() <= found.items()
    notes = [note for note in model_notes(model) if "no argument for it" in note and "parallel_block" not in note]
    assert [lost in note for note in notes] == [True] * bool(lost)


def test_norms_are_the_models_own():
    """transformers, modeling_cohere.py: CohereLayerNorm subtracts the mean and has no bias."""
    assert written("command-r")["--normalization"] == ("LayerNorm",)
    assert any("norms without bias" in note for note in model_notes(load_model("command-r")))
    assert written("llama3-8b")["--normalization"] == ("RMSNorm",)


@pytest.mark.parametrize(
    ("chosen", "scope"),
    [
        ({"model": "llama3-8b", "dp": 8}, "attn mlp"),
        ({"model": "mixtral-8x7b", "dp": 16, "ep": 8}, "attn moe_router moe_preprocess"),
        ({"model": "mixtral-8x7b", "dp": 16, "ep": 8, "capacity_factor": 1.0}, "attn moe_router"),
        ({"model": "llama3-8b", "dp": 8, "recompute": Recompute.FULL}, None),
        ({"model": "llama3-8b", "dp": 8, "offload_layers": 2}, None),
        ({"model": "gpt3-1.3b", "dp": 8, "recompute": Recompute.SELECTIVE}, None),  # its recipe has dropout
    ],
)
def test_graphs_hold_what_megatron_core_lets_them(chosen, scope):
    """transformer_config.py: "full recompute is only supported with full iteration CUDA graph", and asserts beside."""
    a_plan = plan(cuda_graphs=True, **chosen)
    script, overrides = export("megatron", a_plan), bridge(a_plan)
    words = " ".join(arguments(script.text))
    assert ("--cuda-graph-impl transformer_engine" in words) == (scope is not None)
    assert overrides["model.cuda_graph_impl"] == ('"transformer_engine"' if scope else '"none"')
    assert any(note.startswith("cuda_graphs") for note in script.notes) == (scope is None)
    if scope:
        assert f"--cuda-graph-scope {scope}" in words
        assert overrides["model.cuda_graph_scope"] == "[" + ", ".join(f'"{part}"' for part in scope.split()) + "]"
    elsewhere = export("deepspeed", plan("llama3-8b", dp=8, zero=3, cuda_graphs=True))
    assert "cuda_graphs" in " ".join(elsewhere.notes)


def test_flex_dispatchers_take_probabilities_in_fp32():
    """token_dispatcher.py: "DeepEP only supports float32 probs, please set --moe-router-dtype=fp32"."""
    own = replace(load_model("mixtral-8x7b"), name="mine")
    deepep = plan(own, dp=16, ep=8, framework="megatron-core-deepep")
    assert value(export("megatron", deepep).text, "--moe-router-dtype") == "fp32"
    assert bridge(deepep)["model.moe_router_dtype"] == '"fp32"'
    plain = plan(own, dp=16, ep=8, dispatcher=Dispatcher.ALLTOALL)
    assert value(export("megatron", plain).text, "--moe-router-dtype") is None


def test_a_mixture_of_ones_own_is_balanced_and_its_routing_said_to_be_unknown():
    own = replace(load_model("mixtral-8x7b"), name="mine", router="")
    assert any(note.startswith("routing: planner doesn't know") for note in model_notes(own))
    assert any(note.startswith("experts' balance: planner doesn't know") for note in model_notes(own))
    assert not any(note.startswith("routing") for note in model_notes(load_model("mixtral-8x7b")))
    assert ("--moe-aux-loss-coeff", "1e-3") in model_arguments(own, dropout=False, grouped=True)


def test_a_search_that_names_no_framework_finds_what_the_clusters_can_write():
    """Megatron-Core's clusters had windows in a ring, which no export has; --any-framework searches it still."""
    question = {"gpus": 8, "batch": 32, "cp": 4, "top": 1}
    model = Model("mistral-7b", seq_len=32768)
    assert recommend(model, "dgx-h100", **question).best.layout["ulysses"] == 4
    ring = recommend(model, "dgx-h100", ulysses=1, any_framework=True, **question).best
    assert (ring.layout["cp"], ring.layout["ulysses"]) == (4, 1)
