"""A sweep on a Dask cluster: a scheduler and workers as processes of their own, one of them killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planner.api.questions import sweep
from planner.base.errors import ExecutionError, InputError
from planner.sweeps import dask
from planner.sweeps.parts import parts_folder
from tests.hang import HANG_S
from tests.sweep.conftest import ROOT

Planner = Callable[..., "subprocess.Popen[str]"]
PROGRAM = "import sys; from distributed.cli import {0}; sys.argv[0] = '{0}'; {0}.main()"


class Cluster:
    """A scheduler on a port of its own choice, and workers without a nanny: a killed one stays dead."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "scheduler.json"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.start("dask_scheduler", "--host", "127.0.0.1", "--port", "0")
        until = time.monotonic() + 60
        while not (self.file.exists() and self.file.read_text()):
            assert time.monotonic() < until, "no scheduler after 60 s"
            time.sleep(0.05)
        self.address = self.file.read_text().split('"address": "')[1].split('"')[0]

    def start(self, program: str, *options: str) -> subprocess.Popen[bytes]:
        more = ["--no-dashboard", "--scheduler-file", str(self.file)]
        line = [sys.executable, "-c", PROGRAM.format(program), *options, *more]
        quiet = subprocess.DEVNULL
        self.processes.append(subprocess.Popen(line, stdout=quiet, stderr=quiet, cwd=ROOT))
        return self.processes[-1]

    def worker(self) -> subprocess.Popen[bytes]:
        return self.start("dask_worker", "--no-nanny", "--nthreads", "1", "--memory-limit", "0")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    pytest.importorskip("distributed")
    started = Cluster(tmp_path)
    yield started
    for process in started.processes:
        process.kill()
        process.wait()


def wait_for_parts(output: Path, count: int, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 300
    while not parts_folder(output).exists() or len(list(parts_folder(output).glob("part-*.json"))) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "too few parts in 300 s"
        time.sleep(0.01)


@pytest.mark.extra
@pytest.mark.slow
def test_a_killed_worker_changes_nothing(small, tmp_path, planner: Planner, cluster: Cluster):
    whole, out = tmp_path / "whole.parquet", tmp_path / "out.parquet"
    sweep(small, whole, workers=1)
    first, _ = cluster.worker(), cluster.worker()
    client = planner("sweep", small, "-o", out, "--dask", cluster.address, "--json")
    wait_for_parts(out, 3, client)
    os.kill(first.pid, signal.SIGKILL)
    _, said = client.communicate(timeout=HANG_S)
    assert client.returncode == 0, said
    assert said == ""
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.extra
@pytest.mark.slow
def test_a_scheduler_that_dies_is_one_line_and_loses_nothing(small, tmp_path, planner: Planner, cluster: Cluster):
    small.write_text(small.read_text().replace("[8, 40, 80]", "{ from = 8, to = 80, step = 1 }"))
    cluster.worker()
    out = tmp_path / "out.parquet"
    client = planner("sweep", small, "-o", out, "--dask", cluster.address)
    wait_for_parts(out, 3, client)
    cluster.processes[0].kill()
    _, said = client.communicate(timeout=HANG_S)
    assert client.returncode == 2
    assert len(said.splitlines()) == 1, said
    assert "the Dask scheduler is gone" in said
    assert len(list(parts_folder(out).glob("part-*.json"))) >= 3


@pytest.mark.extra
def test_no_scheduler_there_is_one_line(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(dask, "TIMEOUT_S", 0.5)
    with pytest.raises(ExecutionError, match="no Dask scheduler answers there"):
        next(dask.answers_on("tcp://127.0.0.1:1", iter(())))


def test_a_cluster_has_workers_of_its_own(small, tmp_path):
    with pytest.raises(InputError, match="allowed without --dask"):
        sweep(small, tmp_path / "out.parquet", workers=2, dask="tcp://127.0.0.1:1")
