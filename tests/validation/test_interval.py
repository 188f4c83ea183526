"""Intervals: honest in cross-validation, made of the runs that are alike, absent where nothing is known."""

import csv
from importlib import resources

import numpy as np
import pytest

from planner.estimate import estimate
from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Layouts, Precision
from planner.models import load_model
from planner.validation import accuracy_of, accuracy_sentence, predict, read_runs, shipped_files, step_interval_s
from planner.validation.interval import HeldOut, coverage, error_quantiles, fits_right, held_out, held_out_mape
from planner.validation.publications import publication_of, publications, publications_of


def test_eight_in_ten_runs_lie_in_an_interval_that_their_publication_had_no_part_in():
    known = held_out()
    inside = coverage(known)
    size = {name: int((known.source == name).sum()) for name in inside}
    assert 0.75 <= np.mean(list(inside.values())) <= 0.85  # every set alike
    assert 0.75 <= sum(inside[s] * size[s] for s in inside) / sum(size.values()) <= 0.85  # every run alike


def test_every_timed_shipped_run_is_in_it_with_the_time_that_was_measured():
    runs = [run for path in shipped_files() for run in read_runs(path)]
    p = predict(runs)
    measured = {
        (run["source"], run["run"]): seconds
        for run, seconds, ok in zip(runs, p.measured_s, p.ok, strict=True)
        if ok and np.isfinite(seconds)
    }
    text = (resources.files("planner.validation") / "held_out.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert {(r["source"], r["run"]) for r in rows} == set(measured)
    for r in rows:
        assert float(r["measured_step_time_s"]) == pytest.approx(measured[r["source"], r["run"]], rel=1e-5)


def test_held_out_errors_by_set_are_those_of_the_file():
    text = (resources.files("planner.validation") / "held_out.csv").read_text(encoding="utf-8")
    rows = [r for r in csv.DictReader(text.splitlines()) if r["source"] == "korthikanti-table5"]
    off = [abs(float(r["held_out_step_time_s"]) / float(r["measured_step_time_s"]) - 1.0) for r in rows]
    assert held_out_mape()["korthikanti-table5"] == pytest.approx(np.mean(off), rel=1e-9)


def test_every_shipped_source_has_one_publication_with_a_licence():
    unseen = shipped_files()[0].parent.glob("unseen/*.csv")
    sources = {run["source"] for path in (*shipped_files(), *unseen) for run in read_runs(path)}
    cited = publications_of(sorted(sources))
    assert set(cited) == set(publications())
    for source in sources:
        assert len([p for p in publications() if f"{source}-".startswith(f"{p.sets}-")]) == 1, source
    assert all(p.licence and p.at and p.title in p.citation for p in cited)
    assert publication_of("mosaics-own") is None


def test_quantiles_are_those_of_the_alike():
    """Nine runs like ours, off by 1 to 9 %, and a hundred of another kind, off by a half: ours count."""
    near, far = np.full((9, 7), 8.0), np.full((100, 7), 8.0 * 2.0**60)
    known = HeldOut(
        source=np.array(["near"] * 9 + ["far"] * 100), architecture=np.array(["x"] * 109),
        like=np.vstack([near, far]), error=np.r_[np.arange(1, 10) / 100, np.full(100, 0.5)],
    )  # fmt: skip
    low, middle, high = error_quantiles(known, np.full(7, 8.0), [0.1, 0.5, 0.9])
    assert (low, middle, high) == pytest.approx((0.014, 0.05, 0.086), abs=1e-3)


def test_an_interval_holds_its_prediction_scaled_and_is_wider_for_more():
    model, layouts = (
        load_model("llama-13b"),
        Layouts.of(dp=16, tp=2, pp=2, global_batch=512, precision=Precision.BF16, attention=Attention.FLASH2),
    )
    for name, known in (("dgx-a100-80gb", True), ("dgx-b200", False)):
        cluster = load_cluster(name)
        result = estimate(model, cluster, load_framework(cluster.framework), layouts)
        found = step_interval_s(model, cluster, result, 0)
        assert (found is not None) == known
        if found is not None:
            wider = step_interval_s(model, cluster, result, 0, 0.95)
            assert wider is not None
            assert wider[0] < found[0] < found[1] < wider[1]
            assert 0.5 < found[0] / result.step_time_s[0] < 1.1
            assert 0.9 < found[1] / result.step_time_s[0] < 2.0


def test_the_shipped_share_of_right_memory_predictions_is_todays():
    for name in ("ampere", "hopper"):
        assert fits_right(name) == pytest.approx(accuracy_of(name).fits_right, abs=1e-9)


def test_the_sentence_says_what_the_held_out_errors_are():
    known = held_out()
    size = np.abs(np.exp(-known.error[known.architecture == "hopper"]) - 1.0)
    text = accuracy_sentence("hopper", (6.0, 7.0))
    assert text.startswith("in 80 % of cases like this the step takes 6.00 s to 7.00 s; on 172 measured runs")
    assert f"off by {100 * size.mean():.1f} % on average" in text
    assert "unverified" in accuracy_sentence("volta")
