"""Ten plans a framework: what planner exports starts in the framework itself, without a GPU. Skipped without it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.export.plan_export import export_plan, get_target
from planner.layouts import Recompute
from tests.export.test_frameworks import plan

pytestmark = pytest.mark.extra
ORACLE = Path(__file__).parents[2] / "benchmarks" / "oracle"
FULL, SELECTIVE = Recompute.FULL, Recompute.SELECTIVE

TORCHTITAN = {
    "fsdp": ("llama3-8b", {"dp": 16, "zero": 3}),
    "hybrid": ("llama3-8b", {"dp": 16, "zero": 3, "dp_replicate": 2, "recompute": FULL}),
    "zero2": ("llama3-8b", {"dp": 8, "zero": 2, "recompute": SELECTIVE}),
    "tensor": ("llama3-70b", {"dp": 8, "tp": 8, "zero": 3, "sequence_parallel": True, "recompute": FULL}),
    "plain tensor": ("llama3-8b", {"dp": 4, "tp": 4, "zero": 3}),
    "context": ("llama3-8b", {"dp": 4, "cp": 4, "tp": 2, "zero": 3, "sequence_parallel": True}),
    "pipeline": ("llama3-8b", {"dp": 4, "pp": 4, "zero": 1, "recompute": SELECTIVE}),
    "interleaved": ("llama3-8b", {"dp": 2, "tp": 2, "pp": 4, "virtual_stages": 2, "schedule": "interleaved"}),
    "experts": ("qwen3-30b-a3b", {"dp": 16, "ep": 8, "zero": 3, "recompute": FULL}),
    "latent": ("deepseek-v2-lite", {"dp": 16, "ep": 8, "zero": 3}),
}
"""Model and layout of each plan."""


def write(to: str, model: str, layout: dict[str, Any], path: Path) -> int:
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
