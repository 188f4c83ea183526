"""Runs to measure next: the pair by hand, what they leave against the update with both, what a user is told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from planner.calibration.anchor import Spread, update
from planner.calibration.next_runs import best_two, known_after
from tests.calibration.test_anchor import WEAK, made_slower
from tests.calibration.test_fit import as_csv, shipped_runs
from tests.commands import planner

UNIT = np.eye(6)
BEFORE = Spread(figures=np.array([0.1, 0.05, 0.02, 0.02, 0.02, 0.2]), noise=0.05, prior_runs=1.0)


def test_the_two_runs_named_are_those_of_the_most_open_figures_that_the_answer_depends_on() -> None:
    prior = np.diag(BEFORE.figures**2)
    asked = np.array([[0.5, 0.0, 0.0, 0.0, 0.3, 0.2]])
    # 0.5 x 0.1 = 0.05 and 0.2 x 0.2 = 0.04 are the widest parts; run 3 is the network's, run 1 the products'.
    runs = np.array([UNIT[1], UNIT[0], UNIT[4], UNIT[5]])
    assert best_two(prior, BEFORE.noise, runs, asked) == (1, 3)
    # Where nothing hangs on products, the network's run and the node's are left.
    assert best_two(prior, BEFORE.noise, runs, asked * np.array([0, 1, 1, 1, 1, 1])) == (3, 2)


def test_a_run_of_one_figure_leaves_it_half_open_where_its_own_error_is_as_wide() -> None:
    after = known_after(np.diag([0.05**2, 1.0, 0, 0, 0, 0]), UNIT[0], 0.05)
    assert after[0, 0] == pytest.approx(0.05**2 / 2)
    assert after[1, 1] == 1.0


def test_one_run_after_the_other_leaves_what_both_at_once_leave() -> None:
    slopes = np.random.default_rng(3).uniform(0.0, 0.5, (2, 6))
    both = update(slopes, np.zeros(2), BEFORE)
    known = known_after(known_after(np.diag(BEFORE.figures**2), slopes[0], BEFORE.noise), slopes[1], BEFORE.noise)
    assert known == pytest.approx(both.covariance, rel=1e-9, abs=1e-12)


def test_recommend_names_two_runs_on_few_nodes_and_what_they_would_narrow(tmp_path: Path) -> None:
    own = as_csv(tmp_path / "own.csv", made_slower(shipped_runs(WEAK)[:1], np.full(6, 0.1)))
    question = ["recommend", "llama3-8b", "--cluster", "dgx-h100", "--gpus", "64", "--global-batch", "256"]
    assert "measure_next" not in json.loads(planner(*question, "--json").stdout)
    told = planner(*question, "--anchor", str(own)).stdout
    assert "\nMeasure next:\n  " in told
    found = json.loads(planner(*question, "--anchor", str(own), "--json").stdout)["measure_next"]
    assert sum(found["open_share"].values()) == pytest.approx(1.0)
    first, second = found["runs"]
    assert first["gpus"] in (8, 16)
    assert second["gpus"] in (8, 16)
    assert first["layout"] != second["layout"]
    assert first["layout"]["global_batch"] == 256 * first["gpus"] // 64
    assert found["half_width"] > first["half_width"] > second["half_width"]
    assert first["information_nats"] > second["information_nats"] > 0.0
    assert told.count(" GPUs, batch ") == 2


def test_what_the_question_settles_holds_for_the_runs_named(tmp_path: Path) -> None:
    own = as_csv(tmp_path / "own.csv", made_slower(shipped_runs(WEAK)[:1], np.full(6, 0.1)))
    question = ["recommend", "llama3-8b", "--cluster", "dgx-h100", "--gpus", "32", "--global-batch", "128", "--tp", "4"]
    found = json.loads(planner(*question, "--anchor", str(own), "--json").stdout)["measure_next"]
    assert {run["layout"]["tp"] for run in found["runs"]} == {4}
