"""A sweep on a real Dask cluster: a scheduler and workers as processes of their own, one of them killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planner.base.errors import ExecutionError, InputError
from planner.sweeps import dask
from planner.sweeps.dask import Dask
from planner.sweeps.parts import parts_folder
from tests.sweep.conftest import ROOT

Planner = Callable[..., "subprocess.Popen[str]"]
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": ROOT}


class Cluster:
    """A scheduler on a port of its own choice; workers without a nanny, so that a killed one stays dead."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "scheduler.json"
        self.processes: list[subprocess.Popen[bytes]] = []
        self._start(
            "dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", self.file
        )
        self.address = self._address()

    def _start(self, program: str, *options: object, **environment: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.{program}", *map(str, options)]
        self.processes.append(subprocess.Popen(command, **QUIET, env=os.environ | environment))  # type: ignore[call-overload]
        return self.processes[-1]

    def _address(self) -> str:
        for _ in range(600):
            if self.file.exists() and (text := self.file.read_text()):
                return str(json.loads(text)["address"]).removeprefix("tcp:")
            time.sleep(0.05)
        raise AssertionError("no scheduler after 30 s")

    def worker(self, **environment: str) -> subprocess.Popen[bytes]:
        options = ("--no-nanny", "--nthreads", "1", "--memory-limit", "0", "--no-dashboard")
        return self._start("dask_worker", f"tcp:{self.address}", *options, **environment)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    started = Cluster(tmp_path)
    yield started
    started.close()


def parts(output: Path) -> int:
    return len(list(parts_folder(output).glob("part-*.json"))) if parts_folder(output).exists() else 0


def wait_for_parts(output: Path, count: int, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 300
    while parts(output) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "too few parts in 300 s"
        time.sleep(0.01)


@pytest.mark.slow
def test_a_killed_worker_and_a_killed_client_change_nothing(small, tmp_path, planner: Planner, cluster: Cluster):
    small.write_text(small.read_text().replace("[8, 40, 80]", "{ from = 8, to = 80, step = 6 }"))
    whole, out = tmp_path / "whole.parquet", tmp_path / "out.parquet"
    local = planner("sweep", small, "-o", whole, "--workers", "2")
    assert local.wait(timeout=300) == 0, local.communicate()
    local.communicate()
    first, _ = cluster.worker(), cluster.worker()

    client = planner("sweep", small, "-o", out, "--scheduler", f"dask:{cluster.file}")
    wait_for_parts(out, 10, client)
    client.kill()
    client.communicate()
    kept = parts(out)

    client = planner("sweep", small, "-o", out, "--scheduler", f"dask:{cluster.address}", "--json")
    wait_for_parts(out, kept + 20, client)
    os.kill(first.pid, signal.SIGKILL)
    printed, said = client.communicate(timeout=300)
    assert client.returncode == 0, said
    assert said == ""
    assert json.loads(printed)["cases_kept"] == 4 * kept
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.slow
def test_other_versions_on_a_worker_are_named(small, tmp_path, planner: Planner, cluster: Cluster):
    other = tmp_path / "other" / "planner"
    other.mkdir(parents=True)
    for path in (ROOT / "planner").rglob("*"):
        if path.suffix in (".py", ".toml"):
            (other / path.relative_to(ROOT / "planner")).parent.mkdir(parents=True, exist_ok=True)
            (other / path.relative_to(ROOT / "planner")).write_bytes(path.read_bytes())
    with (other / "units.py").open("a") as stream:
        stream.write("# edited\n")
    (tmp_path / "other" / "hardware_profiles").symlink_to(ROOT / "hardware_profiles")
    cluster.worker(PYTHONPATH=str(other.parent), PYTHONSAFEPATH="1")
    client = planner("sweep", small, "-o", tmp_path / "out.parquet", "--scheduler", f"dask:{cluster.address}")
    printed, said = client.communicate(timeout=300)
    assert client.returncode == 2, said
    assert printed == ""
    assert len(said.splitlines()) == 1
    assert "runs other versions: code " in said


@pytest.mark.slow
def test_a_scheduler_that_dies_is_one_line_and_loses_nothing(small, tmp_path, planner: Planner, cluster: Cluster):
    small.write_text(small.read_text().replace("[8, 40, 80]", "{ from = 8, to = 80, step = 1 }"))
    cluster.worker()
    out = tmp_path / "out.parquet"
    client = planner("sweep", small, "-o", out, "--scheduler", f"dask:{cluster.address}")
    wait_for_parts(out, 3, client)
    cluster.processes[0].kill()
    printed, said = client.communicate(timeout=300)
    assert client.returncode == 2
    assert printed == ""
    assert len(said.splitlines()) == 1, said
    assert "the Dask scheduler is gone" in said
    assert parts(out) >= 3


def test_no_scheduler_there_is_one_line(monkeypatch):
    monkeypatch.setattr(dask, "TIMEOUT_S", 0.5)
    with pytest.raises(ExecutionError, match="no Dask scheduler answers there"):
        next(Dask("dask://127.0.0.1:1").answers(iter(())))


@pytest.mark.parametrize("where", ["slurm", "dask", "dask://", "tcp://here:8786"])
def test_other_schedulers_are_refused(where):
    with pytest.raises(InputError, match="allowed: local, dask://host:port"):
        Dask(where)
