"""Plans as frameworks' own files: their published names, their rules, hostile names, what is said of what is lost."""

import ast
import json
import re
import shlex
import subprocess
import textwrap
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import Cluster, Model, recommend
from planner.base.errors import LayoutError, OutputError, PlannerError, UnknownNameError
from planner.choices.pipeline_layout import parse_pipeline_layout, pipeline_layout_text
from planner.exporters.plan_export import ALIASES, TARGETS, Export, export_plan, get_target
from planner.hardware import load_cluster, load_framework, profile_names
from planner.layouts import Attention, GradDtype, Layouts, MainDtype, OptimizerKind, Precision, Recompute, Split
from planner.models import load_model, with_seq_len
from planner.plan_file import SavedPlan
from planner.question import careful, load_setup, what_is_fixed
from planner.schedules import get_schedule
from planner.setup import Setup
from planner.step.legality import legal
from planner.step.timeline.timed import timed_estimate

NAMES = {
    path.stem: tomllib.loads(path.read_text()) for path in (Path(__file__).parent / "framework_names").glob("*.toml")
}
"""Names that each framework publishes, by the table they stand in, with version and source."""


def names(framework: str, table: str) -> set[str]:
    return set(NAMES[framework][table]["names"])


def plan(model: str = "llama3-8b", cluster: str = "dgx-h100", framework: str = "", **layout: Any) -> SavedPlan:
    hardware, shape = load_cluster(cluster), load_model(model) if isinstance(model, str) else model
    stack = load_framework(framework or hardware.framework)
    table = Layouts.of(**({"global_batch": 64} | layout))
    assert legal(shape, hardware, table).all()
    return SavedPlan(setup=Setup(shape, hardware, stack), layouts=table, record={})


def export(to: str, a_plan: SavedPlan, **how: Any) -> Export:
    return export_plan(a_plan, get_target(to), **how)


PLANS = {
    "gpt": lambda: plan("gpt3-175b", dp=4, tp=8, pp=8, global_batch=64, sequence_parallel=True),
    "interleaved": lambda: plan("llama3-8b", dp=2, tp=2, pp=4, virtual_stages=4, schedule="interleaved"),
    "balanced": lambda: plan("llama3-70b", dp=2, tp=8, pp=7, layer_split=Split.BALANCED, recompute=Recompute.FULL),
    "fsdp": lambda: plan("llama3-8b", dp=16, zero=3, recompute=Recompute.FULL),
    "hybrid": lambda: plan("llama3-8b", dp=16, zero=3, dp_replicate=2, recompute=Recompute.FULL),
    "offload": lambda: plan("llama3-8b", dp=16, zero=2, offload_optimizer=True, recompute=Recompute.SELECTIVE),
    "context": lambda: plan("llama3-8b", dp=4, cp=4, tp=2, zero=3, sequence_parallel=True),
    "experts": lambda: plan("mixtral-8x7b", dp=16, tp=2, ep=8, pp=2, precision=Precision.FP8),
    "latent": lambda: plan("deepseek-v3", dp=32, ep=32, pp=8, layer_split=Split.BALANCED),
    "multi-token": lambda: plan(
        "deepseek-v3-mtp", dp=16, ep=16, pp=4, virtual_stages=4, schedule="interleaved", layer_split=Split.LAST
    ),
    "replicas": lambda: plan("qwen2-1.5b", dp=8, zero=0),
    "fp8": lambda: plan("llama3-8b", dp=16, zero=3, precision=Precision.FP8),
    "zero-bubble": lambda: plan("llama3-8b", dp=2, tp=2, pp=4, schedule="zb-h1"),
    "v": lambda: plan("llama3-8b", dp=2, tp=2, pp=4, virtual_stages=2, schedule="v-half"),
}


@pytest.fixture(params=PLANS)
def any_plan(request) -> SavedPlan:
    return PLANS[request.param]()


def arguments(text: str) -> list[str]:
    """The words of the script's arrays."""
    arrays = re.findall(r"^(\w+)=\(\n(.*?)^\)$", text, re.MULTILINE | re.DOTALL)
    return [word for name, body in arrays if name != "OPTIMIZER_ARGS" for word in shlex.split(body)]


def value(text: str, name: str) -> str | None:
    words = arguments(text)
    return words[words.index(name) + 1] if name in words else None


def test_every_framework_has_its_names_with_version_and_source():
    assert set(NAMES) == set(TARGETS)
    for name, target in TARGETS.items():
        assert NAMES[name]["version"] in target.version
        assert NAMES[name]["source"].startswith("https://github.com/")


def test_megatron_arguments_are_published_and_the_script_is_sound(any_plan, tmp_path):
    text = export("megatron", any_plan).text
    published = names("megatron", "arguments")
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#")).split("torchrun")[0]
    used = set(re.findall(r"(?<![\w-])--[a-z0-9-]+", body))
    used |= {"--eval-iters", "--eval-interval", "--log-interval", "--log-throughput"}
    assert used <= published, used - published
    script = tmp_path / "launch.sh"
    script.write_text(text)
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_megatron_script_starts_torchrun_with_its_arguments(tmp_path):
    """Run with a stand-in for torchrun: the words that it is given are those of the arrays, data paths the user's."""
    script, fake = tmp_path / "launch.sh", tmp_path / "torchrun"
    text = export("megatron", PLANS["latent"]()).text
    script.write_text(text)
    fake.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    paths = {"DATA_PATH": "/my data/$(touch x)", "TOKENIZER_TYPE": "HuggingFaceTokenizer", "TOKENIZER_MODEL": "/tok"}
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"} | paths
    done = subprocess.run(["bash", str(script), "--extra"], capture_output=True, text=True, env=environment, check=True)
    words = done.stdout.splitlines()
    assert words[words.index("--data-path") + 1] == paths["DATA_PATH"]
    assert words[-1] == "--extra"
    assert [w for w in arguments(text) if w.startswith("--num")] == [w for w in words if w.startswith("--num")]
    assert words[words.index("--moe-layer-freq") + 1] == "([0]*3+[1]*58)"
    mock = subprocess.run(
        ["bash", str(script)], capture_output=True, text=True, env={"PATH": environment["PATH"]}, check=True
    )
    assert "--mock-data" in mock.stdout.splitlines()
    assert not (tmp_path / "x").exists()


def test_megatron_says_the_layout():
    text = export("megatron", PLANS["interleaved"]()).text
    assert value(text, "--tensor-model-parallel-size") == "2"
    assert value(text, "--num-layers-per-virtual-pipeline-stage") == "2"
    assert value(text, "--global-batch-size") == "64"
    assert "--use-distributed-optimizer" in arguments(text)
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" in text
    sharded = export("megatron", PLANS["fsdp"]()).text
    assert value(sharded, "--data-parallel-sharding-strategy") == "optim_grads_params"
    assert "unset CUDA_DEVICE_MAX_CONNECTIONS" in sharded
    assert value(sharded, "--recompute-method") == "uniform"
    experts = export("megatron", PLANS["experts"]())
    assert value(experts.text, "--fp8-format") == "hybrid"
    assert "--sequence-parallel" in arguments(experts.text)
    assert any("sequence_parallel off" in note for note in experts.notes)
    # Parameters are gathered in fp8 where the framework's profile has it so, and with the distributed optimizer alone.
    for framework, zero, gathers in (("nemo", 1, True), ("nemo", 0, False), ("megatron-core", 1, False)):
        fp8 = plan("llama3-8b", dp=16, zero=zero, precision=Precision.FP8)
        chosen = replace(fp8, setup=replace(fp8.setup, framework=load_framework(framework)))
        assert ("--fp8-param-gather" in arguments(export("megatron", chosen).text)) == gathers


def test_copies_of_sharded_states():
    """Two copies of eight shards each, in every framework's own words; DeepSpeed's has none."""
    asked = PLANS["hybrid"]()
    assert value(export("megatron", asked).text, "--num-distributed-optimizer-instances") == "2"
    assert "ddp.num_distributed_optimizer_instances = 2" in export("megatron-bridge", asked).text
    for to, names in (
        ("torchtitan", ("data_parallel_replicate_degree=2", "data_parallel_shard_degree=8")),
        ("torchtitan-toml", ("data_parallel_replicate_degree = 2", "data_parallel_shard_degree = 8")),
        ("accelerate", ("parallelism_config_dp_replicate_size: 2", "parallelism_config_dp_shard_size: 8")),
    ):
        text = export(to, asked).text
        assert all(name in text for name in names)
    done = export("deepspeed", asked)
    assert done.layouts.dp_replicate.tolist() == [1]
    assert any(note.startswith("dp_replicate 2: no key") for note in done.notes)
    assert get_target("deepspeed").only(what_is_fixed()).dp_replicate == (1,)


def stages_of(layout: str) -> list[str]:
    """Megatron-LM's own reading of a pipeline layout: unroll (..)*n, then x*n."""
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        layout = re.sub(pattern, lambda m: m.group(1) * int(m.group(2)), layout)
    return layout.split("|")


@given(st.lists(st.integers(0, 30), min_size=2, max_size=70))
def test_pipeline_layout_reads_back_as_the_stages(stages):
    text = pipeline_layout_text(stages)
    parts = stages_of(text)
    assert list(parse_pipeline_layout(text).layers) == stages
    assert [part.count("t") for part in parts] == stages
    assert (parts[0][0], parts[-1][-1]) == ("E", "L")


def test_modules_of_multi_token_prediction():
    """As DeepSeek-V3's recipes lay it out: 15 chunks of four layers, then one with the module before the loss."""
    a_plan = PLANS["multi-token"]()
    text = export("megatron", a_plan).text
    assert value(text, "--mtp-num-layers") == "1"
    assert value(text, "--pipeline-model-parallel-layout") == "Et*4|(t*4|)*14tmL"
    bridge = export("nemo", a_plan).text
    assert "    cfg.model.mtp_num_layers = 1\n" in bridge
    assert "deepseek_v3_pretrain_config" in bridge
    without = PLANS["latent"]()
    assert "    cfg.model.mtp_num_layers = None\n" in export("nemo", without).text  # its recipe has one
    assert "mtp" not in export("megatron", without).text
    said = "multi-token prediction, 1 module: no key for it; the model's own code has them"
    alone = plan("deepseek-v3-mtp", dp=64, zero=2)
    assert said in export("deepspeed", alone).notes
    assert said in export("accelerate", alone).notes
    assert said not in export("accelerate", plan("deepseek-v3", dp=64, zero=2)).notes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ffn": 14330}, "feed-forward size 14330 divisible by tp 4"),
        ({"hidden": 4090, "head_dim": 128}, "hidden size 4090 divisible by tp 4"),
    ],
)
def test_megatron_rules_beyond_ours(changes, said):
    model = replace(load_model("llama3-8b"), **changes)
    with pytest.raises(LayoutError, match=said):
        export("megatron", plan(model, dp=2, tp=4))


def test_megatron_does_not_write_a_hybrid_as_something_else():
    hybrid = plan(load_model("nemotron-h-8b"), dp=2, tp=4)
    with pytest.raises(LayoutError, match=r"nemotron-h-8b has state-space layers.*megatron-bridge"):
        export("megatron", hybrid)
    assert "your_pretrain_config" in export("megatron-bridge", hybrid).text


@pytest.mark.parametrize(
    ("optimizer", "zero", "words"),
    [
        (OptimizerKind.ADAM_BF16, 1, "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"),
        (OptimizerKind.ADAM_8BIT, 1, "--exp-avg-dtype fp8 --exp-avg-sq-dtype fp8"),
        (OptimizerKind.MUON, 1, "--optimizer dist_muon"),
        (OptimizerKind.MUON, 0, "--optimizer muon"),
        (OptimizerKind.SGD, 0, "--optimizer sgd"),
    ],
)
def test_optimizers_have_megatrons_names(optimizer, zero, words):
    asked = plan("llama3-8b", dp=16, zero=zero, optimizer=optimizer)
    text = export("megatron", asked).text
    assert words in " ".join(arguments(text))
    assert ("--use-precision-aware-optimizer" in text) == (optimizer in (1, 2))
    assert ("--use-distributed-optimizer" in text) == (zero == 1 and optimizer != OptimizerKind.MUON)
    bridge = export("megatron-bridge", asked).text
    ast.parse(bridge)
    assert ("cfg.optimizer.use_precision_aware_optimizer = True" in bridge) == (optimizer in (1, 2))
    assert ('cfg.optimizer.optimizer = "dist_muon"' in bridge) == (words == "--optimizer dist_muon")


def test_optimizers_that_megatron_shards_otherwise():
    aware = export("megatron", plan("llama3-8b", dp=16, zero=0, optimizer=OptimizerKind.ADAM_BF16))
    assert aware.layouts.zero.tolist() == [1]
    sgd = export("megatron", plan("llama3-8b", dp=16, zero=1, optimizer=OptimizerKind.SGD))
    assert sgd.layouts.zero.tolist() == [0]
    assert any("the distributed optimizer is Adam's" in note for note in sgd.notes)
    half = plan("llama3-8b", dp=16, zero=1, optimizer=OptimizerKind.MUON, precision=Precision.FP16)
    with pytest.raises(LayoutError, match="optimizer muon: Megatron-LM has no Muon in fp16"):
        export("megatron", half)
    mixed = export("megatron", plan("llama3-8b", dp=16, grad_dtype=GradDtype.FP32, grad_reduce_dtype=GradDtype.BF16))
    assert mixed.layouts.row(0)["grad_dtype"] == "bf16"
    assert "--grad-reduce-in-bf16" in mixed.text


@pytest.mark.parametrize("to", ["megatron", "megatron-bridge"])
def test_megatron_is_searched_for_the_optimizers_that_it_distributes(to):
    """And for those that it moves to the host, which wants them distributed, over one replica too."""
    ask = {"gpus": 8, "batch": 64, "framework": to, "top": 5}
    sgd = recommend("llama3-8b", "dgx-h100", **ask, optimizer="sgd", allow_offload=True)
    found = [*sgd, *recommend("llama3-70b", "dgx-h100", **ask, allow_offload=True)]
    assert [one.layout["zero"] == 0 for one in found] == [not one.layout["offload_optimizer"] for one in found]
    assert {one.layout["offload_optimizer"] for one in found} == {True, False}
    for one in found:
        done = export(to, one.as_plan()).layouts.row(0)
        assert (done["zero"], done["offload_optimizer"]) == (one.layout["zero"], one.layout["offload_optimizer"])
    with pytest.raises(LayoutError, match=r"no legal layout .*: the distributed optimizer is Adam's"):
        recommend("llama3-8b", "dgx-h100", **ask, optimizer="sgd", zero=1)
    with pytest.raises(LayoutError, match=r"moves to the host no optimizer but Adam; recommend with adam"):
        export(to, plan("llama3-8b", dp=16, offload_optimizer=True, optimizer=OptimizerKind.SGD))


@pytest.mark.parametrize("to", ["torchtitan", "torchtitan-toml", "accelerate"])
def test_frameworks_without_an_optimizer_refuse_it_in_one_line(to):
    with pytest.raises(LayoutError, match=r"optimizer sgd: .* has no setting for it; leave it out"):
        export(to, plan("llama3-8b", dp=16, zero=2, optimizer=OptimizerKind.SGD))


def test_gradients_are_written_as_the_plan_has_them():
    def stated(to: str) -> str:
        half = plan("llama3-8b", dp=16, zero=2, grad_dtype=GradDtype.BF16)
        return export(to, half).text

    assert '"grad_accum_dtype": "bf16"' in stated("deepspeed")
    assert '"communication_data_type": "bf16"' in stated("deepspeed")
    assert "cfg.mixed_precision.grad_reduce_in_fp32 = False" in stated("megatron-bridge")
    sent = plan("llama3-8b", dp=16, zero=2, grad_reduce_dtype=GradDtype.BF16)
    assert 'mixed_precision_reduce = "bfloat16"' in export("torchtitan-toml", sent).text
    kept = export("torchtitan", plan("llama3-8b", dp=16, zero=2, grad_dtype=GradDtype.BF16))
    assert any(note.startswith("grad_dtype bf16: FSDP keeps") for note in kept.notes)


@pytest.mark.parametrize(
    ("framework", "parts"),
    [("torchtitan", None), ("torchtitan-compiled", ["model", "loss"]), ("torchtitan-compiled-model", ["model"])],
)
def test_torchtitan_compiles_what_the_prediction_assumes_compiled(framework, parts):
    sent = plan("llama3-8b", dp=16, zero=2)
    sent = replace(sent, setup=replace(sent.setup, framework=load_framework(framework)))
    asked = "enable=False" if parts is None else f"enable=True, components={json.dumps(parts)}"
    written = export("torchtitan", sent).text.splitlines()
    assert [one for one in written if "config.compile" in one] == [f"    config.compile = CompileConfig({asked})"]
    assert set(re.findall(r"(\w+)=", asked)) <= names("torchtitan", "CompileConfig")
    table = tomllib.loads(export("torchtitan-toml", sent).text).get("compile")
    assert table == (None if parts is None else {"enable": True, "components": parts})


def test_deepspeed_keys_are_published(any_plan):
    if any_plan.row["cp"] > 1:
        with pytest.raises(LayoutError, match="cp 4: DeepSpeed has no ring"):
            export("deepspeed", any_plan)
        return
    config = json.loads(export("deepspeed", any_plan).text)
    said = config.pop("comment")
    assert said[0].endswith("written by planner export.")
    assert set(config) <= names("deepspeed", "top")
    for key in ("zero_optimization", "tensor_parallel", "pipeline", "bf16", "fp16"):
        assert set(config.get(key, {})) <= names("deepspeed", key)
    offload = config["zero_optimization"].get("offload_optimizer", {})
    assert set(offload) <= names("deepspeed", "offload_optimizer")
    assert any("DeepSpeedCPUAdam" in x for x in said) == bool(offload) == any_plan.row["offload_optimizer"]
    world = any_plan.row["dp"]
    per_gpu = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"]
    assert config.get("train_batch_size", per_gpu * world) == per_gpu * world == any_plan.row["global_batch"]
    # runtime/config.py asserts it with tensor ranks as replicas, unless an mpu tells them apart.
    assert ("train_batch_size" in config) == (any_plan.row["tp"] == 1 or any_plan.row["pp"] > 1)
    # AutoTP would split a PipelineModule's stages that its topology's model ranks share already.
    assert ("tensor_parallel" in config) == (any_plan.row["tp"] > 1 and any_plan.row["pp"] == 1)


def test_torchtitan_fields_are_published(any_plan, tmp_path):
    path = tmp_path / "recipe.py"
    done = export("torchtitan", any_plan, path=path, base="my.recipes:base")
    tree = ast.parse(done.text)
    (call,) = [
        n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "ParallelismConfig"
    ]
    used = {keyword.arg for keyword in call.keywords}
    assert used <= names("torchtitan", "ParallelismConfig")
    assert set(re.findall(r"config\.training\.(\w+)", done.text)) <= names("torchtitan", "TrainingConfig")
    fields = {k.arg: ast.unparse(k.value) for k in call.keywords}
    degrees = ("data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "context_parallel",
               "pipeline_parallel")  # fmt: skip
    product = 1
    for name in degrees:
        product *= int(fields[f"{name}_degree"])
    assert product == any_plan.gpus
    if "pipeline_parallel_schedule" in fields:
        assert ast.literal_eval(fields["pipeline_parallel_schedule"]) in names("torchtitan", "schedules")
        parts = ast.literal_eval(fields["module_fqns_per_model_part"])
        modules = [name for part in parts for name in part]
        layers = [f"layers.{i}" for i in range(any_plan.setup.model.num_layers)]
        assert modules == ["tok_embeddings", *layers, "norm", "lm_head"]
    for file, text in done.companions.items():
        assert file == tmp_path / "recipe.schedule.csv"
        assert len(text.splitlines()) == any_plan.row["pp"]
        assert f'with_name("{file.name}")' in done.text


@pytest.mark.parametrize("model", ["llama3-8b", "qwen3-235b-a22b", "deepseek-v3"])
def test_torchtitan_trains_on_sequences_longer_than_a_flavors(model):
    """models/common/decoder.py of 0.3.0: "Training sequence length 1048576 exceeds attention RoPE maximum supported
    sequence length 131072", which is that of the first layer; 40,960 and 16,384 of the others here."""
    long = with_seq_len(load_model(model), 2**20)
    text = export("torchtitan", plan(long, dp=4, cp=16, zero=3, recompute=Recompute.FULL)).text
    layers = [SimpleNamespace(attention=SimpleNamespace(rope=SimpleNamespace(max_seq_len=16384))) for _ in range(2)]
    config = SimpleNamespace(model_spec=SimpleNamespace(model=SimpleNamespace(layers=layers)))
    loop = re.search(r"^    for layer in .*\n        .*\n", text, re.MULTILINE)
    exec(textwrap.dedent(loop[0]), {"config": config})
    assert {layer.attention.rope.max_seq_len for layer in layers} == {2**20}
    assert text.index("config.model_spec = ") < loop.start()


def test_torchtitan_trains_in_fp8_where_the_plan_does():
    """By its converters, with their published fields; experts too. What it can't write is not searched."""
    for name, converters in (
        ("fp8", ["Float8LinearConverter"]),
        ("experts", ["Float8LinearConverter", "Float8GroupedExpertsConverter"]),
    ):
        done = export("torchtitan", PLANS[name](), base="my.recipes:base")
        assert done.layouts.row(0)["precision"] == "fp8"
        calls = {n.func.value.id: n for n in ast.walk(ast.parse(done.text))
                 if isinstance(n, ast.Call) and getattr(n.func, "attr", "") == "Config"}  # fmt: skip
        assert list(calls) == [c for c in converters if c in names("torchtitan", "quantization")]
        assert f"from torchtitan.components.quantization import {', '.join(converters)}\n" in done.text
        for converter, call in calls.items():
            assert {keyword.arg for keyword in call.keywords} <= names("torchtitan", converter)
        assert 'mixed_precision_param = "bfloat16"' in done.text
        # components/quantization/float8.py warns of fp8 without torch.compile, whose fused casts the seconds count.
        assert "config.compile = CompileConfig(enable=True" in done.text
        assert "Predicted with profile torchtitan-compiled: " in done.text
    eager = recommend("llama3-8b", "dgx-h100", gpus=8, batch=16, framework="torchtitan", precision="fp8", top=1)
    assert eager.setup.framework.name == "torchtitan-compiled"
    # 405B's own recipe asks for fp8: a plan in bf16 takes the model without it.
    whole = export("torchtitan", plan("llama3-405b", dp=8, tp=8, pp=9, zero=1, layer_split=Split.BALANCED)).text
    assert 'config.model_spec = model_registry("405B", attn_backend="flex")' in whole
    assert "from torchtitan.models.llama3 import model_registry" in whole
    assert "convert" not in whole
    qwen = plan("qwen3-30b-a3b", dp=16, ep=8, zero=2, precision=Precision.FP8)
    assert export("torchtitan-toml", qwen).layouts.row(0)["precision"] == "bf16"
    for to, model, precision in (
        ("torchtitan", "llama3-8b", "nvfp4"), ("torchtitan-toml", "qwen3-30b-a3b", "fp8"),
        ("deepspeed", "llama3-8b", "fp8"), ("accelerate", "llama3-8b", "nvfp4"),
    ):  # fmt: skip
        with pytest.raises(LayoutError, match=f"precision {precision}: .*recommend with --precision bf16"):
            get_target(to).check_question(load_model(model), precision)


def test_what_torchtitan_is_recommended_is_expressed():
    """In a pipeline FSDP that gathers once a step is ZeRO 1: nothing of it is lost."""
    asked = plan("llama3-8b", dp=4, pp=2, cp=2, zero=1)
    for to in ("torchtitan", "torchtitan-toml"):
        done = export(to, asked)
        assert done.layouts.row(0) == asked.row
        assert "fsdp_reshard_after_forward" in done.text
        assert '"never"' in done.text
        assert not any("zero" in note for note in done.notes)


def test_torchtitan_writes_schedules_that_pytorch_has_no_name_for(tmp_path):
    done = export("torchtitan-toml", PLANS["v"](), path=tmp_path / "a b.toml")
    assert [p.name for p in done.companions] == ["a_b.schedule.csv"]
    assert 'pipeline_parallel_schedule = "ZBVZeroBubble"' in done.text
    assert export("torchtitan", PLANS["interleaved"]()).companions == {}
    with pytest.raises(OutputError, match="schedule zb-h1 needs a CSV beside the recipe"):
        export("torchtitan-toml", PLANS["zero-bubble"]())


@pytest.mark.parametrize("name", ["v", "zero-bubble"])
def test_compiled_layers_split_no_backward_pass(name):
    """torchtitan 0.3 compiles its attention; 0.2.2 what it is told to."""
    asked = PLANS[name]()
    compiled = replace(asked, setup=replace(asked.setup, framework=load_framework("torchtitan-compiled")))
    for done in (export("torchtitan", asked), export("torchtitan-toml", compiled)):
        assert not get_schedule(done.layouts.row(0)["schedule"]).splits_backward
        assert any("can't split the backward pass; exported as" in note for note in done.notes)


def test_torchtitan_toml_keys_are_published(tmp_path):
    for name in ("interleaved", "balanced", "fsdp", "offload", "context", "latent", "zero-bubble", "fp8"):
        config = tomllib.loads(export("torchtitan-toml", PLANS[name](), path=tmp_path / "job.toml").text)
        if name == "fp8":
            assert config["model"]["converters"] == ["quantize.linear.float8"]
            assert set(config["quantize"]["linear"]["float8"]) <= names("torchtitan-toml", "quantize.linear.float8")
        for table, content in config.items():
            assert set(content) <= names("torchtitan-toml", table)


@pytest.mark.parametrize(
    "base", ["", "my.recipes", "my.recipes:", "a:b:c", "a;import os:b", "a:b\nimport os", "..:b", "a.b:c()"]
)
def test_torchtitan_takes_no_other_python_as_base(base):
    with pytest.raises(LayoutError, match="--base is"):
        export("torchtitan", PLANS["gpt"](), base=base)


def test_torchtitan_needs_a_base_for_other_models():
    with pytest.raises(LayoutError, match="torchtitan registers no model of the sizes of gpt3-175b"):
        export("torchtitan", PLANS["gpt"]())


def test_bridge_fields_are_published(any_plan):
    text = export("nemo", any_plan).text
    ast.parse(text)
    used = re.findall(r"^    cfg\.(\w+)(?:\.(\w+))? = (.*)$", text, re.MULTILINE)
    for part, key, what in used:
        assert part in names("megatron-bridge", "top")
        assert not key or key in names("megatron-bridge", part), (part, key)
        if part == "mixed_precision" and not key:
            recipe = re.fullmatch(r'(?:get_mixed_precision_config\()?("\w+")\)?', what)
            assert json.loads(recipe[1]) in names("megatron-bridge", "mixed_precision")
    assert len(used) > 15


def test_whole_gradients_are_counted_or_asked_away():
    """Transformers, trainer.py: without sync_each_batch all passes but the last are under no_sync."""
    several, once = (export("accelerate", plan("llama3-8b", dp=8, zero=3, global_batch=8 * n)).notes for n in (4, 1))
    assert any("gradient_accumulation_steps=4; every GPU keeps all gradients meanwhile" in said for said in several)
    for name in ("transformers-sync", "fsdp"):
        sharded = export("accelerate", plan("llama3-8b", framework=name, dp=8, zero=3, global_batch=32)).notes
        wanted = "gradient_accumulation_steps=4, and gradient_accumulation_kwargs sync_each_batch=True"
        assert any(wanted in said for said in sharded)
    replicas = export("accelerate", plan("llama3-8b", dp=8, zero=0, global_batch=32)).notes
    assert not any("sync_each_batch" in said for said in (*once, *replicas)), "DDP keeps whole gradients anyway"


def test_accelerate_keys_are_published(any_plan):
    row = any_plan.row
    if row["pp"] > 1 or row["ep"] > 1:
        with pytest.raises(LayoutError, match="Accelerate has no"):
            export("accelerate", any_plan)
        return
    text = export("accelerate", any_plan).text
    top = set(re.findall(r"^(\w+):", text, re.MULTILINE))
    assert top <= names("accelerate", "top")
    inner = set(re.findall(r"^  (\w+):", text, re.MULTILINE))
    assert inner <= names("accelerate", "fsdp_config") | names("accelerate", "parallelism_config")
    assert f"num_processes: {any_plan.gpus}" in text
    reshard = re.findall(r"fsdp_reshard_after_forward: (\w+)", text)
    assert reshard == ([] if row["zero"] == 0 else ["true" if row["zero"] == 3 else "false"])


HOSTILE = [
    'x"; rm -rf ~ #',
    "$(touch /tmp/x)",
    "`id`",
    "a\nb\r\ntorchrun evil",
    "'''\"\"\"",
    "\u2028import os",
    "%s{}\\",
    "é漢",
]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("to", TARGETS)
def test_names_of_models_stay_in_comments(to, name, tmp_path):
    """A model's name reaches comments and Python's function names only, and can't leave its line."""
    harmless = export(to, plan("llama3-8b", dp=16, zero=3), path=tmp_path / "f")
    model = replace(load_model("llama3-8b"), name=name)
    done = export(to, plan(model, dp=16, zero=3), path=tmp_path / "f")

    def program(text: str) -> list[str]:
        lines = [line for line in text.splitlines() if not line.lstrip().startswith(("#", "def ", '"'))]
        return [line for line in lines if "recipes" not in line]

    assert program(done.text) == program(harmless.text)
    if TARGETS[to].suffix == ".py":
        ast.parse(done.text)
    if to == "deepspeed":
        assert json.loads(done.text).keys() == json.loads(harmless.text).keys()


def test_what_is_lost_is_said_with_what_it_costs():
    done = export("megatron", PLANS["v"]())
    assert done.layouts.row(0)["schedule"] in ("1f1b", "interleaved")
    assert any(note.startswith("schedule v-half: no setting for it") for note in done.notes)
    for line in (
        "# NOT EXPRESSED: schedule v-half",
        "# The plan's own layout with profile ",
        "--framework megatron",
    ):
        assert line in done.text
    kept = export("megatron", PLANS["replicas"]())
    assert kept.notes == ()
    assert "NOT EXPRESSED" not in kept.text


@pytest.mark.parametrize("to", TARGETS)
def test_asynchronous_schedules_are_refused(to):
    other = plan("llama3-8b", dp=4, pp=4, schedule="2bw")
    with pytest.raises(LayoutError, match=r"schedule 2bw: .* keeps one version of the weights|pp 4"):
        export(to, other, path=Path("x"))


def test_what_does_not_fit_is_warned_of():
    done = export("megatron", plan("gpt3-175b", dp=8, tp=1, pp=1))
    assert "does not fit in memory" in done.warning
    assert "# WARNING: this does not fit in memory." in done.text


def test_unknown_frameworks_come_with_the_nearest():
    with pytest.raises(UnknownNameError, match="deepspeed"):
        get_target("deep-speed")
    assert {get_target(alias).name for alias in ALIASES} <= set(TARGETS)


@pytest.mark.parametrize("to", TARGETS)
def test_a_search_that_runs_on_a_framework_finds_what_it_can_run(to):
    """What `recommend --framework` allows changes nothing when it is exported but for numerics and what Python says."""
    fixed = get_target(to).only(what_is_fixed())
    assert fixed.schedule is not None
    with pytest.raises(LayoutError, match="schedule is 2bw; allowed on "):
        get_target(to).only(what_is_fixed(schedule="2bw"))


SIZES = st.sampled_from([1, 2, 4, 8])


@settings(max_examples=60, deadline=None)
@given(
    dp=SIZES, tp=SIZES, pp=SIZES, cp=st.sampled_from([1, 2]), ep=SIZES, micro_batch=st.sampled_from([1, 2]),
    zero=st.integers(0, 3), recompute=st.sampled_from(list(Recompute)), sequence_parallel=st.booleans(),
    dp_replicate=st.sampled_from([1, 1, 2]),
    schedule=st.sampled_from(["1f1b", "interleaved", "zb-v", "seq1f1b", "breadth-first", "chimera", "gpipe"]),
    to=st.sampled_from(sorted(TARGETS)), model=st.sampled_from(["llama3-8b", "mixtral-8x7b", "gpt2-medium"]),
)  # fmt: skip
def test_every_legal_layout_is_written_legally_or_refused(to, model, schedule, **choices):
    chunks = {"interleaved": 2, "zb-v": 2, "breadth-first": 2}.get(schedule, 1)
    layout = choices | {"virtual_stages": chunks, "sequence_slices": 2 if schedule == "seq1f1b" else 1}
    hardware, shape = load_cluster("dgx-h100"), load_model(model)
    table = Layouts.of(global_batch=64, schedule=schedule, **layout)
    if not legal(shape, hardware, table)[0]:
        return
    refusals = {
        "accelerate": choices["pp"] > 1 or choices["ep"] > 1,
        "deepspeed": choices["cp"] > 1 or table.row(0)["etp"] < choices["tp"],
        "torchtitan-toml": model != "llama3-8b",
    }
    how: dict[str, Any] = {"path": Path("x"), "base": "a:b" if to == "torchtitan" else None}
    asked = plan(model, schedule=schedule, **layout)
    if refusals.get(to, False):
        with pytest.raises(LayoutError, match=r"Accelerate has no|DeepSpeed has no |torchtitan registers no model"):
            export(to, asked, **how)
        return
    done = export(to, asked, **how)
    assert legal(shape, hardware, done.layouts)[0]
    changed = [key for key, was in table.row(0).items() if done.layouts.row(0)[key] != was]
    for key in changed:
        assert any(f"{key} " in note or note.startswith("schedule") for note in done.notes), (key, done.notes)


@pytest.mark.parametrize(
    ("name", "base", "scaling", "epsilon", "said"),
    [
        ("llama3-405b", "500000", "8", "1e-05", ()),
        ("llama3-8b", "500000", None, "1e-05", ()),
        ("llama3.1-8b", "500000", "8", "1e-05", ()),
        ("apertus-8b", "12000000", None, "1e-05", ("scaling of rotary positions: planner", "its activation, xIELU")),
        ("qwen3-8b", "1000000", None, "1e-06", ()),
        ("gpt3-2.7b", None, None, None, ("norms' epsilon: planner doesn't know this model's",)),
    ],
)  # fmt: skip
def test_a_script_trains_the_model_asked_for(name, base, scaling, epsilon, said):
    """LLaMA 3's rotary base is 500,000 where Megatron-LM's default is 10,000; what nobody knows is said."""
    done = export("megatron", plan(name, dp=8, tp=8, pp=2, zero=1))
    assert value(done.text, "--rotary-base") == base
    assert value(done.text, "--rope-scaling-factor") == scaling
    assert ("--use-rope-scaling" in arguments(done.text)) == (scaling is not None)
    assert value(done.text, "--norm-epsilon") == epsilon
    assert len(done.notes) == len(said)
    assert all(note.startswith(begin) for note, begin in zip(done.notes, said, strict=True))


def body(to: str, text: str) -> str:
    """A file without its comments: what a framework reads."""
    if to == "deepspeed":
        config = json.loads(text)
        del config["comment"]
        return json.dumps(config, indent=2) + "\n"
    return "".join(f"{line}\n" for line in text.splitlines() if not line.startswith("#"))


@pytest.mark.parametrize("to", TARGETS)
def test_what_a_framework_reads_is_as_reviewed(to):
    """Against tests/export/golden/, each written by this test's own lines and read by a person."""
    a_plan = plan("llama3-8b", dp=8, tp=2, zero=2, micro_batch=2, sequence_parallel=True, recompute=Recompute.FULL)
    golden = Path(__file__).parent / "golden" / f"{to}{TARGETS[to].suffix}.txt"
    assert body(to, export(to, a_plan).text) == golden.read_text()


def test_deepspeed_refuses_experts_that_are_whole_on_a_tensor_rank():
    """They need sequence parallelism, which AutoTP has not."""
    asked = plan("mixtral-8x7b", dp=1, tp=2, ep=2, etp=1, sequence_parallel=True)
    with pytest.raises(LayoutError, match="etp 1: DeepSpeed has no experts whole on a tensor rank; give etp"):
        export("deepspeed", asked, path=Path("x"))


def test_torchtitan_passes_one_micro_batch_after_another():
    """Layered accumulation without a pipeline would be exported as something else, so no search may advise it."""
    for name in ("torchtitan", "torchtitan-toml"):
        schedules = get_target(name).only(what_is_fixed()).schedule
        assert "layered" not in schedules
        assert {"1f1b", "interleaved", "modular"} <= set(schedules)


def test_no_framework_of_compiled_layers_and_no_training_of_adapters_splits_a_backward_pass():
    cluster, split = load_cluster("dgx-h100"), {"zb-v", "dualpipev"}
    compiled = [name for name in profile_names("frameworks") if load_framework(name).compiled_layers]
    assert compiled
    for name, train in [*((name, "full") for name in compiled), ("fsdp", "lora:16")]:
        setup, fixed = careful(load_setup("llama3-8b", cluster, framework=name), train=train)
        assert fixed.schedule == setup.framework.runs.schedule
        assert {"1f1b", "interleaved"} <= set(fixed.schedule)
        assert not split & set(fixed.schedule)
    _, fixed = careful(load_setup("llama3-8b", cluster, framework="fsdp"))
    assert split < set(fixed.schedule)


@pytest.mark.parametrize(
    ("cluster", "hosts"), [("gb200-nvl72", (36, 4)), ("gb300-nvl72", (36, 4)), ("dgx-b200", (18, 8))]
)
def test_processes_start_on_hosts_and_an_nvlink_domain_is_18_of_them(cluster, hosts):
    a_plan = plan("llama3-8b", cluster, dp=144, global_batch=144, zero=2)
    script, config = (export(to, a_plan).text for to in ("megatron", "accelerate"))
    assert f"NNODES=${{NNODES:-{hosts[0]}}}\nGPUS_PER_NODE=${{GPUS_PER_NODE:-{hosts[1]}}}\n" in script
    assert f"num_machines: {hosts[0]}\nnum_processes: 144\n" in config


def test_a_last_node_that_is_filled_in_part_starts_fewer_processes_or_is_refused():
    """As the step was predicted: 62 GPUs are seven nodes of eight and six of another, not 31 nodes of two."""
    a_plan = plan("gpt2", dp=62, global_batch=62)
    script = export("megatron", a_plan).text
    assert "NNODES=${NNODES:-8}" in script
    line = next(line for line in script.splitlines() if line.startswith("GPUS_PER_NODE="))
    started = [
        int(
            subprocess.run(
                ["bash", "-c", f'NODE_RANK={rank}; {line}; echo "$GPUS_PER_NODE"'], capture_output=True
            ).stdout
        )
        for rank in range(8)
    ]
    assert started == [8] * 7 + [6]
    with pytest.raises(LayoutError, match=r"gpus is 62, .*; allowed: 56 or 64"):
        export("accelerate", a_plan)


@pytest.mark.parametrize(
    ("cluster", "kernel", "cp", "backend", "said"),
    [
        ("dgx-h100", "flash3", 1, "varlen", False), ("dgx-b200", "flash3", 2, "flex_flash", False),
        ("dgx-a100-80gb", "flash2", 1, "varlen", False), ("dgx-a100-80gb", "flash2", 2, "flex", True),
        ("dgx-h100", "flash2", 1, "flex", True), ("rtx-4090-server", "flash2", 1, "flex", True),
    ],
)  # fmt: skip
def test_torchtitan_runs_the_kernel_that_the_seconds_are_of(cluster, kernel, cp, backend, said):
    """`varlen` is FlashAttention 2 before Hopper, 3 there, 4 on Blackwell, without context ranks."""
    one = plan(cluster=cluster, dp=8, cp=cp, zero=3, attention=Attention[kernel.upper()])
    done = export("torchtitan", one)
    assert f'model_registry("8B", attn_backend="{backend}")' in done.text
    assert backend in names("torchtitan", "attn_backend")
    assert any(note.startswith(f"attention {kernel}: the recipe's") for note in done.notes) == said
    assert ("disable_cuda_graphs = True" in done.text) == (not said or cp > 1)
    assert ("flash-attn-3" in done.text) == (kernel == "flash3" and not said)
    own = export("torchtitan", one, base="my.recipes:base")
    assert "model_registry" not in own.text
    assert any(note.startswith(f"attention {kernel}: the recipe's") for note in own.notes)


def test_latent_attention_runs_no_flash_attention_2_in_torchtitan():
    one = plan("deepseek-v2-lite", "dgx-a100-80gb", dp=8, zero=3, attention=Attention.FLASH2)
    assert 'attn_backend="flex"' in export("torchtitan", one).text


@pytest.mark.parametrize(
    ("model", "flavor", "base", "before"),
    [
        ("llama3.2-1b", "1B", "llama3.config_registry import llama3_8b", None),
        ("llama3.2-3b", "3B", "llama3.config_registry import llama3_8b", None),
        ("qwen3-4b", "4B", "qwen3.config_registry import qwen3_14b", "4B"),
        ("qwen3-8b", "8B", "qwen3.config_registry import qwen3_14b", "8B"),
        ("qwen3-235b-a22b", "235B-A22B", "qwen3.config_registry import qwen3_30b_a3b", "235B-A22B"),
        ("deepseek-v2", "236B", "deepseek_v3.config_registry import deepseek_v3_16b", "236B"),
        ("gpt-oss-20b", "20b", "gpt_oss.config_registry import gpt_oss_20b", "20b"),
        ("gpt-oss-120b", "120b", "gpt_oss.config_registry import gpt_oss_120b", "120b"),
    ],
)
def test_torchtitan_has_flavors_without_a_recipe_of_their_own(model, flavor, base, before):
    one = plan(model, dp=16, zero=3)
    text = export("torchtitan", one).text
    assert f'model_registry("{flavor}", ' in text
    assert f"from torchtitan.models.{base} as base" in text
    if before is None:
        with pytest.raises(LayoutError, match="torchtitan registers no model of the sizes of llama3"):
            export("torchtitan-toml", one)
    else:
        assert f'flavor = "{before}"' in export("torchtitan-toml", one).text


@pytest.mark.parametrize(("to", "model"), [("torchtitan", "llama3.2-1b"), ("torchtitan-toml", "qwen3-8b")])
def test_torchtitan_has_pipelines_of_some_models(to, model):
    """0.3: not where the head is the embedding; before: of Llama and DeepSeek alone."""
    with pytest.raises(LayoutError, match=f"pp 2: torchtitan has no pipeline of this model; .* {to}"):
        export(to, plan(model, dp=8, pp=2))
    assert recommend(model, "dgx-h100", gpus=8, batch=64, framework=to).best.layout["pp"] == 1
    with pytest.raises(LayoutError, match="pp is 2; allowed on torchtitan: 1"):
        recommend(model, "dgx-h100", gpus=8, batch=64, framework=to, pp=2)


CUDNN, FLASH = (
    f"sdpa and train inside torch.nn.attention.sdpa_kernel(SDPBackend.{x}_ATTENTION)" for x in ("CUDNN", "FLASH")
)
SHIFTED = "; context ranks want labels that the script has shifted (shift_labels)"


@pytest.mark.parametrize(
    ("cluster", "kernel", "cp", "how"),
    [
        ("dgx-h100", "flash1", 1, "flash_attention_2"), ("dgx-h100", "flash2", 1, "flash_attention_2"),
        ("dgx-h100", "flash3", 1, "flash_attention_3"), ("dgx-h100", "flash3", 2, CUDNN + SHIFTED),
        ("dgx-h100", "flash2", 2, FLASH + SHIFTED), ("dgx-b200", "flash3", 1, CUDNN),
    ],
)  # fmt: skip
def test_accelerate_says_how_to_load_the_kernel_that_the_seconds_are_of(cluster, kernel, cp, how):
    """Its context ranks run SDPA alone; Blackwell has no flash_attention_3, and SDPA has cuDNN's kernel."""
    one = plan(cluster=cluster, dp=32 // cp, cp=cp, zero=3, attention=Attention[kernel.upper()])
    done = export("accelerate", one)
    assert any(note.endswith(f"attn_implementation={how}") for note in done.notes)
    assert done.layouts.row(0)["attention"] == kernel


def test_accelerate_is_recommended_what_its_file_can_ask_for():
    """Its parallelism_config.py refuses replicas that aren't sharded beside tensor or context ranks."""
    found = recommend("qwen2-1.5b", "rtx-4090-server", gpus=8, batch=128, framework="accelerate", top=10)
    assert {one.layout["tp"] for one in found} > {1}
    for one in found:
        done = export("accelerate", one.as_plan())
        assert done.layouts.row(0) == one.layout
        assert not one.layout["sequence_parallel"]
    rule = "replicas beside tensor or context ranks must be sharded, zero 2 or 3"
    with pytest.raises(LayoutError, match=f"tp 2, pp 1, zero 0: {rule}"):
        recommend("qwen2-1.5b", "rtx-4090-server", gpus=8, batch=128, framework="accelerate", tp=2, zero=0)
    why = recommend("qwen2-1.5b", "rtx-4090-server", gpus=8, batch=128, framework="accelerate").why("cp=2,zero=0")
    assert rule in why.to_dict()["text"]


def test_accelerate_without_ranks_to_shard_over():
    """Its FSDP wants dp or cp (`_validate_accelerator`), its launcher tensor ranks with FSDP alone."""
    done = export("accelerate", plan(dp=1, tp=8, sequence_parallel=True))
    assert done.layouts.row(0)["zero"] == 0
    assert not done.layouts.row(0)["sequence_parallel"]
    assert 'distributed_type: "MULTI_GPU"' in done.text
    assert "parallelism_config:" not in done.text
    assert any("give Accelerator(parallelism_config=ParallelismConfig(tp_size=8))" in note for note in done.notes)


def test_who_has_expert_parallelism_is_said():
    with pytest.raises(LayoutError, match=r"ep 8: Accelerate has no .*; torchtitan has it \(--to torchtitan\), or"):
        export("fsdp", plan("mixtral-8x7b", dp=8, ep=8, zero=3))


def test_llama_3_1_starts_from_its_own_recipe():
    for name, function in (("llama3-8b", "llama3_8b"), ("Llama-3.1-8B", "llama31_8b"), ("llama3.3-70b", "llama31_70b")):
        text = export("megatron-bridge", plan(name, dp=8, tp=8)).text
        assert f"import {function}_pretrain_config" in text


@pytest.mark.parametrize(("schedule", "zero"), [("breadth-first", 3), ("breadth-first", 2), ("1f1b", 1)])
def test_torchtitans_stages_gather_once_a_step(schedule, zero):
    chunks = 1 if schedule == "1f1b" else 2
    done = export("torchtitan", plan(pp=2, dp=4, virtual_stages=chunks, schedule=schedule, zero=zero))
    assert any(note.startswith(f"zero {zero}: a pipeline's stages gather") for note in done.notes) == (zero > 1)
    assert 'fsdp_reshard_after_forward="never"' in done.text.replace(" ", "")
    searched = recommend("llama3-8b", "dgx-h100", gpus=16, batch=64, framework="torchtitan", pp=2)
    layouts = searched.found.estimate.layouts
    assert set(layouts.zero[layouts.pp > 1].tolist()) <= {0, 1}


def test_deepspeed_takes_an_optimizer_of_the_scripts_own():
    one = plan("llama3-8b", dp=16, zero=2, optimizer=OptimizerKind.SGD)
    done = export("deepspeed", one)
    assert json.loads(done.text)["zero_allow_untested_optimizer"] is True
    assert any(note.startswith("optimizer sgd: no key for it; give deepspeed.initialize") for note in done.notes)
    with pytest.raises(LayoutError, match=r"optimizer sgd: DeepSpeed updates states on the host by its own Adam"):
        export("deepspeed", plan("llama3-8b", dp=16, zero=2, optimizer=OptimizerKind.SGD, offload_optimizer=True))


@pytest.mark.parametrize("to", ["torchtitan", "accelerate"])
def test_a_search_is_refused_what_its_files_framework_cannot_ask_for(to):
    with pytest.raises(PlannerError, match=r"optimizer adam_8bit: .* has no setting for it; leave it out"):
        recommend(Model("llama3-8b"), Cluster("dgx-h100"), gpus=8, batch=64, framework=to, optimizer="adam_8bit")


def test_one_gpu_that_shares_its_states_with_the_host_runs_fsdp_under_accelerate():
    alone = export("accelerate", plan("llama3-8b", zero=0, offload_optimizer=True)).text
    for line in ('distributed_type: "FSDP"', "  fsdp_offload_params: true", "num_processes: 1"):
        assert line in alone.splitlines()


def test_torchtitans_older_release_offloads_nothing_that_is_not_sharded():
    alone = plan("llama3-8b", tp=2, offload_optimizer=True)
    with pytest.raises(LayoutError, match=r"offload_optimizer on: torchtitan can't do it: a rank whose states nobody"):
        export("torchtitan-toml", alone)
    assert (
        "enable_cpu_offload = true"
        in export("torchtitan-toml", plan("llama3-8b", dp=2, zero=3, offload_optimizer=True)).text
    )


def test_accelerate_sums_gradients_as_its_mixed_precision_says():
    with pytest.raises(PlannerError, match=r"grad_reduce_dtype bf16: Accelerate has no setting for it; leave it out"):
        recommend("llama3-8b", "dgx-h100", gpus=8, batch=64, framework="accelerate", grad_reduce_dtype="bf16")


def test_all_states_in_bf16_are_asked_for():
    """torchtitan's training.dtype, DeepSpeed's two keys, a model that Accelerate must not upcast; Megatron has none."""

    def written(to, **more):
        return export(to, plan("llama3-8b", dp=8, main_dtype=MainDtype.BF16, **more)).text

    assert 'config.training.dtype = "bfloat16"' in written("torchtitan", zero=3)
    assert 'dtype = "bfloat16"' in written("torchtitan-toml", zero=3)
    states = json.loads(written("deepspeed", zero=0))
    assert states["bf16"] == {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    assert states["zero_optimization"]["stage"] == 1  # runtime/config.py: ZeRO 1, 2 or 3
    assert states["data_types"] == {"grad_accum_dtype": "bf16"}
    assert 'mixed_precision: "no"' in written("accelerate", zero=3)
    for to in ("megatron", "megatron-bridge"):
        with pytest.raises(LayoutError, match=r"main_dtype bf16: Megatron.* has no setting for it; leave it out"):
            written(to)
    with pytest.raises(PlannerError, match=r"main_dtype bf16: Megatron-LM has no setting for it; leave it out"):
        recommend("llama3-8b", "dgx-h100", gpus=8, batch=64, framework="megatron", main_dtype="bf16")


def test_torchtitans_plan_under_accelerate_has_the_loss_of_transformers():
    own = get_target("accelerate").own
    setup = load_setup("llama3-8b", "dgx-h100")

    def named(name):
        return own(replace(setup, framework=load_framework(name))).framework.name

    assert named("torchtitan-compiled") == "transformers"
    assert named("transformers") == "transformers"
    assert named("fsdp") == "fsdp"  # a trainer of one's own
    assert get_target("torchtitan").own(replace(setup, framework=load_framework("transformers"))).framework.name == (
        "torchtitan"
    )


def test_tensor_ranks_of_a_deepspeed_pipeline_are_its_topologys():
    done = export("deepspeed", plan("llama3-8b", dp=2, tp=2, pp=2, zero=1))
    config = json.loads(done.text)
    assert "tensor_parallel" not in config
    assert any("PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=2)" in note for note in done.notes)


def test_gpus_that_a_launcher_cannot_start_are_refused_before_a_search():
    with pytest.raises(PlannerError, match=r"gpus is 11, on the last node 3 of 8: Accelerate starts equally many"):
        recommend(Model("llama3-8b"), Cluster("dgx-h100"), gpus=11, batch=64 * 11, framework="accelerate")


def test_torchtitan_is_searched_for_what_it_shards():
    with pytest.raises(PlannerError):
        recommend(Model("llama3-8b"), Cluster("dgx-h100"), gpus=8, batch=64, framework="torchtitan", zero=1, pp=1)


@pytest.mark.parametrize("to", ["torchtitan", "torchtitan-toml"])
def test_torchtitan_shards_over_context_ranks(to):
    rule = "FSDP shards over context ranks too, zero 2 or 3, in a pipeline 1"
    with pytest.raises(PlannerError, match=f"no legal layout .*: {rule}"):
        recommend("llama3-8b", "dgx-h100", gpus=8, batch=64, framework=to, cp=4, zero=0)
    done = export(to, plan("llama3-8b", dp=2, cp=4, zero=0))
    assert done.layouts.zero.tolist() == [2]
    assert "data_parallel_shard_degree=2" in done.text.replace(" ", "")
    assert export(to, plan("llama3-8b", dp=1, cp=2, pp=2, zero=0)).layouts.zero.tolist() == [1]


def test_an_export_that_is_less_likely_to_fit_says_so():
    one = plan("llama3-8b", dp=8, zero=3, recompute=Recompute.FULL)
    memory = float(
        timed_estimate(get_target("accelerate").own(one.setup), export("accelerate", one).layouts).memory_bytes[0]
    )

    def warned(capacity):
        chip = replace(one.setup.cluster.accelerator, memory_bytes=capacity)
        cluster = replace(one.setup.cluster, accelerator=chip)
        return export("accelerate", replace(one, setup=replace(one.setup, cluster=cluster))).warning

    assert warned(2.0 * memory) == ""
    assert re.search(r"can run of this plan fits in \d\d% of such cases", warned(1.02 * memory))
    assert "does not fit in memory" in warned(0.9 * memory)


def test_torchtitan_is_searched_for_the_recomputation_that_it_has():
    with pytest.raises(PlannerError, match=r"no legal layout .*: it recomputes whole layers or chosen operations"):
        recommend("qwen3-30b-a3b", "dgx-h100", gpus=32, batch=256, framework="torchtitan", recompute="fine")


def test_deepspeed_is_searched_for_the_optimizer_that_it_has_on_the_host():
    ask = {"gpus": 1, "batch": 8, "framework": "deepspeed", "allow_offload": True}
    assert recommend("llama3-8b", "dgx-h100", **ask).best.layout["offload_optimizer"]
    other = recommend("llama3-8b", "dgx-h100", **ask, optimizer="adam_bf16")
    assert not other.found.estimate.layouts.offload_optimizer.any()


def test_an_answer_says_what_deepspeeds_json_leaves_to_the_training_code():
    said = {}
    for name, layout in {"stages": {"pp": 2, "tp": 2}, "tensor ranks": {"tp": 2}}.items():
        best = recommend("llama3-8b", "dgx-h100", gpus=8, batch=64, framework="deepspeed", **layout).best
        said[name] = [one for one in best.to_dict()["assumed"] if "training code" in one]
    made = "pp 2, tp 2 made by the training code, for DeepSpeed's JSON has no key for that (export says how)"
    assert said == {"stages": [made], "tensor ranks": []}
    best = recommend("llama3-8b", "dgx-h100", gpus=8, batch=64, framework="megatron", pp=2).best
    assert not any("training code" in one for one in best.to_dict()["assumed"])
