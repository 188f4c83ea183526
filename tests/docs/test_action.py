"""The GitHub action's own script, run in a repository with a pull request's change; `gh` is one that writes down."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.hang import HANG_S

ROOT = Path(__file__).parents[2]
ARGUMENTS = (
    "--tensor-model-parallel-size {tp} --micro-batch-size 1 --global-batch-size 64 --num-layers 32 --hidden-size 4096 "
    "--ffn-hidden-size 11008 --num-attention-heads 32 --seq-length 3072 --swiglu --bf16 --use-distributed-optimizer "
    "--vocab-size 32000\n"
)
ASKED = {"FILE": "run/launch.sh", "CLUSTER": "dgx-h100", "OPTIONS": "--gpus 8", "NUMBER": "7", "FAIL": "true"}

pytestmark = pytest.mark.skipif(not all(map(shutil.which, ("bash", "git", "jq"))), reason="needs bash, git and jq")


def git(folder, *args):
    named = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", *named, *args], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def check(tmp_path):
    """Runs the action's check on a launch script that was another one before; what `gh` was told, and the exit code."""
    repository, temp = tmp_path / "repository", tmp_path / "temp"
    executable(temp / "planner/bin/planner", f'#!/bin/sh\nexec {sys.executable} -m planner "$@"\n')
    (repository / "run").mkdir(parents=True)
    git(repository, "init", "-q")

    def run(before, after, comments="[]", **more):
        script = repository / ASKED["FILE"]
        if before:
            script.write_text(ARGUMENTS.format(tp=before))
        git(repository, "add", ".")
        git(repository, "commit", "-q", "--allow-empty", "-m", "before")
        script.write_text(ARGUMENTS.format(tp=after))
        (tmp_path / "comments.json").write_text(comments)
        executable(
            tmp_path / "bin/gh",
            f'#!/bin/sh\necho "$@" >> {tmp_path}/told\n'
            f"case \"$*\" in *--paginate*) cat {tmp_path}/comments.json;; esac\n",
        )  # fmt: skip
        action = yaml.safe_load((ROOT / "action.yml").read_text())
        step = action["runs"]["steps"][1]
        given = ASKED | {"BASE": git(repository, "rev-parse", "HEAD"), "GH_TOKEN": "none"} | more
        assert given.keys() == step["env"].keys()
        here = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "RUNNER_TEMP": str(temp), "GITHUB_REPOSITORY": "o/r"}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],  # as GitHub runs bash
            cwd=repository, env=given | here | {"PYTHONPATH": str(ROOT)}, timeout=HANG_S, capture_output=True,
            text=True,
        )  # fmt: skip
        told = tmp_path / "told"
        comment = temp / "planner-check.md"
        return done, told.read_text() if told.exists() else "", comment.read_text() if comment.exists() else ""

    return run


def test_a_pull_requests_change_is_commented(check):
    done, told, comment = check(2, 1)
    assert done.returncode == 0, done.stderr
    assert "api repos/o/r/issues/7/comments -F body=@" in told
    assert comment.startswith("<!-- planner check run/launch.sh -->")
    assert "run/launch.sh on dgx-h100: dp 8" in comment
    assert "tokens per second" in comment.split("change: ")[1]


def test_the_comment_before_is_replaced(check):
    earlier = '[{"id": 3, "body": "hello"}, {"id": 41, "body": "<!-- planner check run/launch.sh -->\\nold"}]'
    _, told, _ = check(2, 1, comments=earlier)
    assert "api -X PATCH repos/o/r/issues/comments/41 -F body=@" in told


def test_a_new_script_has_no_change_and_what_may_not_fit_fails(check):
    done, _, comment = check(None, 1, CLUSTER="dgx-a100-40gb")
    assert "change:" not in comment
    assert "may run out of memory" in comment
    assert done.returncode == 1
    done, _, _ = check(None, 1, CLUSTER="dgx-a100-40gb", FAIL="false")
    assert done.returncode == 0


def test_a_fault_is_said_and_fails(check):
    done, _, comment = check(2, 1, CLUSTER="dgx-h200000", FAIL="false")
    assert done.returncode == 2
    assert "cluster 'dgx-h200000'" in comment
    assert done.stderr == ""


def test_every_input_is_used():
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    used = "".join(str(step["env"]) for step in action["runs"]["steps"])
    assert all(f"inputs.{name}" in used for name in action["inputs"])
