"""Shell completion: names of models, clusters, schedules and the rest, in bash, zsh and fish."""

import os
import subprocess
import sys

import pytest

from planner.cli import completion
from tests.hang import HANG_S

RUN = [sys.executable, "-m", "planner"]


def completed(line: str, shell: str = "bash") -> list[str]:
    words = line.split(" ")
    env = {
        **os.environ,
        "_PLANNER_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    env |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run(RUN, capture_output=True, text=True, timeout=HANG_S, check=False, env=env)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("planner recommend llama-1", ["llama-13b"]),
        ("planner recommend gpt2 --cluster dgx-a1", ["dgx-a100-40gb", "dgx-a100-80gb"]),
        ("planner schedule zb-", ["zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v"]),
        ("planner recommend gpt2 --schedule dualpipe", ["dualpipe", "dualpipev"]),
        ("planner recommend gpt2 --recompute f", ["full", "fine"]),
        ("planner estimate gpt2 --attention flash", ["flash1", "flash2", "flash3"]),
        ("planner doc", ["doctor"]),
    ],
)
def test_bash_is_offered_names(line, offered):
    assert completed(line) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_too(shell):
    assert "llama-13b" in " ".join(completed("planner recommend llama-1", shell))


@pytest.mark.parametrize(
    "name",
    [
        "clusters",
        "exports",
        "frameworks",
        "links",
        "loss_laws",
        "batch_laws",
        "models",
        "objectives",
        "papers",
        "schedules",
    ],
)
def test_every_completer_offers_what_begins_so(name):
    complete = getattr(completion, name)
    every = complete("")
    assert len(every) == len(set(every)) > 1
    for known in every:
        assert known in complete(known[:2])
        assert all(x.startswith(known[:3]) for x in complete(known[:3]))
    assert complete("no such") == []


def test_offered_names_are_accepted():
    from planner.api.frameworks import named_framework
    from planner.exporters.plan_export import get_target
    from planner.hardware import load_cluster, load_framework
    from planner.models import load_model
    from planner.reproductions import paper_names
    from planner.schedules import get_schedule

    def framework(name):
        profile, export = named_framework(name)
        return get_target(export) if profile is None else load_framework(profile)

    for complete, load in (
        (completion.models, load_model), (completion.clusters, load_cluster), (completion.frameworks, framework),
        (completion.schedules, get_schedule), (completion.exports, get_target),
    ):  # fmt: skip
        for name in complete(""):
            assert load(name).name
    assert set(completion.papers("")) == {*paper_names(), "all"}


def test_completion_of_commands_loads_nothing_heavy():
    code = (
        "import os, sys\n"
        "os.environ.update(_PLANNER_COMPLETE='complete_bash', COMP_WORDS='planner rec', COMP_CWORD='1')\n"
        "from planner.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print({'numpy', 'matplotlib', 'pandas', 'scipy'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.stdout.split() == ["recommend"]
    assert done.stderr.strip() == "set()"
