"""Ten plans a framework: what planner exports starts in the framework itself, without a GPU. Skipped without it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.exporters.plan_export import export_plan, get_target
from planner.layouts import Attention, Precision, Recompute, Split
from planner.models import Transformer, load_model, with_seq_len
from tests.export.test_frameworks import plan

pytestmark = pytest.mark.extra
ORACLE = Path(__file__).parents[2] / "benchmarks" / "oracle"
FULL, SELECTIVE = Recompute.FULL, Recompute.SELECTIVE

TORCHTITAN = {
    "fsdp": ("llama3-8b", {"dp": 16, "zero": 3}),
    "hybrid": ("llama3-8b", {"dp": 16, "zero": 3, "dp_replicate": 2, "recompute": FULL}),
    "zero2": ("llama3.2-1b", {"dp": 8, "zero": 2, "recompute": SELECTIVE, "attention": Attention.FLASH3}),
    "tensor": ("llama3-70b", {"dp": 8, "tp": 8, "zero": 3, "sequence_parallel": True, "recompute": FULL}),
    "plain tensor": ("llama3-8b", {"dp": 4, "tp": 4, "zero": 3}),
    "context": ("gpt-oss-20b", {"dp": 4, "cp": 4, "zero": 3, "attention": Attention.FLASH3}),
    "long": (with_seq_len(load_model("qwen3-30b-a3b"), 2**17), {"dp": 2, "cp": 8, "zero": 3, "global_batch": 8}),
    "pipeline": ("llama3-8b", {"dp": 4, "pp": 4, "zero": 1, "recompute": SELECTIVE}),
    "interleaved": ("llama3-8b", {"dp": 2, "tp": 2, "pp": 4, "virtual_stages": 2, "schedule": "interleaved"}),
    "experts": ("qwen3-30b-a3b", {"dp": 16, "ep": 8, "zero": 3, "recompute": FULL}),
    "latent": ("deepseek-v2-lite", {"dp": 16, "ep": 8, "zero": 3}),
}
"""Model and layout of each plan."""


def write(to: str, model: str | Transformer, layout: dict[str, Any], path: Path) -> int:
    """The plan's file, and the GPUs that it takes."""
    chosen = plan(model, **layout)
    export = export_plan(chosen, get_target(to), path=path)
    path.write_text(export.text, encoding="utf-8")
    for beside, text in export.companions.items():
        beside.write_text(text, encoding="utf-8")
    return int(chosen.layouts.gpus[0])


def run(*command: Any, **environment: str) -> str:
    """What a script of another framework prints: in a process of its own, for each sets up one process group."""
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, env=os.environ | environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("name", TORCHTITAN)
def test_torchtitan_starts(name, tmp_path):
    """torchtitan's fake backend, meshes, model parallelized, optimizer (benchmarks/oracle/dry_run.py)."""
    pytest.importorskip("torchtitan")
    model, layout = TORCHTITAN[name]
    recipe = tmp_path / "recipe.py"
    gpus = write("torchtitan", model, layout, recipe)
    assert "parameters in a part of rank 0" in run(ORACLE / "dry_run.py", recipe, gpus)


MEGATRON = {
    "tensor": ("llama3-8b", {"dp": 2, "tp": 8, "zero": 1, "sequence_parallel": True}),
    "interleaved": ("llama3-8b", {"dp": 2, "tp": 2, "pp": 4, "virtual_stages": 4, "schedule": "interleaved"}),
    "gpt": ("gpt3-175b", {"dp": 4, "tp": 8, "pp": 8, "sequence_parallel": True}),
    "uneven": ("llama3-70b", {"dp": 2, "tp": 8, "pp": 7, "layer_split": Split.BALANCED, "recompute": FULL}),
    "selective": ("llama2-13b", {"dp": 4, "tp": 4, "recompute": SELECTIVE, "attention": Attention.FUSED}),
    "context": ("llama3-8b", {"dp": 2, "cp": 4, "tp": 2, "zero": 1, "sequence_parallel": True}),
    "experts": ("mixtral-8x7b", {"dp": 16, "tp": 2, "ep": 8, "pp": 2, "sequence_parallel": True, "zero": 1}),
    "latent": ("deepseek-v3", {"dp": 32, "ep": 32, "pp": 8, "layer_split": Split.BALANCED, "zero": 1}),
    "fine": ("qwen3-30b-a3b", {"dp": 16, "ep": 8, "zero": 1, "recompute": Recompute.FINE}),
    "fp8": ("llama3-70b", {"dp": 4, "tp": 8, "pp": 2, "sequence_parallel": True, "precision": Precision.FP8}),
}


@pytest.mark.parametrize("name", MEGATRON)
def test_megatron_takes_the_arguments_and_builds_its_model(name, tmp_path):
    """Those that the script gives torchrun: a stand-in for it runs benchmarks/oracle/megatron_parse.py with them."""
    if not os.environ.get("MEGATRON_LM"):
        pytest.skip("MEGATRON_LM names no checkout of Megatron-LM (core_v0.16.1)")
    pytest.importorskip("torch")
    model, layout = MEGATRON[name]
    script, stand_in = tmp_path / "launch.sh", tmp_path / "torchrun"
    gpus = write("megatron", model, layout, script)
    skip = 'while [ "$1" != pretrain_gpt.py ]; do shift; done; shift'
    stand_in.write_text(f'#!/bin/sh\n{skip}\nexec {sys.executable} {ORACLE / "megatron_parse.py"} {gpus} "$@"\n')
    stand_in.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().splitlines()[-1].startswith("taken: ")


REPLICAS = {
    "zero1": ("llama3-8b", {"dp": 32, "zero": 1, "recompute": FULL}),
    "zero2": ("llama3-8b", {"dp": 16, "zero": 2}),
    "zero3": ("llama3-8b", {"dp": 16, "zero": 3}),
    "micro": ("llama2-13b", {"dp": 16, "zero": 3, "micro_batch": 2, "recompute": FULL}),
    "hybrid": ("llama3-8b", {"dp": 16, "zero": 3, "dp_replicate": 2, "recompute": FULL}),
    "offload": ("llama3-8b", {"dp": 16, "zero": 2, "offload_optimizer": True}),
    "offload 3": ("llama2-70b", {"dp": 64, "zero": 3, "offload_optimizer": True, "recompute": FULL}),
    "offload all": ("llama2-70b", {"dp": 8, "zero": 3, "offload_optimizer": True, "offload_parameters": True}),
    "fp16": ("gpt2-xl", {"dp": 8, "zero": 2, "precision": Precision.FP16, "attention": Attention.FUSED}),
    "full": ("qwen3-14b", {"dp": 32, "zero": 3, "recompute": FULL}),
    "small": ("qwen3-0.6b", {"dp": 8, "zero": 2}),
}


@pytest.mark.parametrize("name", REPLICAS)
@pytest.mark.parametrize("framework", ["deepspeed", "accelerate"])
def test_deepspeed_and_accelerate_take_the_file(framework, name, tmp_path):
    """As they read it at the start of training (benchmarks/oracle/read_file.py)."""
    pytest.importorskip(framework)
    model, layout = REPLICAS[name]
    path = tmp_path / ("ds.json" if framework == "deepspeed" else "accelerate.yaml")
    gpus = write(framework, model, layout, path)
    assert "read: " in run(ORACLE / "read_file.py", framework, path, gpus)
