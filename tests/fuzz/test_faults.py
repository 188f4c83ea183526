"""A command's writing fails or is ended at any moment: the old file or the new one, never a third, nothing left."""

from __future__ import annotations

import builtins
import io
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.calibration.test_probe import made
from tests.fuzz.corpus import MODEL, PLAN_WITH_SHAPE
from tests.fuzz.harness import Outcome, run, snapshot

SWEEP = """
models = ["gpt2"]
clusters = ["dgx-a100-80gb"]
gpus = [2]
global_batches = [2]
[search]
tp = [1]
pp = [1]
micro_batch = [1]
schedule = ["1f1b"]
"""
SMALL = "model.toml --cluster dgx-h100 --gpus 2 --global-batch 2"
COMMANDS = {
    "recommend": (f"recommend {SMALL} --save out.json", "out.json"),
    "export": ("export plan.json --to megatron -o out.sh", "out.sh"),
    "report": (f"recommend {SMALL} --no-curve --html out.html", "out.html"),
    "trace": ("simulate model.toml --cluster dgx-h100 --pp 2 --global-batch 2 --trace out.json", "out.json"),
    "picture": ("simulate model.toml --cluster dgx-h100 --pp 2 --global-batch 2 --svg out.svg", "out.svg"),
    "checkpoint": ("train --scale tiny --steps 1 --micro-batches 1 --checkpoint saved", "saved/latest.json"),
}


class Edge:
    """A double of the system calls that write: counts them, and before the n-th does what is asked."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, at: int = 0, act: Callable[[], None] = bool) -> None:
        self.calls, self.at, self.act = 0, at, act
        for where, name in ((os, "open"), (os, "fdopen"), (os, "fsync"), (os, "chmod"), (os, "replace")):
            patch.setattr(where, name, self._counting(getattr(where, name), folder))
        patch.setattr(builtins, "open", self._counting(builtins.open, folder))
        patch.setattr(io, "open", self._counting(io.open, folder))

    def _counting(self, call: Callable[..., Any], folder: Path) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            if self._writes(call, args, named, folder):
                self.calls += 1
                if self.calls == self.at:
                    self.act()
            return call(*args, **named)

        return counted

    @staticmethod
    def _writes(call: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any], folder: Path) -> bool:
        name = getattr(call, "__name__", "")
        if name == "open" and call is not os.open:
            mode = named.get("mode", args[1] if len(args) > 1 else "r")
            inside = isinstance(args[0], (str, Path)) and folder in Path(args[0]).absolute().parents
            return inside and isinstance(mode, str) and bool(set(mode) & set("wax+"))
        if call is os.open:
            return folder in Path(args[0]).absolute().parents and bool(args[1] & os.O_WRONLY)
        return True


def no_room() -> None:
    raise OSError(28, "No space left on device")


def ended() -> None:
    signal.raise_signal(signal.SIGTERM)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.toml").write_text(MODEL)
    (tmp_path / "plan.json").write_text(json.dumps(PLAN_WITH_SHAPE))
    (tmp_path / "sweep.toml").write_text(SWEEP)
    (tmp_path / "probe.json").write_text(json.dumps(made()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def attempt(words: str, folder: Path, at: int, act: Callable[[], None]) -> tuple[Outcome, int]:
    with pytest.MonkeyPatch.context() as patch:
        edge = Edge(patch, folder, at, act)
        outcome = run(words.split(), 120.0)
    return outcome, edge.calls


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(("act", "code"), [(no_room, 2), (ended, 143)])
def test_a_write_that_fails_or_is_ended(name: str, act: Callable[[], None], code: int, folder: Path) -> None:
    words, output = COMMANDS[name]
    done, calls = attempt(words, folder, 0, act)
    assert done.code == 0, (done.stderr, done.crash)
    assert calls >= 3  # the neighbour is opened, brought to the disk, and renamed
    new = (folder / output).read_bytes()
    old = new if name == "checkpoint" else b"old"
    for at in range(1, calls + 1):
        if name == "checkpoint":
            for path in (folder / "saved").iterdir():
                path.unlink()
        else:
            (folder / output).write_bytes(old)
        before = snapshot(folder)
        outcome, _ = attempt(words, folder, at, act)
        after = snapshot(folder)
        assert (outcome.code, outcome.crash) == (code, ""), (at, outcome)
        assert len(outcome.stderr.strip().splitlines()) >= 1
        if name == "checkpoint":  # a rank's whole part may stand there; what latest.json names is whole
            assert not [p for p in after if p.endswith(".tmp")]
        else:
            assert after.keys() == before.keys(), at
            assert after[output] in (old, new)


@pytest.mark.parametrize(("act", "codes"), [(no_room, (2,)), (ended, (143, 130))])
def test_a_sweep_whose_writing_fails_goes_on(
    act: Callable[[], None], codes: tuple[int, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from planner.sweeps.run import run_sweep
    from planner.sweeps.sweep import load_sweep
    from tests.sweep.test_codesign import Here

    monkeypatch.setattr("planner.sweeps.local.Local", lambda workers: Here())
    words = "sweep sweep.toml --workers 1 -o out.parquet"
    done, calls = attempt(words, folder, 0, act)
    assert done.code == 0, (done.stderr, done.crash)
    whole = (folder / "out.parquet").read_bytes()
    for at in range(1, calls + 1):
        (folder / "out.parquet").unlink(missing_ok=True)
        outcome, _ = attempt(words, folder, at, act)
        assert outcome.crash == ""
        assert outcome.code in codes, (at, outcome)
        assert not (folder / "out.parquet").exists() or (folder / "out.parquet").read_bytes() == whole
        run_sweep(load_sweep(folder / "sweep.toml"), folder / "out.parquet", Here().answers)
        assert (folder / "out.parquet").read_bytes() == whole
        assert not (folder / "out.parquet.parts").exists()


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def attempt_killed(words: str, folder: Path, at: int) -> int:
    """The command in a process of its own that is killed before the n-th call that writes; its exit status."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = attempt(words, folder, at, killed)[0].code or 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def written(folder: Path) -> dict[str, bytes]:
    """What lies in a folder, but for a neighbour that was begun: kill -9 leaves nobody who could take it away."""
    return {name: data for name, data in snapshot(folder).items() if not name.endswith(".tmp")}


CALIBRATE = "calibrate --probe probe.json --cluster dgx-h100 --profile mine"


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "checkpoint"])
def test_kill_9_while_a_file_is_written(name: str, folder: Path) -> None:
    words, output = COMMANDS[name]
    done, calls = attempt(words, folder, 0, killed)
    assert done.code == 0, (done.stderr, done.crash)
    new = (folder / output).read_bytes()
    for at in range(1, calls + 1):
        (folder / output).write_bytes(b"old")
        before = written(folder)
        assert attempt_killed(words, folder, at) == -signal.SIGKILL
        assert written(folder) in (before, before | {output: new}), at
    assert attempt_killed(words, folder, 0) == 0
    assert (folder / output).read_bytes() == new


def test_kill_9_while_calibrate_writes_profiles(folder: Path) -> None:
    """Over older profiles every file is the old or the new one. In a new folder none names one that isn't there."""
    done, calls = attempt(CALIBRATE, folder, 0, killed)
    assert done.code == 0, (done.stderr, done.crash)
    new = written(folder / "mine")
    assert len(new) > 1
    cluster = next(name for name in new if name.startswith("clusters/"))
    for at in range(1, calls + 1):
        for name in new:
            (folder / "mine" / name).write_bytes(b"old")
        assert attempt_killed(CALIBRATE, folder, at) == -signal.SIGKILL
        now = written(folder / "mine")
        assert now.keys() == new.keys()
        assert all(data in (b"old", new[name]) for name, data in now.items()), at
        shutil.rmtree(folder / "mine")
        assert attempt_killed(CALIBRATE, folder, at) == -signal.SIGKILL
        now = written(folder / "mine")
        assert now.items() <= new.items(), at
        if cluster in now:
            outcome = run(["clusters", f"mine/{cluster}"], 30.0)
            assert outcome.code == 0, (at, outcome.stderr)
        (folder / "mine").mkdir(exist_ok=True)
        for name in new:
            (folder / "mine" / name).parent.mkdir(exist_ok=True)
