"""`benchmarks/gpu_check.py` without a GPU: its sections on arrays that refuse what CuPy refuses, and what it finds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from planner.trainer.serial import run_serial
from tests.trainer.mpi_towers import CASES, outcome, worst_of

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    import gpu_check
    import strict_arrays
finally:
    sys.path.remove(str(BENCHMARKS))

XP = strict_arrays.StrictArrays()
HOST = np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize("section", ["kernels", "schedules", "choices", "precisions", "offload", "streams"])
def test_the_trainer_runs_on_arrays_that_do_not_mix(section, monkeypatch):
    monkeypatch.setattr(gpu_check, "LATE", 2)  # the stand-in's streams are late whatever the size
    report = gpu_check.run(XP, "strict", [section])
    assert report.failed == []
    assert len(report.checks[section]) >= 2
    assert report.skipped == {}


@pytest.mark.parametrize("case", range(3))
def test_a_tower_runs_on_arrays_that_do_not_mix(case):
    task, tower = CASES[4][case]
    found, expected = (run_serial(xp, 4, lambda c: outcome(c, task, tower)) for xp in (XP, np))
    assert max(worst_of(*both) for both in zip(found, expected, strict=True)) == 0.0


def test_every_synchronous_schedule_is_checked(monkeypatch):
    monkeypatch.setattr(gpu_check, "compared", lambda name, *_: gpu_check.Check(name, True))
    schedules = {name for name, s in gpu_check.SCHEDULES.items() if s.synchronous and not s.one_layer_chunks}
    names = [check.name for check in gpu_check.schedules(np, gpu_check.Report("host"))]
    assert schedules <= set(names)


@pytest.mark.parametrize(
    "refused",
    [
        np.asarray,
        np.exp,
        memoryview,
        lambda x: x + HOST,
        lambda x: HOST + x,
        lambda x: HOST @ x.T,
        lambda x: np.add(HOST, x),
        lambda x: x[np.array([0])],
        lambda x: x.__setitem__(0, HOST[0]),
        lambda x: x.__iadd__(HOST),
        lambda x: XP.concatenate([x, HOST]),
        lambda x: XP.where(HOST > 0, x, 0.0),
        lambda x: XP.add.at(x, 0, HOST[0]),
        lambda x: np.copyto(np.empty((2, 3)), x),
        lambda x: HOST.__setitem__(0, x[0]),
        lambda x: x.get(blocking=False),
    ],
)
def test_the_stand_in_refuses_what_cupy_refuses(refused):
    with pytest.raises(TypeError):
        refused(XP.asarray(HOST))


def test_the_stand_in_computes_as_numpy_does():
    x = XP.asarray(HOST)
    assert isinstance(x, strict_arrays.DeviceArray)
    assert float(x.sum()) == 15.0
    y = x.copy()
    y[0] *= 2.0
    y -= 1
    np.testing.assert_array_equal((2.0 * x + XP.ones(3)).get(), 2.0 * HOST + 1.0)
    np.testing.assert_array_equal(y.get(), [[-1.0, 1.0, 3.0], [2.0, 3.0, 4.0]])
    np.testing.assert_array_equal(x.get(), HOST)
    np.testing.assert_array_equal(np.float64(3.0) * x.T.get(), 3.0 * HOST.T)


def test_a_copy_is_there_when_its_stream_was_waited_for():
    stream = strict_arrays.Stream()
    there = XP.asarray(HOST).get(stream=stream, blocking=False)
    assert np.isnan(there).all()
    stream.synchronize()
    np.testing.assert_array_equal(there, HOST)


def test_faults_are_found_and_said():
    mixed = gpu_check.compared("mixed", lambda xp: [xp.asarray(HOST) + HOST], XP, 1e-9)
    assert not mixed.passed
    assert mixed.said == f"TypeError: {strict_arrays.MIXED}"
    near = gpu_check.compared("near", lambda xp: [xp.asarray(HOST) * (1.001 if xp is XP else 1.0)], XP, 1e-4)
    assert not near.passed
    assert near.off == pytest.approx(1e-3)
    assert gpu_check.compared("near", lambda xp: [xp.asarray(HOST) * (1.001 if xp is XP else 1.0)], XP, 1e-2).passed
    early = lambda xp: [xp.asarray(HOST).get(strict_arrays.Stream(), blocking=False) if xp is XP else HOST]  # noqa: E731
    assert not gpu_check.compared("read before its stream's end", early, XP, 1.0).passed
    assert not gpu_check.compared("another shape", lambda xp: [HOST if xp is np else HOST[0]], XP, 1.0).passed
    missing = gpu_check.compared("fewer", lambda xp: [1.0, 2.0][: 1 + (xp is np)], XP, 1.0)
    assert not missing.passed
    assert "AssertionError" in missing.said


def test_a_run_ends_in_time_and_says_what_it_left_out():
    report = gpu_check.run(XP, "strict", ["precisions", "kernels", "nccl"], minutes=1e-9)
    assert list(report.checks) == []
    assert report.skipped["kernels"] == "1e-09 minutes were over"


def test_its_files_and_its_exit_status(tmp_path, monkeypatch, capsys):
    def broken(xp, report):
        yield gpu_check.Check("one", False, 0.5, 0.1)
        yield gpu_check.Check("two", True, 0.05, 0.1)

    monkeypatch.setitem(gpu_check.SECTIONS, "kernels", broken)
    out = tmp_path / "check.json"
    arguments = ["gpu_check.py", "--device", "strict", "--only", "kernels", "--only", "nccl", "--output", str(out)]
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    assert gpu_check.main() == 1
    record = json.loads(out.read_text())
    assert [check["name"] for check in record["checks"]["kernels"]] == ["one", "two"]
    assert "nccl needs --device gpu" in record["skipped"]["nccl"]
    text = out.with_suffix(".md").read_text()
    assert "failed: kernels: one" in text
    assert "| kernels | 2 | 1 | one: 5.0e-01 (1e-01) |" in text
    assert text in capsys.readouterr().out


def test_a_step_beside_its_prediction():
    assert gpu_check.steps_of({"step_time_s": 0.4}, 0.5) == {
        "step_s": 0.4, "predicted_s": 0.5, "off": pytest.approx(0.25),
    }  # fmt: skip
