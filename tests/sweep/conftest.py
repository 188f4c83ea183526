"""Small sweeps, and the command as a process that can be killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = """
models = ["gpt2"]
clusters = ["dgx-a100-80gb", "dgx-h100"]
gpus = [4, 8]
global_batches = [8, 16]
objectives = ["time", "memory"]
prices = { dgx-a100-80gb = 1.5, dgx-h100 = 2.5 }
tokens = 1e9

[hardware]
accelerator.memory_gib = [8, 40, 80]
accelerator.power_w = { times = [1, 0.5] }

[search]
schedule = ["1f1b"]
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A sweep of 96 cases, 48 searches."""
    path = tmp_path / "sweep.toml"
    path.write_text(SMALL)
    return path


TINY = """
models = ["gpt2"]
clusters = ["dgx-a100-80gb"]
gpus = [2, 4]
global_batches = [4]

[search]
tp = [1]
pp = [1]
micro_batch = [1]
schedule = ["1f1b"]
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A sweep of 2 cases, a chunk each, quick to answer."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture
def planner() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `planner` with the arguments given, as a process; all have ended when the test has."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "planner", *map(str, args)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT))
        return started[-1]

    yield start
    for process in started:
        with process:  # closes its pipes
            process.kill()
