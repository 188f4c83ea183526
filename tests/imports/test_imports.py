"""Runs read from Megatron-LM's arguments, DeepSpeed's JSON, torchtitan's TOML: what is written is read back."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.base.errors import InputError, PlannerError
from planner.choices.pipeline_layout import pipeline_layout_text
from planner.exporters.plan_export import export_plan, get_target
from planner.exporters.target import stage_layers
from planner.hardware import load_cluster, load_framework
from planner.imports.arguments import read_arguments
from planner.imports.deepspeed import deepspeed_run
from planner.imports.megatron import megatron_run
from planner.imports.names import megatron_arguments
from planner.imports.run import ExistingRun
from planner.imports.torchtitan import torchtitan_run
from planner.layouts import Attention, GradDtype, Layouts, MainDtype, OptimizerKind, Precision, Recompute, Split
from planner.models import Transformer, counts, load_model, mix, model_names
from planner.models.possible import TEXTS
from planner.plan_file import SavedPlan
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.legality import legal
from tests.export.test_frameworks import names

BASE = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --micro-batch-size 2 "
    "--global-batch-size 64 --vocab-size 50000 "
)


def question(model: str | Transformer = "llama3-8b", cluster: str = "dgx-h100", framework: str | None = None) -> Setup:
    hardware = load_cluster(cluster)
    shape = load_model(model) if isinstance(model, str) else model
    return Setup(model=shape, cluster=hardware, framework=load_framework(framework or hardware.framework))


def megatron(text: str, gpus: int | None = 16, cluster: str = "dgx-h100", **how: Any) -> ExistingRun:
    hardware = load_cluster(cluster)
    how = {"model": None, "vocab": None} | how
    return megatron_run(text, hardware, load_framework(hardware.framework), gpus=gpus, **how)


def row(text: str, **how: Any) -> dict[str, Any]:
    return megatron(BASE + text, **how).layouts.row(0)


def same(one: Setup, layouts: Layouts, run: ExistingRun) -> None:
    """The run is estimated as the plan is, second by second and byte by byte."""
    ours = estimate(one, layouts)
    theirs = estimate(run.setup, run.layouts)
    for part in ("time", "memory"):
        for f in fields(getattr(ours, part)):
            a, b = getattr(getattr(ours, part), f.name), getattr(getattr(theirs, part), f.name)
            assert b == pytest.approx(a, rel=1e-9, abs=1e-12), f.name


MODELS = [  # state-spaces are pretrain_mamba.py's
    name for name in model_names() if not (load_model(name).num_ssm_layers or load_model(name).bidirectional)
]
LOST = {"gpt-j-6b": {"qkv_bias": True, "output_bias": True}, "command-r": {"rms_norm": False}}
LOST |= {"llama4-scout": {"chunk": 0}, "llama4-maverick": {"chunk": 0}}


@pytest.mark.parametrize("name", MODELS)
def test_models_go_through_megatron_arguments(name):
    """Every preset, but for names, what Megatron-LM can't say (BLOOM's norm, parallel blocks, GPT-J's biases, Command
    R's norms, YaRN's other values and YaRN without latent attention), and sizes of absent dense layers."""
    model = load_model(name)
    asked = question(model)
    layouts = Layouts.of(global_batch=8, dp=1)
    plan = SavedPlan(setup=asked, layouts=layouts, record={})
    run = megatron(export_plan(plan, get_target("megatron")).text, gpus=1)
    read = replace(run.setup.model, name=model.name, family=model.family)
    assert read == replace(
        model,
        embedding_norm=False,
        parallel_block=False,
        parallel_norms=False,
        **of_defaults(model),
        **dict.fromkeys({*TEXTS} - {"expert_layers"}, "")
        | {"router": said_router(model), "rope_type": said_yarn(model)},
        **LOST.get(name, {}),
    )
    assert not run.unknown


def test_shared_experts_need_be_no_multiple_of_a_routed_one():
    model = replace(load_model("mixtral-8x7b"), num_shared_experts=2048 / 14336)
    plan = SavedPlan(setup=question(model), layouts=Layouts.of(global_batch=8, dp=1), record={})
    text = export_plan(plan, get_target("megatron")).text
    assert "--moe-shared-expert-intermediate-size 2048" in text
    read = megatron(text, gpus=1).setup.model
    assert read.num_shared_experts == model.num_shared_experts
    assert counts.total_params(read) - counts.total_params(replace(read, num_shared_experts=0)) == 32 * 3 * 4096 * 2048


def said_router(model):
    """Megatron-LM's router where a model says another, or nothing."""
    if not model.num_experts:
        return ""
    if model.top_k == 1:
        return "sigmoid-first" if model.router.startswith("sigmoid") else "softmax"
    return model.router.replace("sigmoid-first", "sigmoid") or "softmax"


def said_yarn(model):
    """What Megatron-LM's arguments say of it."""
    kind, *words = model.rope_type.split() or [""]
    values = dict(zip(words[::2], words[1::2], strict=True))
    said = [f"{key} {values[key]}" for key in ("factor", "mscale", "mscale_all_dim") if key in values]
    return " ".join(["yarn", *said]) if kind == "yarn" and model.kv_lora_rank else ""


def of_defaults(model):
    """What Megatron-LM takes where the script doesn't say it, which planner didn't know."""
    turned = {"rotary_base": model.rotary_base or 10_000, "rope_scaling": model.rope_scaling or 1}
    return (turned if model.rotary else {}) | {"norm_epsilon": model.norm_epsilon or 1e-5}


def test_rotary_positions_and_norms_are_those_of_the_arguments():
    """Megatron-LM's own names, and its defaults where they are missing (megatron/training/arguments.py)."""
    said = "--rotary-base 500000 --rotary-percent 0.5 --use-rope-scaling --rope-scaling-factor 32.0 --norm-epsilon 1e-6"
    for more, expected in [
        ("", (0, 0, 0.0, 1e-5)),
        (" --position-embedding-type rope", (10_000, 1, 0.0, 1e-5)),
        (f" --position-embedding-type rope {said}", (500_000, 32, 0.5, 1e-6)),
    ]:
        m = megatron(BASE + "--bf16" + more).setup.model
        assert (m.rotary_base, m.rope_scaling, m.rotary_percent, m.norm_epsilon) == expected
    with pytest.raises(InputError, match="--rotary-base is 'x'; allowed: a whole number from 1"):
        megatron(BASE + "--position-embedding-type rope --rotary-base x")


SIZES = st.sampled_from([1, 2, 4, 8])
FP8_ON_ONE: dict[str, Any] = {
    **dict.fromkeys(("dp", "tp", "pp", "cp", "ep", "virtual_stages", "micro_batch", "dp_replicate"), 1),
    "recompute": Recompute.NONE, "sequence_parallel": False, "layer_split": Split.EVEN, "offload_optimizer": False,
    "precision": Precision.FP8, "attention": Attention.FLASH3, "etp": None,
    "offload_fraction": 1.0, "offload_layers": 0, "capacity_factor": 0.0, "cuda_graphs": False,
}  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    dp=SIZES, tp=SIZES, pp=SIZES, cp=st.sampled_from([1, 2]), ep=SIZES, virtual_stages=st.sampled_from([1, 2, 4]),
    micro_batch=st.sampled_from([1, 2, 4]), zero=st.integers(0, 3), recompute=st.sampled_from(list(Recompute)),
    sequence_parallel=st.booleans(), layer_split=st.sampled_from(list(Split)), offload_optimizer=st.booleans(),
    precision=st.sampled_from([Precision.BF16, Precision.FP16, Precision.FP8, Precision.FP32]),
    attention=st.sampled_from([Attention.FLASH3, Attention.FUSED, Attention.UNFUSED]),
    model=st.sampled_from(["llama3-8b", "gpt2-large", "mixtral-8x7b", "deepseek-v3-mtp", "megatron-530b"]),
    framework=st.sampled_from(["megatron-core", "megatron-lm", "nemo"]), etp=st.sampled_from([None, 1]),
    dp_replicate=st.sampled_from([1, 1, 2]), offload_fraction=st.sampled_from([1.0, 0.5]),
    offload_layers=st.sampled_from([0, 0, 3]), capacity_factor=st.sampled_from([0.0, 0.0, 1.25]),
    cuda_graphs=st.booleans(),
)  # fmt: skip
@example(model="llama3-8b", framework="megatron-lm", zero=0, **FP8_ON_ONE)
@example(model="llama3-8b", framework="nemo", zero=0, **FP8_ON_ONE)
@example(model="llama3-8b", framework="nemo", zero=1, **FP8_ON_ONE)
def test_legal_layouts_go_through_megatron_arguments(model, framework, **choices):
    asked = question(model, framework=framework)
    schedule = "interleaved" if choices["virtual_stages"] > 1 else "1f1b"
    choices["sequence_parallel"] &= choices["tp"] > 1
    choices["offload_fraction"] = choices["offload_fraction"] if choices["offload_optimizer"] else 1.0
    layouts = Layouts.of(global_batch=64, schedule=schedule, **choices)
    if not legal(asked.model, asked.cluster, layouts)[0]:
        return
    if choices["precision"] == Precision.FP16 and choices["ep"] > 1:
        return
    done = export_plan(SavedPlan(setup=asked, layouts=layouts, record={}), get_target("megatron"))
    run = megatron_run(
        done.text, asked.cluster, asked.framework, gpus=int(layouts.gpus[0]), model=None, vocab=None
    )  # fmt: skip
    was, now = done.layouts.row(0), run.layouts.row(0)
    if stage_layers(asked, done.layouts) == stage_layers(asked, run.layouts):
        # A balanced split that is even; uneven stages, which the script gives one by one.
        was |= {name: now[name] for name in ("layer_split", "pipeline_layout")}
    if was["ep"] > 1:
        was["dispatcher"] = now["dispatcher"]  # the script names the framework's own
    assert now == was
    assert not run.unknown
    if choices["layer_split"] == Split.PRODUCTS:
        return  # its closed form places the longer stages between the ends first; given stages lie where they lie
    given = bool(now["pipeline_layout"])  # then the dense layers before those with experts have their place
    if not mix.leading_dense(asked.model) if given else now["layer_split"] == done.layouts.row(0)["layer_split"]:
        same(asked, done.layouts, run)


@settings(max_examples=60, deadline=None)
@given(
    dp=SIZES, tp=SIZES, micro_batch=st.sampled_from([1, 2, 4]), zero=st.integers(0, 3),
    offload_optimizer=st.booleans(), offload_fraction=st.sampled_from([1.0, 0.5]), offload_parameters=st.booleans(),
    pp=st.sampled_from([1, 2, 4]), recompute=st.sampled_from([0, 2]),
    precision=st.sampled_from([Precision.BF16, Precision.FP16]), attention=st.sampled_from(list(Attention)),
)  # fmt: skip
def test_legal_layouts_go_through_deepspeed(tmp_path_factory, **choices):
    asked = question("llama3-8b")
    choices["offload_fraction"] = choices["offload_fraction"] if choices["offload_optimizer"] else 1.0
    layouts = Layouts.of(global_batch=64, **choices)
    if not legal(asked.model, asked.cluster, layouts)[0]:
        return
    done = export_plan(SavedPlan(setup=asked, layouts=layouts, record={}), get_target("deepspeed"))
    path = tmp_path_factory.mktemp("ds") / "ds.json"
    path.write_text(done.text)
    was = done.layouts.row(0)
    python = {key: was[key] for key in ("pp", "ep", "recompute", "attention")}
    own = get_target("deepspeed").own(asked)
    run = deepspeed_run(path, own, gpus=int(layouts.gpus[0]), **python)
    assert run.layouts.row(0) == was
    assert run.unknown == ()
    same(own, done.layouts, run)


@pytest.mark.parametrize("ratio", [2, -0.5, "half", True])
def test_deepspeeds_ratio_is_a_share(tmp_path, ratio):
    path = tmp_path / "ds.json"
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": ratio}}
    path.write_text(json.dumps({"train_batch_size": 8, "zero_optimization": zero}))
    with pytest.raises(PlannerError, match=r"offload_optimizer\.ratio is .*; allowed: a number from"):
        deepspeed_run(path, question("llama3-8b"), gpus=8, pp=1, ep=1, recompute="none", attention=None)


@pytest.mark.parametrize("share", ["1.5", "-1", "half", "nan"])
def test_megatrons_fraction_is_a_share(share):
    arguments = read_arguments(f"--optimizer-offload-fraction {share}")
    with pytest.raises(InputError, match=r"--optimizer-offload-fraction is .*; allowed: a number from 0 to 1"):
        arguments.real("optimizer-offload-fraction", 1.0, 1)


def test_every_argument_that_is_understood_is_published():
    assert {f"--{name}" for name in megatron_arguments("model", "read")} <= names("megatron", "arguments")


SPELLINGS = [
    "--micro-batch-size 4", "--micro-batch-size=4", "--micro_batch_size 4", "--micro-batch-size '4'",
    '--micro-batch-size "4"', "--micro-batch-size \\\n  4",
    "ARGS=(\n  --micro-batch-size 4\n)", "ARGS=(--micro-batch-size 4)",
    "MBS=4\ntorchrun pretrain_gpt.py --micro-batch-size $MBS", "MBS=4\nrun --micro-batch-size ${MBS} # 8",
    "export MBS='4'\nrun --micro-batch-size ${MBS}", "run --micro-batch-size ${MBS:-4}",
    "MBS=${MBS:-4}\nrun --micro-batch-size $MBS", "# --micro-batch-size 8\nrun --micro-batch-size 4",
    'ARGS="\n  --bf16 \\\n  --micro-batch-size 4 \\\n"\ntorchrun x.py $ARGS', 'A+=" --micro-batch-size 4 --bf16"\nrun',
    "--bf16 # it's \"the\" way\n--micro-batch-size 4 # don't", "--micro-batch-size 4 \\\n  # --micro-batch-size 8\n",
    "TP=2; MBS=4; EP=8\nrun --micro-batch-size $MBS", "MBS=${MBS:-\"4\"}\nrun --micro-batch-size ${MBS}",
    "A=2\nrun --micro-batch-size $(($A * 2))", "A=${A:-2}; B=$((A * $A))\nrun --micro-batch-size ${B}",
    "run --micro-batch-size ${B:-'4'}", "#SBATCH --nodes=4\nrun --micro-batch-size $SLURM_NNODES",
    "--micro-batch-size 1 --micro-batch-size 4", "A=4\nMBS=$A\nrun --micro-batch-size $MBS --bf16",
]  # fmt: skip


@pytest.mark.parametrize("text", SPELLINGS)
def test_spellings_of_an_argument(text):
    assert read_arguments(text).number("micro-batch-size") == 4


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text):
    try:
        read_arguments(text)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_nothing_of_the_text_is_executed(tmp_path):
    for value in (f"$(touch {tmp_path}/x)", f"`touch {tmp_path}/x`", "$((4+2))", "$UNSET"):
        with pytest.raises(InputError, match=r"--micro-batch-size is .*; planner runs no shell: give the value itself"):
            read_arguments(f'--micro-batch-size "{value}"').number("micro-batch-size")
    assert list(tmp_path.iterdir()) == []


OFFLOADED = "--optimizer-cpu-offload --use-precision-aware-optimizer --use-distributed-optimizer"
LAYOUTS = [
    ("", {"dp": 16, "zero": 0, "precision": "fp32", "attention": "flash3", "schedule": "1f1b", "micro_batch": 2}),
    ("--bf16 --use-distributed-optimizer", {"zero": 1, "precision": "bf16"}),
    ("--fp16 --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", {"zero": 2, "precision": "fp16"}),
    ("--bf16 --use-torch-fsdp2", {"zero": 3}),
    ("--bf16 --use-torch-fsdp2 --num-distributed-optimizer-instances 4", {"zero": 3, "dp_replicate": 4}),
    ("--bf16 --fp8-format hybrid", {"precision": "fp8"}),
    ("--tensor-model-parallel-size 4 --sequence-parallel", {"tp": 4, "dp": 4, "sequence_parallel": True}),
    ("--sequence-parallel", {"sequence_parallel": False}),
    ("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2",
     {"pp": 4, "virtual_stages": 4, "schedule": "interleaved"}),
    ("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2", {"virtual_stages": 2}),
    ("--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout E(tttt|)*7ttttL", {"virtual_stages": 2}),
    ("--recompute-activations", {"recompute": "selective"}),
    ("--recompute-activations --recompute-granularity full", {"recompute": "selective"}),
    ("--recompute-activations --recompute-granularity full --recompute-method block --recompute-num-layers 3",
     {"recompute": "selective", "recompute_layers": 0}),
    ("--recompute-granularity full --recompute-method block --recompute-num-layers 3", {"recompute": "full"}),
    ("--recompute-granularity selective --recompute-modules mlp", {"recompute": "none"}),
    ("--attention-backend unfused", {"attention": "fused"}),
    ("--transformer-impl local", {"attention": "fused"}),
    ("--transformer-impl local --use-flash-attn", {"attention": "flash3"}),
    ("--attention-backend local --no-masked-softmax-fusion", {"attention": "unfused"}),
    (OFFLOADED, {"offload_optimizer": True, "offload_fraction": 1.0}),
    (
        f"{OFFLOADED} --optimizer-offload-fraction 0.5",
        {"offload_optimizer": True, "offload_fraction": 0.5},
    ),
    ("--moe-expert-capacity-factor 1.25", {"capacity_factor": 0.0}),  # a dense model has no experts
    ("--optimizer-offload-fraction 0.5", {"offload_optimizer": False, "offload_fraction": 1.0}),
    # The profile keeps and reduces bf16 gradients in fp32, as Megatron-Core does unless told otherwise.
    ("--bf16", {"grad_dtype": "framework", "grad_reduce_dtype": "framework", "optimizer": "adam"}),
    ("--bf16 --grad-reduce-in-bf16", {"grad_dtype": "bf16", "grad_reduce_dtype": "framework"}),
    ("--bf16 --use-precision-aware-optimizer --main-grads-dtype bf16", {"grad_dtype": "bf16"}),
    ("--bf16 --main-grads-dtype bf16", {"grad_dtype": "framework"}),
    ("--fp16", {"grad_dtype": "framework"}),
    ("--fp16 --accumulate-allreduce-grads-in-fp32", {"grad_dtype": "fp32"}),
    ("--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", {"optimizer": "adam_bf16"}),
    ("--use-precision-aware-optimizer --exp-avg-dtype fp8 --exp-avg-sq-dtype fp8", {"optimizer": "adam_8bit"}),
    ("--use-precision-aware-optimizer --exp-avg-dtype fp8 --exp-avg-sq-dtype fp16", {"optimizer": "adam_bf16"}),
    ("--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", {"optimizer": "adam"}),
    ("--optimizer sgd", {"optimizer": "sgd"}),
    ("--cuda-graph-impl none", {"cuda_graphs": False}),
    ("--cuda-graph-impl transformer_engine --cuda-graph-scope attn mlp", {"cuda_graphs": True}),
    ("--external-cuda-graph", {"cuda_graphs": True}),
    ("--bf16 --optimizer muon", {"optimizer": "muon", "zero": 0}),
    ("--bf16 --optimizer dist_muon", {"optimizer": "muon", "zero": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), LAYOUTS, ids=[text[:50] for text, _ in LAYOUTS])
def test_arguments_mean_what_megatron_means(text, wanted):
    got = row(text)
    assert {key: got[key] for key in wanted} == wanted


def test_uneven_stages_are_read():
    asked = question("llama3-70b")
    balanced = Layouts.of(global_batch=64, dp=1, pp=16, layer_split=Split.BALANCED)
    stages = stage_layers(asked, balanced)
    assert len(set(stages)) > 1
    layout = pipeline_layout_text(stages)
    text = BASE + f"--pipeline-model-parallel-size 16 --pipeline-model-parallel-layout '{layout}'"
    run = megatron(text, model="llama3-70b")
    assert run.layouts.row(0)["pipeline_layout"] == layout
    assert stage_layers(run.setup, run.layouts) == stages
    ends = BASE + "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 2"
    assert megatron(ends).layouts.row(0)["pipeline_layout"] == "Et*2|t*10|t*10|t*10L"
    ends += " --num-virtual-stages-per-pipeline-rank 2"
    assert megatron(ends).layouts.row(0)["pipeline_layout"] == "Et|(t*5|)*3t|t*5|t*5|t*5L"
    loss = BASE.replace("32 --hidden", "31 --hidden") + (
        "--pipeline-model-parallel-size 4 --account-for-loss-in-pipeline-split"
    )  # fmt: skip
    assert megatron(loss).layouts.row(0)["layer_split"] == "even"


def test_virtual_stages_with_embedding_and_head_counted_are_read():
    """Thirty layers as eight virtual stages of four, the first and the last with three: by both ways to say it."""
    thirty = BASE.replace("32 --hidden", "30 --hidden") + "--pipeline-model-parallel-size 4 "
    flags = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    for said in (
        f"--num-virtual-stages-per-pipeline-rank 2 {flags}",
        f"--num-layers-per-virtual-pipeline-stage 4 {flags}",
        "--pipeline-model-parallel-layout 'Ettt|(tttt|)*6tttL'",
    ):
        run = megatron(thirty + said)
        layout = "Ettt|(tttt|)*6tttL" if "tttt" in said else ""
        assert {k: run.layouts.row(0)[k] for k in ("virtual_stages", "layer_split", "schedule", "pipeline_layout")} == {
            "virtual_stages": 2, "layer_split": "even" if layout else "ends", "schedule": "interleaved",
            "pipeline_layout": layout,
        }  # fmt: skip
        assert pipeline_layout_text(stage_layers(run.setup, run.layouts)) == "Et*3|(t*4|)*6t*3L"


@pytest.mark.parametrize(
    ("text", "dense"),
    [("2", 16), ("1", 0), ("([0]*3+[1]*29)", 3), ("[0,1]*16", 16), ("[1]*32", 0), ("(([0]+[1]*3)*4)*2", 8)],
)
def test_patterns_of_experts(text, dense):
    arguments = f"--num-experts 8 --moe-ffn-hidden-size 4096 --ffn-hidden-size 8192 --moe-layer-freq '{text}'"
    assert megatron(BASE + arguments).setup.model.num_dense_layers == dense


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("--window-size 127,0", 32),
        ("--window-size (127,0) --window-attn-skip-freq 4", 24),
        ("--window-size 127,0 --window-attn-skip-freq '[1,1,1,0]*8'", 24),
        ("--window-size 127,0 --window-attn-skip-freq '[0]*32'", 0),
        ("--window-attn-skip-freq 4", 0),
    ],
)
def test_sliding_windows_are_read(text, layers):
    run = megatron(f"{BASE} --bf16 {text}")
    assert (run.setup.model.num_window_layers, run.setup.model.window) == (layers, 128 if layers else 0)
    assert not run.unknown


def test_the_dispatch_of_experts_is_the_run_s():
    """DeepEP and hidden all-to-alls count where they are on, whatever the profile; off, the profile loses them."""
    experts = f"{BASE} --bf16 --num-experts 8 --moe-ffn-hidden-size 4096 --expert-model-parallel-size 4"
    found = {}
    for name, more in (
        ("plain", ""),
        ("deepep", "--moe-token-dispatcher-type flex --moe-enable-deepep"),
        ("both", "--moe-flex-dispatcher-backend deepep --overlap-moe-expert-parallel-comm"),
    ):
        run = megatron_run(
            f"{experts} {more}", load_cluster("dgx-h100"), load_framework("megatron-bridge"), gpus=8, model=None,
            vocab=None,
        )  # fmt: skip
        f = run.setup.framework
        found[name] = (f.node_dispatch, f.overlap_experts)
        assert not run.unknown
    assert found == {"plain": (False, 0.0), "deepep": (True, 0.0), "both": (True, 0.5)}


HYBRID = """--num-layers 118 --hidden-size 8192 --ffn-hidden-size 32768 --num-attention-heads 64 --seq-length 8192
    --group-query-attention --num-query-groups 8 --kv-channels 128 --normalization RMSNorm --squared-relu
    --position-embedding-type none --untie-embeddings-and-output-weights --disable-bias-linear --vocab-size 131072
    --is-hybrid-model --mamba-state-dim 256 --hybrid-override-pattern M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-"""
HYBRID += "M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M- --bf16 --micro-batch-size 1"


NEMOTRON_3 = """--hybrid-layer-pattern
    MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME/*E/*E
    --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 2 --mamba-num-heads 128
    --ffn-hidden-size 2688 --kv-channels 128 --squared-relu --untie-embeddings-and-output-weights
    --position-embedding-type none --disable-bias-linear --normalization RMSNorm --num-experts 512 --moe-router-topk 22
    --moe-shared-expert-intermediate-size 5376 --moe-latent-size 1024 --mtp-use-repeated-layer
    --padded-vocab-size 131072 --bf16 --seq-length 8192 --micro-batch-size 1 --global-batch-size 512"""


def test_a_hybrid_with_latents_and_a_module_used_twice():
    """Arguments of NVIDIA's own script for Nemotron 3 (a pattern for each module behind a slash), Super's sizes."""
    # Nothing is said of the router: Megatron-LM's default.
    preset = replace(load_model("nemotron-3-super-120b-a12b-mtp"), router="softmax")

    def read(text):
        run = megatron(text, gpus=8)
        assert not run.unknown
        return replace(run.setup.model, name=preset.name)

    assert read(NEMOTRON_3) == preset
    counted = NEMOTRON_3.replace("/*E/*E", "") + " --mtp-num-layers 2 --mtp-hybrid-override-pattern *E"
    assert read(counted) == preset
    with pytest.raises(InputError, match=r"a module's pattern is 'M'; allowed: \*E or \*-"):
        read(NEMOTRON_3.replace("/*E/*E", "/M"))
    with pytest.raises(InputError, match="--num-layers is missing"):
        read(NEMOTRON_3.replace("--hybrid-layer-pattern", "--other"))


def test_a_hybrid_is_read():
    """The model's arguments of Nemotron-H 56B, as Megatron-LM's own examples give them."""
    run = megatron(HYBRID + " --global-batch-size 64 --tensor-model-parallel-size 8")
    read = replace(run.setup.model, name="nemotron-h-56b")
    assert read == load_model("nemotron-h-56b")
    assert not run.unknown
    short = HYBRID.replace("--num-layers 118", "--num-layers 117")
    for text, said in [
        (short, "--hybrid-override-pattern has 118 letters, --num-layers is 117"),
        (HYBRID.replace("M-M-M-M*", "M-M-M-MX"), "--hybrid-override-pattern is 'M-M-M-MX"),
        (HYBRID.split("--hybrid")[0] + "--bf16 --micro-batch-size 1", "--hybrid-override-pattern is missing"),
    ]:
        with pytest.raises(PlannerError) as caught:
            megatron(text)
        assert said in str(caught.value)


BAD = [
    ("", "no argument of Megatron-LM is in the text"),
    ("--x 'open", "can't be read: no closing quotation"),
    ("--num-layers 2", "--hidden-size is missing"),
    (BASE + "--tp-comm-overlap", "--tp-comm-overlap stands without --sequence-parallel, which Megatron-LM refuses"),
    (BASE + "--overlap-param-gather", "--overlap-param-gather stands without --overlap-grad-reduce"),
    (BASE + "--optimizer-cpu-offload", "--optimizer-cpu-offload stands without --use-precision-aware-optimizer"),
    (BASE + "--use-distributed-optimizer --optimizer sgd", "--optimizer is sgd beside --use-distributed-optimizer"),
    (BASE + "--bf16 --fp16", "--bf16 and --fp16 are both there, which Megatron-LM refuses; allowed: one of them"),
    (BASE + "--fp8-format hybrid --fp4-format e2m1", "--fp8-format and --fp4-format are both there"),
    (BASE + "--micro-batch-size", "--micro-batch-size has no value"),
    (BASE + "--micro-batch-size two", "--micro-batch-size is 'two'; allowed: a whole number from 1"),
    (BASE + "--micro-batch-size 0", "--micro-batch-size is 0; allowed: a whole number from 1"),
    (BASE + "--micro-batch-size 99999999999", "--micro-batch-size is '99999999999'"),
    (BASE + "--recompute-granularity some", "--recompute-granularity is 'some'; allowed: full, selective"),
    (BASE + "--cuda-graph-scope attn foo", "--cuda-graph-scope is 'foo'; allowed: attn, mlp, moe, moe_router"),
    (BASE + "--cuda-graph-modules foo", "--cuda-graph-modules is 'foo'; allowed: attn, mlp"),
    (BASE + "--recompute-granularity selective --recompute-modules foo", "--recompute-modules is 'foo'; allowed: co"),
    (BASE + "--attention-backend fast", "--attention-backend is 'fast'; allowed: flash, fused"),
    (BASE + "--use-megatron-fsdp --data-parallel-sharding-strategy all", "allowed: no_shard, optim"),
    (BASE + "--tensor-model-parallel-size 3", "16 GPUs aren't a multiple of tp 3"),
    (BASE + "--global-batch-size 63", "global_batch must be divisible"),
    (BASE + "--num-attention-heads 30", "isn't a multiple of --num-attention-heads 30"),
    (BASE + "--num-experts 8 --moe-layer-freq '__import__(1)'", "--moe-layer-freq is"),
    (BASE + "--window-size all", "--window-size is"),
    (BASE + "--window-size -1,0", "--window-size is"),
    (BASE + "--window-size 127,0 --window-attn-skip-freq '[1,0]*3'", "--window-attn-skip-freq is"),
    (BASE + "--num-experts 8 --moe-layer-freq '[1]*99999999*99999999'", "--moe-layer-freq is"),
    (BASE + "--num-experts 8 --moe-layer-freq '" + "(" * 500 + "'", "--moe-layer-freq is"),
    (BASE + "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et*32|L'", "has 2 stages"),
    (BASE + "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*3|L'", "of 2 stages, 3 layers and"),
    (BASE + "--pipeline-model-parallel-layout '(t*99999|)*99999'", "--pipeline-model-parallel-layout is"),
    (BASE + "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Ex|L'", "allowed: letters E t m L"),
    (BASE + "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 3 "
     "--decoder-first-pipeline-num-layers 2", "a rank has 2 layers; allowed: a multiple of its 3 virtual stages"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), BAD, ids=[said[:40] for _, said in BAD])
def test_faults_name_the_argument(text, said):
    with pytest.raises(PlannerError, match=None) as caught:
        megatron(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("slurm", "gpus"),
    [
        ("#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\n", 32),
        ("#SBATCH -N 2\n#SBATCH --gpus-per-node 4\n#SBATCH --ntasks-per-node=1\n", 8),
        ("#SBATCH --nodes 2\n#SBATCH --gres=gpu:h100:8\n", 16),
        ("#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\nsrun torchrun --nproc-per-node 8 pretrain_gpt.py ", 32),
        ("#SBATCH --nodes=4\n#SBATCH --gres=gpu:8\nsrun torchrun --nnodes 2 pretrain_gpt.py ", 16),
    ],
)
def test_gpus_come_from_slurms_comments(slurm, gpus):
    run = megatron(f"#!/bin/bash\n{slurm}{BASE} --bf16", gpus=None)
    assert int(run.layouts.gpus[0]) == gpus
    assert not run.unknown


def test_gpus_come_from_torchrun_or_are_asked_for():
    text = "NODES=${NNODES:-2}\ntorchrun --nnodes $NODES --nproc_per_node 8 pretrain_gpt.py " + BASE
    assert int(megatron(text, gpus=None).layouts.gpus[0]) == 16
    with pytest.raises(InputError, match="--gpus is missing"):
        megatron(BASE, gpus=None)


def test_what_is_not_understood_is_listed_and_data_is_not():
    run = megatron(BASE + "--data-path /a $(b) --lr 1e-4 --wandb-project x --frobnicate 3 --spec a b --seed 1")
    assert run.unknown == ("--frobnicate", "--spec")
    assert run.ignored == 4
    assert megatron(BASE.replace("--vocab-size 50000", "")).notes[0].startswith("the vocabulary is the tokenizer's")
    assert megatron(BASE.replace("--vocab-size 50000", ""), vocab=1000).setup.model.vocab == 1000


def test_what_the_run_leaves_off_is_off_and_can_be_turned_on():
    off = megatron(BASE + "--bf16 --use-distributed-optimizer")
    assert set(off.switches) == {"--overlap-grad-reduce", "--overlap-param-gather"}
    on = megatron(BASE + "--bf16 --use-distributed-optimizer " + " ".join(off.switches))
    assert on.switches == {}
    assert on.setup.framework == on.profile.framework

    def step(run: ExistingRun) -> float:
        q = run.setup
        return float(estimate(q, run.layouts).step_time_s[0])

    assert step(off) > step(on)


@pytest.mark.parametrize(
    ("name", "named", "begins", "judged"),
    [
        ("qwen3-30b-a3b", "layernorm moe_act", [], True),  # no latents, so that no mla_up_proj is missed
        ("deepseek-v3", "layernorm moe_act mla_up_proj", [], True),
        ("deepseek-v3", "mla_up_proj", ["--recompute-modules without layernorm moe_act: counted as with"], True),
        ("qwen3-30b-a3b", "mlp moe", ["--recompute-modules mlp moe: not counted"], False),
        ("llama3-8b", "layernorm", ["--recompute-modules layernorm: not counted"], False),
    ],
)
def test_modules_that_are_repeated_are_counted_or_told(name, named, begins, judged):
    text = f"{BASE} --bf16 --recompute-granularity selective --recompute-modules {named}"
    run = megatron(text, model=name, gpus=32)
    told = [note for note in run.notes if "recompute" in note]
    assert len(told) == len(begins)
    assert all(note.startswith(begin) for note, begin in zip(told, begins, strict=True))
    assert run.judged == judged


def test_a_long_sequences_mask_is_told():
    """gpt_dataset.py: torch.ones((sequence, sequence)) in fp32, then as bool to the GPU."""
    text = BASE.replace("2048", "131072") + "--bf16"
    said = "the dataset builds 64.00 GiB of mask for each sequence on the host, and 16.00 GiB of it go to the GPU"
    assert any(said in note for note in megatron(text).notes)
    for without in (f"{text} --no-create-attention-mask-in-dataloader", f"{BASE} --bf16"):
        assert not any("mask" in note for note in megatron(without).notes)


def test_megatron_fsdps_own_gradients_are_read():
    """NVIDIA/Megatron-LM, megatron/training/arguments.py, newer than 0.16.1; auto is what the profile has."""
    fsdp = "--bf16 --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --grad-reduce-in-bf16"
    own = "--megatron-fsdp-main-grads-dtype fp32 --megatron-fsdp-grad-comm-dtype"
    formats = [("", "bf16", "framework"), (f"{own} bf16", "fp32", "bf16"), (f"{own} auto", "framework", "framework")]
    for more, kept, sent in formats:
        run = megatron(f"{BASE} {fsdp} {more}")
        found = run.layouts.row(0)
        assert (found["grad_dtype"], found["grad_reduce_dtype"]) == (kept, sent)
        assert not run.unknown


def test_optimizers_that_are_counted_as_another_are_said():
    lion = megatron(BASE + "--bf16 --optimizer lion")
    assert lion.layouts.row(0)["optimizer"] == "adam"
    assert "--optimizer lion: counted as adam" in lion.notes
    mixed = megatron(BASE + "--bf16 --use-precision-aware-optimizer --exp-avg-dtype bf16 --main-params-dtype fp16")
    assert mixed.layouts.row(0)["optimizer"] == "adam"
    assert "--exp-avg-dtype bf16 and --exp-avg-sq-dtype fp32: both counted as the wider one" in mixed.notes
    assert "--main-params-dtype fp16: counted as fp32" in mixed.notes
    with pytest.raises(InputError, match="--exp-avg-dtype is 'int4'; allowed: fp32, fp16, bf16, fp8"):
        megatron(BASE + "--bf16 --use-precision-aware-optimizer --exp-avg-dtype int4")


@pytest.mark.parametrize("optimizer", list(OptimizerKind))
@pytest.mark.parametrize("dtype", list(GradDtype))
@pytest.mark.parametrize("framework", ["megatron-core", "nemo"])
def test_optimizers_and_gradients_go_through_megatron_arguments(framework, dtype, optimizer):
    """What the profile has anyway comes back unsaid: fp32 gradients of Megatron-Core, bf16 ones of NVIDIA's recipes."""
    asked = question("llama3-8b", framework=framework)
    zero = 0 if optimizer == OptimizerKind.SGD else 1
    layouts = Layouts.of(global_batch=64, dp=16, zero=zero, optimizer=optimizer, grad_dtype=dtype,
                         attention=Attention.FLASH3)  # fmt: skip
    done = export_plan(SavedPlan(setup=asked, layouts=layouts, record={}), get_target("megatron"))
    run = megatron_run(done.text, asked.cluster, asked.framework, gpus=16, model=None, vocab=None)
    own = GradDtype.FP32 if framework == "megatron-core" else GradDtype.BF16
    unsaid = {"grad_dtype": "framework"} if dtype == own else {}
    assert run.layouts.row(0) == done.layouts.row(0) | unsaid
    assert not run.unknown
    ours, theirs = estimate(asked, layouts), estimate(asked, run.layouts)
    assert ours.step_time_s[0] == theirs.step_time_s[0]
    assert ours.memory_bytes[0] == theirs.memory_bytes[0]


def test_a_run_of_megatron_fsdp_is_told_of_what_it_can_change():
    """It asked for ZeRO 3 itself, which Megatron-LM is else held not to run."""
    from planner.api.existing_run import review_megatron

    text = BASE + "--bf16 --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params "
    answer = review_megatron(
        text + "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "dgx-h100",
        model=None, network=None, framework=None, gpus=16, vocab=None, attention=None,
    )  # fmt: skip
    changes = {c["change"] for c in answer.record["single_changes"]}
    assert {"recompute full -> none", "zero 3 -> 2"} <= changes


def test_a_run_is_told_what_bf16_gradients_would_bring():
    from planner.api.existing_run import review_megatron

    text = BASE + "--bf16 --use-distributed-optimizer --nproc-per-node 8 --nnodes 2"
    answer = review_megatron(
        text, "dgx-h100", model=None, network=None, framework=None, gpus=None, vocab=None, attention=None
    )
    assert any(c["change"] == "grad_dtype framework -> bf16" for c in answer.record["single_changes"])


@pytest.mark.parametrize(
    ("stated", "stage", "kept", "sent"),
    [
        # megatron-lm's profile keeps and sends fp32 in bf16 training; DeepSpeed adds up in bf16 unless told.
        ({}, 0, "bf16", "framework"), ({}, 2, "bf16", "framework"),
        ({"data_types": {"grad_accum_dtype": "fp32"}}, 2, "framework", "framework"),
        ({"data_types": {"grad_accum_dtype": "bf16"}, "communication_data_type": "fp32"}, 1, "bf16", "fp32"),
        ({"communication_data_type": "bfloat16"}, 0, "bf16", "framework"),
    ],
)  # fmt: skip
def test_deepspeed_states_gradients(tmp_path, stated, stage, kept, sent):
    config = {"train_batch_size": 64, "bf16": {"enabled": True}, "zero_optimization": {"stage": stage}} | stated
    got = deepspeed(tmp_path, config).layouts.row(0)
    assert (got["grad_dtype"], got["grad_reduce_dtype"]) == (kept, sent)


def test_deepspeed_states_all_in_bf16(tmp_path):
    zero = {"train_batch_size": 64, "zero_optimization": {"stage": 2}}
    both = {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}
    run = deepspeed(tmp_path, zero | both)
    assert run.layouts.row(0)["main_dtype"] == "bf16"
    assert not run.unknown
    both["bf16"]["bf16_optimizer_states"] = False
    with pytest.raises(
        PlannerError, match=r"bf16_optimizer_states is False; allowed: as bf16.bf16_master_weights_and_grads, true"
    ):
        deepspeed(tmp_path, zero | both)


def test_parameters_are_gathered_in_fp8_where_the_run_says_so():
    fp8 = BASE + "--bf16 --fp8-format hybrid --use-distributed-optimizer "
    kept = {name: megatron(fp8 + name).setup.framework for name in ("", "--fp8-param-gather")}
    assert [(f.fp8_parameter_bytes, f.fp8_copy_bytes) for f in kept.values()] == [(2.0, 2.0), (1.0, 1.0)]
    # A profile that has it loses it, and says what turns it on.
    nemo = megatron_run(fp8, load_cluster("dgx-h100"), load_framework("nemo"), gpus=16, model=None, vocab=None)
    assert nemo.switches["--fp8-param-gather"] == ("fp8_parameter_bytes", "fp8_copy_bytes")
    assert (nemo.setup.framework.fp8_parameter_bytes, nemo.setup.framework.fp8_copy_bytes) == (2.0, 2.0)


def deepspeed(folder: Path, config: Any, gpus: int = 16, **python: Any) -> ExistingRun:
    path = folder / "ds.json"
    path.write_text(json.dumps(config))
    python = {"pp": 1, "ep": 1, "recompute": "none", "attention": None} | python
    return deepspeed_run(path, question(), gpus=gpus, **python)


def test_deepspeed_numbers_follow_its_own_rules(tmp_path):
    for config, micro, batch in (
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2}, 2, 64),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 4}, 1, 64),
        ({"train_batch_size": 64}, 4, 64),
        ({"train_micro_batch_size_per_gpu": 2}, 2, 32),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}, 2, 96),
    ):
        got = deepspeed(tmp_path, config | {"bf16": {"enabled": True}}).layouts.row(0)
        assert (got["micro_batch"], got["global_batch"]) == (micro, batch)
    # Without an mpu tensor ranks count as replicas, and a step has fewer sequences (runtime/config.py, world_size).
    cut = {"bf16": {"enabled": True}, "tensor_parallel": {"autotp_size": 2}}
    for config, micro, batch in (
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2}, 2, 32),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}, 2, 32),
        ({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}, 2, 32),
        ({"train_batch_size": 40, "train_micro_batch_size_per_gpu": 1}, 1, 40),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}, 2, 32),
    ):
        run = deepspeed(tmp_path, config | cut)
        assert [run.layouts.row(0)[name] for name in ("micro_batch", "global_batch")] == [micro, batch]
        assert any("counts each of tp 2" in note for note in run.notes) == (config.get("train_batch_size") == 64)
    config = {"train_batch_size": 64, "frob": 1, "bf16": {"enabled": True}, "optimizer": {}, "comment": "x"}
    run = deepspeed(tmp_path, config | {"zero_optimization": {"stage": 2}, "activation_checkpointing": {}})
    assert run.unknown == ("frob",)
    assert run.ignored == 1
    assert '"overlap_comm": true' in run.switches
    assert run.notes[0].startswith("activation_checkpointing")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "field train_batch_size is missing"),
        ([], "holds a list"),
        ({"train_batch_size": "auto"}, "train_batch_size is 'auto', which the trainer fills in; give --global-batch"),
        ({"train_batch_size": 0}, "field train_batch_size is 0"),
        ({"train_batch_size": True}, "field train_batch_size is True"),
        ({"train_batch_size": 65}, "train_batch_size is 65; allowed: a multiple of 16 data-parallel replicas"),
        ({"train_batch_size": 64, "zero_optimization": {"stage": 4}}, "field zero_optimization.stage is 4"),
        ({"train_batch_size": 64, "zero_optimization": 2}, "field zero_optimization is 2; allowed: an object"),
        ({"train_batch_size": 64, "bf16": {"enabled": "yes"}}, "field bf16.enabled is 'yes'"),
        ({"train_batch_size": 64, "data_types": {"grad_accum_dtype": "int8"}}, "data_types.grad_accum_dtype is 'int8'"),
        ({"train_batch_size": 64, "communication_data_type": 16}, "field communication_data_type is 16; allowed: fp32"),
        ({"train_batch_size": 64, "tensor_parallel": {"autotp_size": 3}}, "16 GPUs aren't a multiple of tp 3"),
    ],
)
def test_deepspeed_faults_name_the_field(tmp_path, config, said):
    with pytest.raises(PlannerError, match=None) as caught:
        deepspeed(tmp_path, config)
    assert said in str(caught.value)


def test_one_change_is_the_best_of_all_neighbours():
    """Against brute force: every legal layout that differs in one field, or in two degrees."""
    from planner.question import what_is_fixed
    from planner.search.neighbours import one_change
    from tests.search.every_layout import enumerate_layouts

    asked = question("llama3-8b")
    own = Layouts.of(global_batch=64, dp=4, tp=4, zero=1, recompute=Recompute.FULL, sequence_parallel=True,
                     attention=Attention.FLASH3)  # fmt: skip
    fixed = what_is_fixed(schedule=["1f1b", "interleaved"])
    changed = one_change(asked, own, fixed, "flash3")
    assert changed is not None
    assert np.all(np.diff(changed.estimate.step_time_s[changed.estimate.fits]) >= 0)
    table = enumerate_layouts(
        asked.model, asked.cluster, gpus=16, global_batch=64, precision=Precision.BF16, attention=Attention.FLASH3,
        fixed=fixed,
    )  # fmt: skip
    found = estimate(asked, table)
    mine, best = own.row(0), np.inf
    for i in np.flatnonzero(found.fits):
        other = table.row(int(i))
        differs = {key for key, value in other.items() if value != mine[key]}
        if len(differs) == 1 or (differs in ({"dp", "tp"}, {"dp", "cp"}, {"tp", "cp"}) and other["tp"] > 1):
            best = min(best, float(found.step_time_s[i]))
    assert float(changed.estimate.step_time_s[0]) <= best


@pytest.mark.parametrize(
    ("arguments", "per_parameter"),
    [
        # Megatron-LM's own theoretical_memory_usage.py: 18 bytes, or 6 + 12/dp with the distributed optimizer.
        ("--bf16", lambda dp: 18.0),
        ("--bf16 --use-distributed-optimizer", lambda dp: 6.0 + 12.0 / dp),
        # arguments.py: gradients are kept as they are reduced.
        ("--bf16 --grad-reduce-in-bf16", lambda dp: 16.0),
        ("--bf16 --grad-reduce-in-bf16 --use-distributed-optimizer", lambda dp: 4.0 + 12.0 / dp),
    ],
)
@pytest.mark.parametrize("framework", ["megatron-core", "megatron-lm"])
def test_states_take_the_bytes_that_megatrons_own_formula_counts(framework, arguments, per_parameter):
    run = megatron_run(
        BASE + arguments, load_cluster("dgx-h100"), load_framework(framework), gpus=16, model=None, vocab=None
    )
    q = run.setup
    memory = estimate(q, run.layouts).memory
    states = float(memory.parameters_bytes[0] + memory.gradients_bytes[0] + memory.optimizer_bytes[0])
    dp, shards = int(run.layouts.dp[0]), int(run.layouts.tp[0] * run.layouts.pp[0])
    parameters = float(counts.total_params(q.model)) / shards
    assert states / parameters == pytest.approx(per_parameter(dp), rel=0.01)


def test_nvfp4_is_read():
    run = megatron(BASE + "--bf16 --fp4-format e2m1 --fp4-recipe nvfp4", cluster="dgx-b200")
    assert run.layouts.row(0)["precision"] == "nvfp4"


def torchtitan(folder: Path, text: str, gpus: int = 16, model: str = "llama3-8b") -> ExistingRun:
    path = folder / "job.toml"
    path.write_text(text)
    return torchtitan_run(path, question(model, framework="torchtitan"), gpus=gpus)


TITAN = [
    ("llama3-8b", {"dp": 16, "zero": 0, "recompute": Recompute.SELECTIVE}),
    ("llama3-8b", {"dp": 16, "zero": 3, "dp_replicate": 4, "micro_batch": 2, "recompute": Recompute.FULL}),
    ("llama3-8b", {"dp": 4, "tp": 4, "zero": 2, "sequence_parallel": True, "grad_dtype": GradDtype.FP32,
                    "grad_reduce_dtype": GradDtype.BF16}),
    ("llama3-8b", {"dp": 16, "zero": 3, "main_dtype": MainDtype.BF16}),
    ("llama3-8b", {"dp": 16, "zero": 2, "main_dtype": MainDtype.BF16, "grad_reduce_dtype": GradDtype.BF16}),
    ("llama3-8b", {"dp": 4, "cp": 2, "tp": 2, "zero": 3, "sequence_parallel": True, "offload_optimizer": True}),
    ("llama3-8b", {"dp": 4, "pp": 4, "zero": 1, "micro_batch": 2, "precision": Precision.FP32}),
    ("llama3-8b", {"dp": 4, "pp": 4, "zero": 1, "virtual_stages": 4, "schedule": "interleaved"}),
    ("llama3-8b", {"dp": 16, "zero": 3, "precision": Precision.FP8}),
    ("llama3-8b", {"dp": 4, "pp": 2, "zero": 1, "virtual_stages": 4, "schedule": "breadth-first"}),
    ("llama3-70b", {"dp": 2, "tp": 8, "pp": 8, "zero": 1, "virtual_stages": 2, "schedule": "zb-v",
                    "sequence_parallel": True}),
    ("llama3-70b", {"dp": 2, "tp": 8, "pp": 7, "zero": 1, "layer_split": Split.BALANCED, "sequence_parallel": True}),
    ("qwen3-30b-a3b", {"dp": 8, "tp": 2, "ep": 8, "zero": 3, "etp": 1, "sequence_parallel": True}),
    ("qwen3-30b-a3b", {"dp": 8, "tp": 2, "ep": 4, "zero": 2, "sequence_parallel": True, "recompute": Recompute.FULL}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "choices"), TITAN)
def test_layouts_go_through_torchtitans_toml(tmp_path, model, choices):
    asked = question(model, framework="torchtitan")
    layouts = Layouts.of(global_batch=64, attention=Attention.FLASH3, **choices)
    assert legal(asked.model, asked.cluster, layouts)[0]
    done = export_plan(SavedPlan(setup=asked, layouts=layouts, record={}), get_target("torchtitan-toml"))
    run = torchtitan(tmp_path, done.text, int(layouts.gpus[0]), model)
    assert run.layouts.row(0) == layouts.row(0)
    assert (run.unknown, run.notes) == ((), ())
    precision = layouts.row(0)["precision"]
    same(get_target("torchtitan-toml").in_precision(asked, precision), layouts, run)  # in fp8 it is compiled


@settings(max_examples=60, deadline=None)
@given(
    dp=SIZES, tp=SIZES, cp=st.sampled_from([1, 2]), pp=st.sampled_from([1, 2, 4]), zero=st.integers(0, 3),
    micro_batch=st.sampled_from([1, 2]), recompute=st.sampled_from([0, 1, 2]), dp_replicate=st.sampled_from([1, 2]),
    schedule=st.sampled_from(["1f1b", "gpipe", "interleaved", "breadth-first", "zb-v", "dualpipev"]),
    virtual_stages=st.sampled_from([1, 2, 4]),
    precision=st.sampled_from([Precision.BF16, Precision.FP32, Precision.FP8]),
    layer_split=st.sampled_from([Split.EVEN, Split.BALANCED]),
)  # fmt: skip
def test_legal_layouts_go_through_torchtitans_toml(tmp_path_factory, **choices):
    asked = question(framework="torchtitan")
    choices |= {"schedule": "1f1b", "virtual_stages": 1} if choices["pp"] == 1 else {}
    layouts = Layouts.of(global_batch=64, attention=Attention.FLASH3, **choices)
    if not legal(asked.model, asked.cluster, layouts)[0]:
        return
    done = export_plan(SavedPlan(setup=asked, layouts=layouts, record={}), get_target("torchtitan-toml"))
    run = torchtitan(tmp_path_factory.mktemp("titan"), done.text, int(layouts.gpus[0]))
    was, now = done.layouts.row(0), run.layouts.row(0)
    of_file = get_target("torchtitan-toml").in_precision(asked, was["precision"])
    assert stage_layers(of_file, done.layouts) == stage_layers(of_file, run.layouts)
    was |= {name: now[name] for name in ("layer_split", "pipeline_layout")}
    if was["dp"] * was["cp"] == was["dp_replicate"] or was["dp"] == 1 == was["cp"]:
        was |= {name: now[name] for name in ("zero", "dp_replicate")}  # nothing is sharded
    if was["pp"] > 1 and was["zero"] == 2:
        was["zero"] = 1  # the file says alike of both
    assert now == was
    assert run.unknown == ()


def test_torchtitans_own_defaults_count(tmp_path):
    own = torchtitan(tmp_path, "[job]").layouts.row(0)
    assert {x: own[x] for x in ("dp", "zero", "micro_batch", "global_batch", "precision", "recompute_layers")} == {
        "dp": 16, "zero": 3, "micro_batch": 8, "global_batch": 128, "precision": "bf16", "recompute_layers": 16,
    }  # fmt: skip
    text = "[training]\nlocal_batch_size = 4\n[parallelism]\npipeline_parallel_degree = 4\n"
    looped = text + 'pipeline_parallel_schedule = "Interleaved1F1B"\n[activation_checkpoint]\nmode = "none"\n'
    each = looped.replace("[activation", "pipeline_parallel_layers_per_stage = 3\n[activation")
    found = [torchtitan(tmp_path, x) for x in (text, looped, each)]
    rows = [run.layouts.row(0) for run in found]
    assert [(x["virtual_stages"], x["micro_batch"], x["zero"]) for x in rows] == [(1, 1, 1), (2, 1, 1), (3, 1, 1)]
    # 34 layers with one less on the first and the last stage, as generate_llm_fqn_per_model_part has them.
    assert [stage_layers(run.setup, run.layouts) for run in found[:2]] == [[8, 9, 8, 7], [4, 5, 4, 4, 4, 4, 4, 3]]
    assert found[0].notes == ("selective_ac_option 2: counted as 3 layers of each stage, recomputed in full",)


def test_what_torchtitan_says_beside_is_listed(tmp_path):
    text = """[job]
description = "Llama"
[model]
name = "llama3"
converters = ["quantize.linear.float8"]
[training]
steps = 3
global_batch_size = 128
dtype = "bfloat16"
[parallelism]
enable_async_tensor_parallel = true
disable_loss_parallel = false
fsdp_reshard_after_forward = "always"
expert_tensor_parallel_degree = 1
pipeline_parallel_degree = 2
[activation_checkpoint]
mode = "full"
[compile]
enable = true
[optimizer]
name = "AdamW"
"""
    run = torchtitan(tmp_path, text)
    assert run.layouts.row(0)["precision"] == "fp8"
    assert run.layouts.row(0)["main_dtype"] == "bf16"
    assert run.unknown == ("parallelism.enable_async_tensor_parallel",)
    assert run.setup.framework.name == "torchtitan-compiled"
    assert run.notes == (
        "parallelism.fsdp_reshard_after_forward always: counted as never, in a pipeline",
        "training.global_batch_size 128: 2 pipelines per step counted as one",
    )


def test_older_job_files_of_torchtitan_are_read(tmp_path: Path) -> None:
    """Of 0.1: a batch_size of its own had been left out, and torchtitan 0.2's 8 taken."""
    older = torchtitan(tmp_path, "[training]\nbatch_size = 2\ncompile = true")
    assert older.layouts.row(0)["micro_batch"] == 2
    assert older.setup.framework.name == "torchtitan-compiled"
    assert not older.unknown


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("training = 3", "field training is 3; allowed: a table"),
        ("", "no table of torchtitan's is in it; allowed: a job file"),
        ('[project]\nname = "planner"', "no table of torchtitan's is in it; allowed: a job file"),
        ("[parallelism", "not valid TOML"),
        ("[parallelism]\ntensor_parallel_degree = 0", "parallelism.tensor_parallel_degree is 0; allowed: a whole"),
        ("[parallelism]\ntensor_parallel_degree = 3", "shards' make 3 ranks; allowed: a divisor of 16 GPUs"),
        ("[parallelism]\ndata_parallel_shard_degree = 0", "data_parallel_shard_degree 0 * the rest's 1 isn't 16"),
        ('[parallelism]\npipeline_parallel_schedule = "Fast"', "schedule is 'Fast'; allowed: 1F1B, GPipe, Inter"),
        ("[parallelism]\nmodule_fqns_per_model_part = 3\npipeline_parallel_degree = 2",
         "module_fqns_per_model_part is 3; allowed: a multiple of 2 lists, in all with layers.0 to layers.31 in order"),
        ("[parallelism]\npipeline_parallel_layers_per_stage = 7\npipeline_parallel_degree = 2",
         "layers_per_stage 7, less_layers 1 and 1 make 5 stages of 6; allowed: a multiple of pipeline_p"),
        ("[parallelism]\npipeline_parallel_first_stage_less_layers = 10000000\npipeline_parallel_degree = 2\n"
         "pipeline_parallel_layers_per_stage = 1", "stages of 1; allowed"),
        ("[parallelism]\nexpert_parallel_degree = 2\nexpert_tensor_parallel_degree = 4", "is 4; allowed: 1, 1"),
        ('[activation_checkpoint]\nmode = "memory_budget"',
         "is 'memory_budget'; allowed: none, selective, full; what the compiler repeats itself isn't counted"),
        ("[activation_checkpoint]\nselective_ac_option = 2", "selective_ac_option is 2; allowed: op, 1, 2, 3"),
        ("[training]\nglobal_batch_size = 100", "global_batch_size 100, local_batch_size 8 * 16 replicas"),
        ("[training]\nglobal_batch_size = 0", "global_batch_size 0, local_batch_size 8 * 16 replicas"),
        ('[training]\nmixed_precision_param = "float16"', "is 'float16'; allowed: bfloat16, float32"),
        ('[training]\ndtype = "float16"', "training.dtype is 'float16'; allowed: bfloat16, float32"),
        ("[training]\nenable_cpu_offload = 3", "enable_cpu_offload is 3; allowed: true, false"),
    ],
)  # fmt: skip
def test_torchtitans_faults_name_the_field(tmp_path, text, said):
    with pytest.raises(PlannerError, match=None) as caught:
        torchtitan(tmp_path, text)
    assert said in str(caught.value)
