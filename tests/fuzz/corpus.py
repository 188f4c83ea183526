"""Sound inputs of every kind, which the fuzzers spoil, and the commands that read them.

In a command `@x` stands for the path of the file x in the case's folder, `@@x` for that path behind an @.
"""

from __future__ import annotations

import csv
import json
import pickle
import tempfile
import tomllib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz.kind import Kind
from tests.fuzz.more_kinds import more_kinds
from tests.sweep.conftest import TINY

__all__ = ["KINDS", "Kind", "bytes_of"]

ROOT = Path(__file__).parents[2]
PROFILES = ROOT / "hardware_profiles"

LAYOUT = "--dp 2 --tp 2 --pp 2 --global-batch 16"
MODEL = """
[model]
name = "mine"
family = "llama"
layers = 4
hidden = 256
heads = 8
kv_heads = 4
ffn = 688
vocab = 1000
seq_len = 128
tied = true
"""
MOE = """
[model]
name = "experts"
family = "moe"
layers = 4
hidden = 256
heads = 8
vocab = 1000
seq_len = 128
experts = 8
top_k = 2
moe_ffn = 512
dense_layers = 1
shared_experts = 1
"""
TRACE = {
    "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 2},
    "traceEvents": [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 9, "tid": 9, "ts": 0.5, "dur": 100},
        {"ph": "X", "cat": "kernel", "name": "nvjet_gemm", "pid": 0, "tid": 7, "ts": 10.25, "dur": 40, "args": {}},
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 8, "ts": 30, "dur": 30,
         "args": {"Process Group Description": "tp", "Group size": 2, "Collective name": "allreduce"}},
    ],
}  # fmt: skip
SNAPSHOT = {
    "segments": [{"device": 0, "total_size": 4096, "blocks": [
        {"address": 1, "requested_size": 512, "state": "active_allocated", "frames": []}]}],
    "device_traces": [[
        {"action": "segment_alloc", "addr": 0, "size": 4096, "frames": []},
        {"action": "alloc", "addr": 1, "size": 512, "frames": [{"filename": "a.py", "line": 1, "name": "forward"}]}]],
}  # fmt: skip
CONFIGS = {
    "llama": {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8,
              "num_key_value_heads": 4, "intermediate_size": 688, "vocab_size": 1000, "max_position_embeddings": 128,
              "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "head_dim": 32,
              "rope_theta": 10000.0, "torch_dtype": "bfloat16"},
    "gpt2": {"model_type": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 8, "vocab_size": 1000, "n_positions": 128,
             "n_inner": None},
    "deepseek": {"model_type": "deepseek_v3", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8,
                 "intermediate_size": 688, "moe_intermediate_size": 128, "n_routed_experts": 8, "kv_lora_rank": 64,
                 "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "q_lora_rank": None,
                 "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32, "vocab_size": 1000,
                 "max_position_embeddings": 128, "moe_layer_freq": 1},
    "multimodal": {"model_type": "llava", "tie_word_embeddings": True, "text_config": {
        "model_type": "qwen3_moe", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8,
        "num_key_value_heads": 4, "intermediate_size": 688, "moe_intermediate_size": 128, "num_experts": 8,
        "num_experts_per_tok": 2, "decoder_sparse_step": 2, "mlp_only_layers": [0], "vocab_size": 1000,
        "max_position_embeddings": 128}},
}  # fmt: skip
PLAN = {
    "model": "gpt2",
    "seq_len": 128,
    "layout": {
        "schedule": "1f1b", "dp": 2, "tp": 1, "pp": 2, "cp": 1, "ep": 1, "virtual_stages": 1, "sequence_slices": 1,
        "micro_batch": 2, "global_batch": 16, "zero": 1, "recompute": "none", "attention": "flash2",
        "precision": "bf16", "layer_split": "even", "sequence_parallel": False, "fused_norm": True,
        "offload_optimizer": False, "grad_dtype": "framework", "grad_reduce_dtype": "bf16", "optimizer": "adam_bf16",
        "train": "full",
    },
}  # fmt: skip
PLAN_WITH_SHAPE = {
    "model": "mine", "seq_len": 128, "cluster": "dgx-a100-80gb", "framework": "megatron-lm", "gpus": 4,
    "shape": {"name": "mine", "family": "llama", "num_layers": 4, "hidden": 256, "ffn": 688, "num_heads": 8,
              "num_kv_heads": 4, "head_dim": 32, "vocab": 1000, "seq_len": 128, "gated": True, "rms_norm": True,
              "rotary": True, "num_dense_layers": 4},
    "best": [{"layout": PLAN["layout"], "step_time_s": 1.0, "mfu": 0.5, "memory_gib": 10.0}],
}  # fmt: skip
SWEEP = """
models = ["gpt2", "model.toml"]
clusters = ["dgx-a100-80gb", "dgx-h100"]
gpus = [2]
global_batches = [2]
objectives = ["time", "memory"]
prices = { dgx-a100-80gb = 1.5, dgx-h100 = 2.5 }
tokens = 1e9

[hardware]
accelerator.memory_gib = [8, 40]
accelerator.power_w = { times = [1, 0.5] }

[search]
tp = [1]
pp = [1]
micro_batch = [1]
schedule = ["1f1b"]

[assumptions]
mtbf_hours = 50000.0
"""
QUESTION = {"cluster": "dgx-a100-80gb", "framework": "megatron-lm", "gpus": 4}
LAUNCH = """#!/bin/bash
MICRO_BATCH=1
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \\
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel \\
    --num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128 \\
    --micro-batch-size $MICRO_BATCH --global-batch-size 16 --bf16 --use-distributed-optimizer \\
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --vocab-size 1000 \\
    --use-precision-aware-optimizer --main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype fp8 --optimizer adam
"""
LAUNCH_GIVEN = """torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-experts 8 --moe-ffn-hidden-size 512
    --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et|t|tt|L' --expert-model-parallel-size 8
    --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep --num-layers 4 --hidden-size 256 --bf16
    --num-attention-heads 8 --seq-length 128 --micro-batch-size 1 --global-batch-size 16 --vocab-size 1000
"""
DEEPSPEED = {
    "train_batch_size": 16, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True}, "gradient_clipping": 1.0, "data_types": {"grad_accum_dtype": "fp32"},
    "communication_data_type": "bf16",
    "zero_optimization": {"stage": 2, "overlap_comm": True, "offload_optimizer": {"device": "none"}},
}  # fmt: skip
FSDP = PLAN | QUESTION | {
    "model": "llama3-8b", "gpus": 8, "layout": PLAN["layout"] | {"dp": 8, "pp": 1, "zero": 3, "optimizer": "adam"}
}  # fmt: skip
TITAN = """
[model]
name = "llama3"
converters = []
[training]
local_batch_size = 2
global_batch_size = 32
seq_len = 4096
[parallelism]
tensor_parallel_degree = 2
pipeline_parallel_degree = 2
[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"
"""
TARGETS = ("megatron", "megatron-bridge", "deepspeed", "torchtitan", "torchtitan-toml", "accelerate")
LAWS = """
[critical_batch.mine]
source = "a page"
mark = "derived"
variable = "parameters"
unit = 1e9
coefficient = 1e6
exponent = 0.5
overhead = 0.2
fitted = [1e8, 1e11]

[loss.mine]
form = "sum-of-powers"
source = "a page"
mark = "derived"
parameters = "all"
irreducible = 1.8
parameters_coefficient = 482.0
parameters_exponent = 0.35
data_coefficient = 2085.0
data_exponent = 0.37
fitted_parameters = [44e6, 16e9]
fitted_tokens = [0.1e9, 500e9]
"""
SCHEDULE = [
    ["0F0", "0F1", "", "", "0B0", "0B1"],
    ["", "1F0", "1F1", "1B0", "1B1"],
]
SPLIT_SCHEDULE = [
    ["0F0", "0F1", "", "0I0", "0W0", "0I1", "0W1"],
    ["", "1F0", "1I0", "1W0&", "1F1", "1I1", "1W1"],
]


def _profile(folder: str, name: str) -> str:
    return (PROFILES / folder / f"{name}.toml").read_text(encoding="utf-8")


LOG = "".join(
    f" iteration {i:8d}/     100 | elapsed time per iteration (ms): {2000 + i}.5 | global batch size:    64 |\n"
    f"[Rank 0] memory (MB) | max reserved: {41000 + i}.0\r {i}%|## | {i}/100 [00:30<03:00,  2.01s/it]\n"
    for i in range(1, 9)
)


def _runs() -> list[list[str]]:
    """The header and a few rows of two shipped files, notes left out."""
    grid: list[list[str]] = []
    for name in ("korthikanti_2022_a100.csv", "hagemann_llama_a100.csv"):
        with (ROOT / "measured_runs" / name).open(newline="", encoding="utf-8") as stream:
            rows = list(csv.reader(stream))
        grid += [[*row[:-1], ""] for row in rows[1:6]] if grid else [rows[0]] + [[*row[:-1], ""] for row in rows[1:6]]
    return grid


CLUSTER_COMMANDS = (
    "clusters @cluster.toml",
    "clusters @cluster.toml --json",
    f"estimate gpt2 --cluster @cluster.toml {LAYOUT}",
    f"estimate gpt2 --cluster @cluster.toml {LAYOUT} --json",
    f"simulate gpt2 --cluster @cluster.toml {LAYOUT}",
)


def _own_cluster() -> dict[str, str]:
    """A cluster whose every part is a file beside it."""
    text = _profile("clusters", "dgx-a100-80gb")
    tables = tomllib.loads(text)
    for field, name in (
        ("accelerator", "gpu"), ("node_link", "link"), ("network", "net"), ("host_link", "host"), ("framework", "fw"),
    ):  # fmt: skip
        text = text.replace(f'{field} = "{tables[field]}"', f'{field} = "./{name}.toml"')
    gpu = _profile("accelerators", "a100-sxm-80gb").replace('efficiency = "ampere"', 'efficiency = "./eff.toml"')
    return {
        "cluster.toml": text,
        "gpu.toml": gpu,
        "eff.toml": _profile("efficiency", "ampere"),
        "link.toml": _profile("links", "nvlink-3"),
        "net.toml": _profile("links", "infiniband-hdr"),
        "host.toml": _profile("links", "pcie-4"),
        "fw.toml": _profile("frameworks", "megatron-lm"),
    }


def _cluster_kinds() -> list[Kind]:
    files = _own_cluster()
    return [
        Kind(name=name, examples=(text,), commands=CLUSTER_COMMANDS,
             beside={other: t for other, t in files.items() if other != name})
        for name, text in files.items()
    ]  # fmt: skip


def _base_kinds() -> list[Kind]:
    """Profiles that say only in what they differ from another."""
    node = (
        'name = "mine"\nbase = "dgx-a100-80gb"\ngpus_per_node = { value = 4, source = "seen" }\n'
        'accelerator = "./gpu.toml"\n[sources]\nseen = "counted"\n'
    )
    gpu = (
        'name = "half"\nbase = "a100-sxm-80gb"\nmemory_gib = { value = 40, source = "sheet" }\n'
        '[sources]\nsheet = "a data sheet"\n'
    )
    return [
        Kind(name=name, examples=(text,), commands=CLUSTER_COMMANDS, beside={other: beside})
        for name, text, other, beside in (
            ("cluster.toml", node, "gpu.toml", gpu),
            ("gpu.toml", gpu, "cluster.toml", node),
        )
    ]


def _state_kinds() -> list[Kind]:
    """What planner keeps to go on: a checkpoint's two files, a sweep's part and manifest."""
    from tests.fuzz.harness import run

    train = "train --scale tiny --steps 1 --micro-batch 1 --micro-batches 1 --checkpoint"
    sweep = "sweep @sweep.toml --workers 1 --output @out.parquet"
    with tempfile.TemporaryDirectory() as name:
        saved, state = Path(name) / "saved", _sweep_state(Path(name))
        assert run([*train.split(), str(saved)]).code == 0
        latest, part = json.loads((saved / "latest.json").read_text()), next(saved.glob("*.npz"))
        data, at = part.read_bytes(), f"saved/{part.name}"
    beside = {"saved/latest.json": json.dumps(latest)}
    definition: dict[str, str | bytes] = {"sweep.toml": TINY}
    return [
        Kind(name="saved/latest.json", examples=(latest,), commands=(f"{train} @saved",), beside={at: data},
             signed=True),
        Kind(name=at, examples=(data,), commands=(f"{train} @saved",), beside=beside),
        *(Kind(name=file, examples=(tree,), commands=(sweep,), slow=True, signed=True,
               beside=definition | {other: json.dumps(t) for other, t in state.items() if other != file})
          for file, tree in state.items()),
    ]  # fmt: skip


def _sweep_state(folder: Path) -> dict[str, Any]:
    """A sweep's manifest and its part, as they are while it runs."""
    from planner.sweeps.run import run_sweep
    from planner.sweeps.sweep import load_sweep
    from tests.sweep.test_resume import Here

    (folder / "sweep.toml").write_text(TINY)
    with suppress(KeyboardInterrupt):
        run_sweep(load_sweep(folder / "sweep.toml"), folder / "out.parquet", Here(most=1).answers)
    found = sorted((folder / "out.parquet.parts").glob("*.json"))
    return {f"out.parquet.parts/{path.name}": json.loads(path.read_text()) for path in found}


@cache
def kinds() -> tuple[Kind, ...]:
    """All kinds of files."""
    model = (
        "models @model.toml",
        "models @model.toml --json",
        f"estimate @model.toml --cluster dgx-a100-80gb {LAYOUT}",
        f"partition @model.toml --cluster dgx-a100-80gb {LAYOUT}",
        f"simulate @model.toml --cluster dgx-h100 {LAYOUT} --json",
        "laws @model.toml --tokens 1e9",
        "explain @model.toml --cluster dgx-a100-80gb --gpus 2 --global-batch 2 --json",
        f"simulate @model.toml --cluster dgx-h100 {LAYOUT} --svg @out.svg",
        "recommend @model.toml --cluster dgx-h100 --gpus 2 --global-batch 2 --no-curve --html @out.html",
        "recommend @model.toml --cluster dgx-h100 --gpus 2 --global-batch 2 --save @out.json",
    )
    return (
        Kind(name="model.toml", examples=(MODEL, MOE), commands=model),
        Kind(name="sweep.toml", examples=(SWEEP,), beside={"model.toml": MODEL}, slow=True,
             commands=("sweep @sweep.toml --workers 1 --output @out.parquet",
                       "sweep @sweep.toml --workers 1 --output @out.parquet --json")),
        Kind(name="config.json", examples=tuple(CONFIGS.values()),
             commands=("models @config.json", "models @config.json --json", "models @.",
                       f"estimate @config.json --cluster dgx-a100-80gb {LAYOUT} --json")),
        Kind(name="runs.csv", examples=(_runs(),),
             commands=("validate @runs.csv", "validate @runs.csv --json", "validate @runs.csv --predictions @out.csv")),
        Kind(name="anchor.csv", examples=(_runs(),),
             commands=(f"estimate gpt2 --cluster selene {LAYOUT} --anchor @anchor.csv",)),
        Kind(name="run.log", examples=(LOG,), commands=("observe @run.log", "observe @run.log --json")),
        Kind(name="rank0.json", examples=(TRACE,), commands=("observe @rank0.json", "observe @rank0.json --json")),
        Kind(name="memory.pickle", examples=(pickle.dumps(SNAPSHOT),), commands=("observe @memory.pickle",)),
        Kind(name="mine.csv", examples=(SCHEDULE, SPLIT_SCHEDULE),
             commands=("schedule @mine.csv", "schedule @mine.csv --json", "schedule @mine.csv --csv @out.csv",
                       "simulate gpt2 --cluster dgx-a100-80gb --pp 2 --global-batch 2 --schedule-file @mine.csv",
                       "simulate gpt2 --cluster dgx-a100-80gb --pp 2 --global-batch 2 --schedule-file @mine.csv "
                       "--trace @out.json")),
        Kind(name="plan.json", examples=(PLAN, PLAN_WITH_SHAPE),
             commands=("train @plan.json --scale tiny --steps 1 --micro-batches 4",
                       "train @plan.json --scale tiny --steps 1 --json"), slow=True),
        Kind(name="plan.json", examples=(PLAN | QUESTION | {"model": "llama3-8b"}, PLAN_WITH_SHAPE, FSDP),
             commands=(*(f"export @plan.json --to {name}" for name in TARGETS),
                       "estimate @plan.json", "simulate @plan.json --json", "partition @plan.json --tp 1",
                       "export @plan.json --to megatron -o @out.sh",
                       "export @plan.json --to torchtitan -o @out.py")),
        Kind(name="launch.sh", examples=(LAUNCH, LAUNCH_GIVEN),
             commands=("estimate --megatron-args @@launch.sh --cluster selene --gpus 16",
                       "estimate --megatron-args @@launch.sh --cluster selene --gpus 16 --json")),
        Kind(name="ds.json", examples=(DEEPSPEED,),
             commands=("estimate gpt2 --deepspeed @ds.json --cluster dgx-a100-80gb --gpus 8",
                       "estimate gpt2 --deepspeed @ds.json --cluster dgx-a100-80gb --gpus 8 --json")),
        Kind(name="job.toml", examples=(TITAN,),
             commands=("estimate llama3-8b --torchtitan @job.toml --cluster dgx-h100 --gpus 16",
                       "estimate llama3-8b --torchtitan @job.toml --cluster dgx-h100 --gpus 16 --json"), slow=True),
        Kind(name="results.parquet", examples=(swept(),),
             commands=("pareto @results.parquet", "pareto @results.parquet --json",
                       "heatmap @results.parquet --x accelerator.memory_gib --y cluster --where model=gpt2 --json")),
        Kind(name="laws.toml", examples=(LAWS,), slow=True,
             commands=("time gpt2 --cluster dgx-a100-80gb --gpus 2 --tp 1 --pp 1 --tokens 1e9 --batch 8 "
                       "--critical-batch-law @laws.toml",
                       "time gpt2 --cluster dgx-a100-80gb --gpus 2 --tp 1 --pp 1 --loss 3.0 --loss-law @laws.toml "
                       "--json")),
        *_cluster_kinds(),
        *_base_kinds(),
        *_state_kinds(),
        *more_kinds(MODEL, LAUNCH, PLAN | QUESTION | {"model": "llama3-8b"}, _runs()),
    )  # fmt: skip


def swept() -> bytes:
    """The results of the sweep above."""
    from planner.sweeps.run import run_sweep
    from planner.sweeps.sweep import load_sweep
    from tests.sweep.test_codesign import Here

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sweep.toml").write_text(SWEEP)
        (folder / "model.toml").write_text(MODEL)
        run_sweep(load_sweep(folder / "sweep.toml"), folder / "out.parquet", Here().answers, restart=True)
        return (folder / "out.parquet").read_bytes()


KINDS = kinds()


def bytes_of(example: Any) -> bytes:
    """An example as its file."""
    if isinstance(example, bytes):
        return example
    if isinstance(example, str):
        return example.encode()
    if isinstance(example, dict):
        return json.dumps(example, indent=1).encode()
    return ("\n".join(",".join(row) for row in example) + "\n").encode()
