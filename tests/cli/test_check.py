"""`planner check`: a launch script before it is merged."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.base.units import counted
from planner.cli import app
from tests.hang import HANG_S

SCRIPT = """torchrun --nproc-per-node 8 --nnodes 8 pretrain_gpt.py --num-layers 32
 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000
 --tensor-model-parallel-size 2 --micro-batch-size {micro} --global-batch-size 512
 --bf16 --use-distributed-optimizer --sequence-parallel
""".replace("\n ", " ")


def check(file: Path, *more: str):
    return CliRunner().invoke(app, ["check", str(file), "--cluster", "dgx-h100", *more])


@pytest.fixture
def repository(tmp_path):
    """A folder under git in which a launch script stands with micro-batches of 1; now it has 2."""
    file = tmp_path / "launch.sh"
    file.write_text(SCRIPT.format(micro=1))
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True, timeout=HANG_S)
    file.write_text(SCRIPT.format(micro=2))
    return file


def test_a_change_is_said_against_the_committed_file(repository):
    done = check(repository, "--against", "HEAD", "--json")
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    one = json.loads(check(repository, "--json").stdout)
    assert told["after"] == one["after"]
    assert "mb 1" in told["before"]["layout"]
    assert "mb 2" in told["after"]["layout"]
    assert told["after"]["memory_gib"] > told["before"]["memory_gib"]
    gain = told["after"]["tokens_per_s_per_gpu"] / told["before"]["tokens_per_s_per_gpu"] - 1.0
    assert f"{gain:+.1%} tokens per second" in check(repository, "--against", "HEAD").stdout


def test_a_run_that_may_not_fit_ends_with_one(repository):
    repository.write_text(SCRIPT.format(micro=16))
    done = check(repository)
    assert done.exit_code == 1
    assert "It may run out of memory: at least 95% is asked for." in done.stdout
    assert check(repository, "--fit-chance", "0").exit_code == 0


def test_memory_is_not_judged_where_repeated_modules_are_not_counted(repository):
    """mlp and moe of --recompute-modules repeat what planner keeps: it knows what the run takes at most."""
    text = SCRIPT.format(micro=16)
    repository.write_text(text)
    assert check(repository).exit_code == 1
    repository.write_text(f"{text.strip()} --recompute-granularity selective --recompute-modules mlp\n")
    done = check(repository)
    assert done.exit_code == 0, done.output
    assert "GiB per GPU at most (no verdict)" in " ".join(done.output.split())  # a long path folds the line
    assert "--recompute-modules mlp: not counted" in " ".join(done.output.split())
    reviewed = CliRunner().invoke(app, ["estimate", "--megatron-args", f"@{repository}", "--cluster", "dgx-h100"])
    assert reviewed.exit_code == 0
    assert "at most, no verdict" in " ".join(reviewed.output.split())
    assert "DOES NOT FIT" not in reviewed.output
    assert "does not fit" not in reviewed.output


def test_what_was_not_understood_is_said_as_estimate_says_it(repository):
    """A misspelt argument is not read, so that tp is 1; in continuous integration nobody would see it."""
    text = SCRIPT.format(micro=1).replace("--tensor-model-parallel-size", "--tensor-model-parallel-siz")
    repository.write_text(text.replace("--vocab-size 32000", "--foo-bar --lr 0.1"))
    assert check(repository).exit_code == 1
    said, told = check(repository).stdout, json.loads(check(repository, "--against", "HEAD", "--json").stdout)
    whole = CliRunner().invoke(app, ["estimate", "--megatron-args", f"@{repository}", "--cluster", "dgx-h100"]).stdout
    lines = ["Not understood, and left out: --foo-bar --tensor-model-parallel-siz"]
    lines.append(f"Neither time nor memory depends on {counted(told['after']['ignored'], 'more setting')}.")
    lines += [f"Of the configuration: {note}" for note in told["after"]["assumed"]]
    assert len(lines) == 4
    for line in lines:
        assert line in " ".join(said.split())
        assert line in " ".join(whole.split())
    meant = "--tensor-model-parallel-siz is unknown: did you mean --tensor-model-parallel-size?"
    assert told["after"]["assumed"][0] == meant
    assert whole.index(lines[0]) < whole.index("did you mean") < whole.index("per step")
    assert "vocabulary" in told["after"]["assumed"][1]
    assert (told["after"]["misspelt"], told["before"]["misspelt"]) == (True, False)
    assert told["after"]["unknown"] == ["--foo-bar", "--tensor-model-parallel-siz"]
    assert (told["before"]["unknown"], told["before"]["assumed"]) == ([], [])
    repository.write_text(f"{SCRIPT.format(micro=1).strip()} --foo-bar --fp4-param-gather\n")
    assert check(repository).exit_code == 0  # unknown, but like nothing that planner reads


def test_a_layout_that_is_illegal_names_the_misspelt_argument_too(repository):
    repository.write_text(f"{SCRIPT.format(micro=7).strip()} --context-parallel-siz 2\n")
    fault = str(check(repository).exception)
    assert fault.startswith("illegal layout: ")
    assert fault.endswith("; --context-parallel-siz is unknown: did you mean --context-parallel-size?")


@pytest.mark.parametrize("revision", ["nowhere", "-x", "HEAD:elsewhere", "HEAD~1"])
def test_a_revision_without_the_file_is_named(repository, revision):
    done = check(repository, f"--against={revision}")
    assert done.exit_code == 1
    assert str(done.exception).startswith(
        f"--against is '{revision}'; allowed: a revision of git in which the file stands"
    )


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("launch.sh", "echo hello --hidden", "arguments such as --num-layers 32"),
        ("recipe.py", "# It can't: torchrun --nproc_per_node 8\n", "arguments such as --num-layers 32"),
        ("ds.json", "{}", "of a DeepSpeed JSON: planner estimate MODEL --deepspeed "),
        (
            "fsdp.yaml",
            "distributed_type: FSDP\n",
            "of Accelerate's YAML only its deepspeed_config_file: planner estimate",
        ),
    ],
)
def test_a_file_without_arguments_is_refused(tmp_path, name, text, said):
    file = tmp_path / name
    file.write_text(text)
    done = check(file)
    assert done.exit_code == 1
    assert str(done.exception).startswith(f"{file}: no argument of Megatron-LM is in it; allowed: a launch script with")
    assert said in str(done.exception)
    assert "Traceback" not in done.output
