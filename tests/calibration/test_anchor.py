"""Anchors: the update by hand, known figures found again, intervals that shrink, files that are refused."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from planner.base.errors import InputError
from planner.base.units import format_seconds
from planner.calibration.anchor import SLOWEST, Spread, anchor, slopes_of, t_quantile, update
from planner.calibration.moved import KINDS, moved_cluster, moved_framework
from planner.hardware import load_cluster, load_framework
from planner.validation import MeasuredRun, predict
from tests.calibration.test_fit import as_csv, shipped_runs
from tests.commands import planner
from tests.imports.test_run_log import megatron, written

BEFORE = Spread(figures=np.array([0.1, 0.0, 0.0, 0.0, 0.0, 0.0]), noise=0.1, prior_runs=1.0)
WEAK = "megatron-core-h100-weak"


def moved_steps(runs: list[MeasuredRun], shift: np.ndarray) -> np.ndarray:
    return predict(
        runs,
        lambda name: moved_cluster(load_cluster(name), shift),
        lambda name: moved_framework(load_framework(name), shift),
    ).step_time_s


def made_slower(runs: list[MeasuredRun], shift: np.ndarray) -> list[MeasuredRun]:
    times = moved_steps(runs, shift)
    return [
        replace(r, path=Path("own.csv"), cells=r.cells | {"step_time_s": float(t)})
        for r, t in zip(runs, times, strict=True)
    ]


def test_one_run_moves_a_figure_by_half_where_both_are_as_uncertain() -> None:
    slopes = np.array([[1.0, 0, 0, 0, 0, 0]])
    u = update(slopes, np.array([0.2]), BEFORE)
    assert u.shift[0] == pytest.approx(0.1)
    assert u.covariance[0, 0] == pytest.approx(0.1**2 / 2)
    # One surprise of 0.2^2 / (0.1^2 + 0.1^2) beside a prior that counts as one run of 1.
    assert u.scale == pytest.approx(np.sqrt((1.0 + 2.0) / 2.0))
    assert u.freedom == 2.0


@pytest.mark.parametrize(("freedom", "level", "value"), [(1, 0.9, 3.078), (2, 0.9, 1.886), (4, 0.975, 2.776)])
def test_quantiles_are_those_of_the_printed_tables(freedom: float, level: float, value: float) -> None:
    assert t_quantile(level, freedom) == pytest.approx(value, abs=1e-3)


def test_all_times_longer_by_a_factor_make_the_step_so() -> None:
    runs = shipped_runs(WEAK)
    slower = moved_steps(runs, np.full(len(KINDS), 0.1))
    assert slower / moved_steps(runs, np.zeros(len(KINDS))) == pytest.approx(np.exp(0.1), rel=0.01)
    slopes = slopes_of(lambda at: moved_steps(runs, at), np.zeros(len(KINDS)))
    assert slopes.sum(axis=1) == pytest.approx(1.0, abs=0.02)
    assert (slopes >= 0).all()


def test_runs_of_a_slower_machine_move_the_figures_towards_it_and_the_other_runs_with_them() -> None:
    runs = shipped_runs(WEAK)
    shift = np.array([0.06, 0.0, 0.0, 0.0, 0.0, 0.0])
    own = made_slower(runs, shift)
    found = anchor(own[:3], load_cluster("dgx-h100"))
    rest = own[3:]
    plain = predict(rest).step_time_s
    after = found.predict(rest, load_cluster, load_framework).step_time_s
    truth = np.array([run["step_time_s"] for run in rest])
    assert np.abs(after / truth - 1).mean() < 0.5 * np.abs(plain / truth - 1).mean()
    assert 0.0 < found.update.shift[0] < 0.06


def test_a_measurement_that_stands_twice_counts_once() -> None:
    own = made_slower(shipped_runs(WEAK), np.full(len(KINDS), 0.05))[:2]
    again = replace(own[0], line=9, cells=own[0].cells | {"run": "again", "note": "copied"})
    found = anchor([*own, again])
    assert found.update.freedom == anchor(own).update.freedom
    assert found.left == ("again: the same measurement stands above",)


def test_more_runs_that_agree_narrow_the_interval() -> None:
    own = made_slower(shipped_runs(WEAK), np.full(len(KINDS), 0.05))
    slopes = np.full((1, len(KINDS)), 1 / 6)
    widths = [float(anchor(own[:n]).update.half_width(slopes)[0]) for n in (1, 3, 6)]
    assert widths == sorted(widths, reverse=True)


def test_runs_faster_than_the_hardware_can_be_are_refused() -> None:
    own = made_slower(shipped_runs(WEAK)[:3], np.full(len(KINDS), -0.7))
    with pytest.raises(
        InputError, match=r"up to 2.01 times as fast as predicted; that would need matrix_fraction.bf16"
    ):
        anchor(own)


def test_a_run_over_the_datasheet_s_peak_does_not_count_beside_others() -> None:
    own = made_slower(shipped_runs(WEAK)[:2], np.full(len(KINDS), 0.05))
    fast = replace(own[0], cells=own[0].cells | {"run": "fast", "step_time_s": own[0]["step_time_s"] / 4})
    found = anchor([*own, fast])
    assert found.update.freedom == anchor(own).update.freedom
    assert re.match(r"fast: step_time_s is .* allowed: up to the 990 of h100-sxm's datasheet", found.left[0])


def test_steps_in_milliseconds_are_refused_and_no_published_run_would_be() -> None:
    own = made_slower(shipped_runs(WEAK)[:2], np.zeros(len(KINDS)))
    slow = replace(own[0], cells=own[0].cells | {"step_time_s": 1000 * own[0]["step_time_s"]})
    with pytest.raises(
        InputError, match=r"takes 1,000.0 times the predicted step; allowed to anchor on: up to 5.7 times"
    ):
        anchor([slow, own[1]])
    with (resources.files("planner.validation") / "unseen.csv").open() as file:
        worst = max(float(r["measured_step_time_s"]) / float(r["held_out_step_time_s"]) for r in csv.DictReader(file))
    assert worst < SLOWEST < 1.02 * worst


def test_a_run_on_other_gpus_is_refused_in_one_line() -> None:
    own = made_slower(shipped_runs(WEAK)[:1], np.zeros(len(KINDS)))
    with pytest.raises(InputError, match=r"^own.csv: line \d+: the accelerators of dgx-h100 are .* allowed with"):
        anchor(own, load_cluster("dgx-a100-80gb"))


def test_commands_say_what_they_are_anchored_on(tmp_path: Path) -> None:
    runs = shipped_runs(WEAK)
    known = as_csv(tmp_path / "known.csv", made_slower(runs[:2], np.full(len(KINDS), 0.1)))
    every = as_csv(tmp_path / "all.csv", made_slower(runs, np.full(len(KINDS), 0.1)))
    question = ["llama3-8b", "--cluster", "dgx-h100", "--dp", "64", "--global-batch", "512"]
    told = planner("estimate", *question, "--anchor", str(known))
    assert "Anchored on 2 runs of" in told.stdout
    short = float(re.search(r"the profile predicts their steps ([0-9.]+)% too short", told.stdout)[1])
    plain, moved = (json.loads(planner("estimate", *question, "--json", *more).stdout) for more in
                    ([], ["--anchor", str(known)]))  # fmt: skip
    assert "anchor" not in plain
    assert moved["step_time_s"] > 1.02 * plain["step_time_s"]
    assert moved["anchor"]["runs"] == 2
    assert short == pytest.approx(100 * moved["anchor"]["error_before"], abs=0.2)  # of the measured, both
    low, high = moved["step_time_interval_s"]
    assert low < moved["step_time_s"] < high
    scored = json.loads(planner("validate", str(every), "--anchor", str(known), "--json").stdout)
    assert scored["overall"]["rows"] == len(runs) - 2
    assert scored["overall"]["mape"] < json.loads(planner("validate", str(every), "--json").stdout)["overall"]["mape"]
    found = planner("recommend", "llama3-8b", "--cluster", "dgx-h100", "--gpus", "16", "--global-batch", "64",
                    "--anchor", str(known))  # fmt: skip
    assert "runs that it is anchored on" in found.stdout


def test_the_layout_s_own_measurement_and_runs_that_contradict_each_other_are_said(tmp_path: Path) -> None:
    log, plan, row = tmp_path / "run.log", tmp_path / "plan.json", tmp_path / "own.csv"
    layout = ["llama3-8b", "--cluster", "dgx-h100", "--dp", "64", "--recompute", "full", "--global-batch", "256"]
    step = json.loads(planner("estimate", *layout, "--save", str(plan), "--json").stdout)["step_time_s"]
    for name, times in (("run", 1.0), ("slow", 2.0)):
        log = written(tmp_path / f"{name}.log", megatron, [1e3 * times * step] * 9)
        assert planner("observe", str(log), "--plan", str(plan), "--row", str(row)).returncode == 0
    told = planner("estimate", *layout, "--anchor", str(row)).stdout
    assert f"Measured: {format_seconds(step)}, {format_seconds(2 * step)} for this layout." in told
    assert "Runs run and slow are one layout, 100% apart." in told
    for other in (["--zero", "0"], ["--optimizer", "sgd"], ["--seq-len", "4096"]):
        assert "Measured:" not in planner("estimate", *layout, *other, "--anchor", str(row)).stdout


def test_an_empty_file_and_one_without_times_are_refused(tmp_path: Path) -> None:
    runs = shipped_runs(WEAK)[:1]
    untimed = [replace(runs[0], cells=runs[0].cells | {"step_time_s": None, "tflops_per_gpu": None, "mfu": None})]
    question = ["estimate", "llama3-8b", "--cluster", "dgx-h100", "--dp", "64", "--global-batch", "512", "--anchor"]
    for name, rows, says in (("empty", [], "no runs in the file"), ("untimed", untimed, "no measured step time")):
        path = as_csv(tmp_path / f"{name}.csv", rows or runs)
        if not rows:
            path.write_text(path.read_text().splitlines()[0] + "\n")
        refused = planner(*question, str(path))
        assert refused.returncode == 2
        assert says in refused.stderr
        assert refused.stderr.count("\n") == 1
