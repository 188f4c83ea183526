"""What every command prints: within 80 columns without losing a figure, unfolded and plain in a pipe, colour on a
terminal only and never where NO_COLOR forbids it."""

import os
import pty
import re
import select
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from planner.cli import application, options

LAYOUT = ["--tp", "4", "--pp", "4", "--dp", "2", "--global-batch", "32"]
ON = ["--cluster", "dgx-a100-80gb"]
FEW = ["--gpus", "32", "--global-batch", "64", "--pp", "4", "--tp", "2"]
COMMANDS = {
    "recommend": ["recommend", "llama-13b", *ON, *FEW],
    "why not": ["recommend", "llama-13b", *ON, *FEW, "--why", "tp=8"],
    "existing run": [
        "estimate",
        "llama-13b",
        *ON,
        "--gpus",
        "32",
        "--megatron-args",
        "--tensor-model-parallel-size 4 "
        "--pipeline-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 64 --num-layers 40 "
        "--hidden-size 5120 --num-attention-heads 40 --seq-length 2048 --max-position-embeddings 2048",
    ],
    "recommend nothing fits": ["recommend", "gpt3-175b", *ON, "--gpus", "8", "--global-batch", "8"],
    "estimate": ["estimate", "gpt3-175b", "--cluster", "selene", *LAYOUT],
    "schedules": ["schedule"],
    "schedule": ["schedule", "zb-v", "--pp", "4", "--micro-batches", "8"],
    "simulate": ["simulate", "llama-13b", *ON, *LAYOUT],
    "partition": ["partition", "llama-13b", *ON, *LAYOUT],
    "compare": ["compare", "llama-13b", *ON, *LAYOUT],
    "time": ["time", "llama-13b", *ON, "--gpus", "32", "--tokens", "1e11", "--batch", "64", "--pp", "4", "--tp", "2"],
    "fewest": ["fewest", "llama-13b", *ON, "--max-gpus", "32", "--tokens", "1e11", "--global-batch", "64", "--pp", "2"],
    "fastest": ["fastest", "llama-13b", *ON, "--max-gpus", "256", "--strategies", "data", "--any-framework"],
    "fastest beside": ["fastest", "llama-13b", *ON, "--max-gpus", "64", "--strategies", "data,data+tensor"],
    "largest": ["largest", "--gpus", "16"],
    "explain": ["explain", "llama-13b", *ON, *FEW],
    "network": ["network", "llama-13b", *ON, *FEW, "--price", "2"],
    "sites": ["sites", "llama-13b", *ON, "--sites", "2x16", "--gbit", "1", "--global-batch", "64", "--price", "2"],
    "papers": ["paper"],
    "paper": ["paper", "narayanan-2021"],
    "validate": ["validate", "measured_runs/korthikanti_2022_a100.csv"],
    "laws": ["laws"],
    "laws of a model": ["laws", "gpt3-175b"],
    "models": ["models"],
    "model": ["models", "llama-13b"],
    "clusters": ["clusters"],
    "cluster": ["clusters", "dgx-a100-80gb"],
    "train": ["train", "--model", "gpt2", "--scale", "tiny", "--steps", "1"],
}
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")


def printed(args: list[str], capsys) -> str:
    assert application((args[0],))(args, standalone_mode=False) in (None, 0, 1)
    return capsys.readouterr().out


def words(text: str) -> set[str]:
    return set(text.replace(": ", " ").split())


@pytest.mark.parametrize("name", COMMANDS)
def test_80_columns_hold_it_all(name, capsys, monkeypatch):
    """Of one answer, shown twice."""
    answers, show = [], options.show
    monkeypatch.setattr(options, "show", lambda answer, json: [answers.append(answer), show(answer, json)])
    monkeypatch.delenv("COLUMNS", raising=False)
    pipe = printed(COMMANDS[name], capsys)
    monkeypatch.setenv("COLUMNS", "80")
    if answers:
        show(*answers, json=False)
        narrow = capsys.readouterr().out
    else:  # a list, which a command prints itself
        narrow = printed(COMMANDS[name], capsys)
    assert max(map(len, narrow.splitlines())) <= 80
    for text in (pipe, narrow):
        assert "…" not in text
        assert "\x1b" not in text
        assert [line for line in text.splitlines() if line != line.rstrip()] == []
    if name not in ("schedule", "train"):  # a drawing has the screen's scale, measured times differ
        assert words(pipe) - words(narrow) == set()


def test_a_pipe_is_not_folded(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = printed(COMMANDS["cluster"], capsys).splitlines()
    assert max(map(len, lines)) > 120
    (line,) = (line for line in lines if "efficiency.matrix_fraction.bf16" in line)
    assert 0 < float(line.split()[1]) <= 1
    assert len(line.split()) > 5


def on_a_terminal(args: list[str], **env: str) -> str:
    """What a terminal of 80 columns receives."""
    ours, theirs = pty.openpty()
    settings = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR")}
    settings |= {"TERM": "xterm-256color", "COLUMNS": "80", **env}
    command = [sys.executable, "-m", "planner", *args]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=settings)
    os.close(theirs)
    out = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        out += data
    process.wait(60)
    os.close(ours)
    return out.decode()


def test_colour_on_a_terminal_only_and_not_where_it_is_unwanted():
    args = ["schedule", "1f1b", "--pp", "2", "--micro-batches", "4"]
    assert COLOUR.search(on_a_terminal(args))
    assert not COLOUR.search(on_a_terminal(args, NO_COLOR="1"))
    assert "\x1b" not in on_a_terminal(args, TERM="dumb")
    plain = re.compile(r"\x1b\[[\d;]*m")
    assert plain.sub("", on_a_terminal(args)) == on_a_terminal(args, TERM="dumb")


def test_help_has_every_name_whole_within_80_columns():
    groups = typer.main.get_command(application())
    for name, command in {"": groups, **groups.commands}.items():
        text = CliRunner().invoke(application(), [name, "--help"][not name :], env={"COLUMNS": "80"}).stdout
        assert max(map(len, text.splitlines())) <= 80
        taken = {o for p in command.params for o in (*p.opts, *p.secondary_opts) if not getattr(p, "hidden", False)}
        shown = set(re.findall(r"[-\w|]+", text))
        assert taken <= shown | {p.name for p in command.params}, name
        assert name or "..." not in text.partition("\n")[2], "the commands' sentences are whole"
    assert "--no-sequence-parallel" in on_a_terminal(["recommend", "--help"])
