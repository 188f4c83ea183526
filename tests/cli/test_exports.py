"""`planner export`, `recommend --export` and `--framework` as a user meets them."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.commands import planner

ASK = ["recommend", "llama3-8b", "--cluster", "dgx-h100", "--gpus", "16", "--global-batch", "64"]


def saved_with(schedule: str, folder: Path) -> Path:
    path = folder / "plan.json"
    done = planner(*ASK, "--pp", "4", "--schedule", schedule, "--tp", "2", "--save", str(path))
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return saved_with("zb-h1", tmp_path_factory.mktemp("plans"))


@pytest.fixture(scope="module")
def unnamed(tmp_path_factory) -> Path:
    """A plan with a schedule that PyTorch runs and has no name for."""
    return saved_with("modular", tmp_path_factory.mktemp("unnamed"))


def test_a_plan_becomes_a_script_and_what_is_lost_is_said(saved, tmp_path):
    script = tmp_path / "launch.sh"
    done = planner("export", str(saved), "--to", "megatron", "-o", str(script))
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("planner: not in Megatron-LM: schedule zb-h1: no setting for it; exported as 1f1b")
    subprocess.run(["bash", "-n", str(script)], check=True)
    printed = planner("export", str(saved), "--to", "megatron-lm")
    assert printed.stdout == script.read_text()
    assert printed.stderr == done.stderr


def test_a_refusal_is_one_line_though_something_is_not_expressed(saved, tmp_path):
    done = planner("export", str(saved), "--to", "megatron", "-o", str(tmp_path / "launch.sh" / "launch.sh"))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "launch.sh" in done.stderr


def test_a_schedule_lies_beside_its_recipe(unnamed, tmp_path):
    done = planner("export", str(unnamed), "--to", "torchtitan", "-o", str(tmp_path / "recipe.py"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "recipe.schedule.csv").read_text().startswith("0F0,")
    done = planner("export", str(unnamed), "--to", "torchtitan")
    assert (done.returncode, done.stdout) == (2, "")
    assert "schedule modular needs a CSV beside the recipe; give the recipe's file with -o FILE" in done.stderr


def test_a_split_backward_pass_is_not_in_torchtitan(saved):
    done = planner("export", str(saved), "--to", "torchtitan")
    assert done.returncode == 0, done.stderr
    assert "compiled layers or attention can't split the backward pass; exported as 1f1b" in done.stderr


def test_recommend_writes_several_at_once(tmp_path):
    asked = ["--framework", "accelerate", "--export", "accelerate=fsdp.yaml", "--export", "deepspeed=ds.json"]
    done = planner(*ASK, *asked, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    best = json.loads(done.stdout)["best"]
    assert {(x["layout"]["pp"], x["layout"]["ep"]) for x in best} == {(1, 1)}
    assert "fsdp_version: 2" in (tmp_path / "fsdp.yaml").read_text()
    assert json.loads((tmp_path / "ds.json").read_text())["train_batch_size"] == 64


@pytest.mark.parametrize("framework", ["megatron", "nemo", "deepspeed", "torchtitan"])
def test_what_is_searched_for_a_framework_keeps_its_schedule(framework, tmp_path):
    file = tmp_path / "x"
    done = planner(*ASK, "--pp", "4", "--framework", framework, "--export", f"{framework}={file}")
    assert done.returncode == 0, done.stderr
    assert "schedule" not in done.stderr
    assert file.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "deepspeeed"], "nearest: deepspeed"),
        (["--to", "accelerate"], "pp 4: Accelerate has no pipeline; recommend with --framework accelerate"),
        (["--to", "megatron", "-o", "/nowhere/x.sh"], "no folder /nowhere"),
        (["--to", "megatron", "-o", "x.json"], "--output is x.json; allowed: a path that ends in .sh"),
        (["--to", "megatron", "--number", "99"], "--number is 99; allowed: 1 to "),
        (["--to", "torchtitan", "-o", "x.py", "--base", "import os"], "--base is 'import os'"),
        (["--to", "megatron", "--cluster", "dgx"], "unknown cluster"),
        (["--to", "deepspeed", "--base", "a.b:c"], "base is 'a.b:c'; allowed: none for deepspeed"),
        (["--to", "torchtitan-toml", "--base", "a.b:c"], "base is 'a.b:c'; allowed: none for torchtitan-toml"),
    ],
)
def test_faults_are_one_line_and_write_nothing(saved, tmp_path, arguments, said):
    done = planner("export", str(saved), *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


HYBRID = ["recommend", "nemotron-h-56b", "--cluster", "dgx-h100", "--gpus", "256", "--global-batch", "768"]
REFUSED = [
    (["--framework", "megatron"], "model nemotron-h-56b has state-space layers, which Megatron-LM trains by"),
    (["--framework", "torchtitan"], "torchtitan registers no model of the sizes of nemotron-h-56b"),
    (["--framework", "torchtitan-toml"], "torchtitan registers no model of the sizes of nemotron-h-56b"),
    (["--framework", "torchtitan", "--base", "mine"], "--base is 'mine'; allowed: package.module:function"),
    (
        ["--framework", "torchtitan", "--base", "a:b", "--precision", "fp16"],
        "precision fp16: torchtitan trains in bfloat16",
    ),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED)
def test_what_a_framework_could_not_run_at_all_is_not_searched(arguments, said):
    done = planner(*HYBRID, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_recipe_of_ones_own_stands_for_a_model_that_torchtitan_lacks(tmp_path):
    file = tmp_path / "mine.py"
    base = ["--base", "my.recipes:ours"]
    ask = ["recommend", "llama-13b", "--cluster", "dgx-h100", "--gpus", "8", "--global-batch", "64"]
    done = planner(*ask, "--framework", "torchtitan", *base, "--export", f"torchtitan={file}")
    assert done.returncode == 0, done.stderr
    assert "from my.recipes import ours as base" in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--export", "megatron"], "--export is 'megatron'; allowed: a framework and a file"),
        (["--export", "megatron=/nowhere/x"], "no folder /nowhere"),
        (["--export", "jax=x"], "unknown framework to export to 'jax'"),
        (
            ["--base", "a.b:c", "--framework", "megatron"],
            "--base is 'a.b:c'; allowed: with --framework or --export torchtitan",
        ),
        (["--framework", "caffe"], "unknown framework 'caffe'"),
        (["--framework", "megatron", "--schedule", "zb-v"], "schedule is zb-v; allowed on Megatron-LM: 1f1b"),
    ],
)
def test_faults_of_recommend_come_before_the_search(arguments, said):
    done = planner(*ASK, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
