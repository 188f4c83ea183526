"""Intervals: honest in cross-validation, made of the runs that are alike, absent where nothing is known."""

import csv
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Layouts, Precision
from planner.models import load_model
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.validation import (
    accuracy_of,
    accuracy_sentence,
    read_runs,
    shipped_files,
    step_interval_s,
    unlike,
    unseen_files,
)
from planner.validation.errors import (
    HeldOut,
    all_errors,
    columns_in,
    errors_in,
    fits_of,
    held_out,
    held_out_mape,
    known_errors,
    unseen,
)
from planner.validation.interval import (
    POINTS,
    UNKNOWN_COSTS,
    coverage,
    error_quantiles,
    interval_factors,
    left_out_quantiles,
    spreads,
)
from planner.validation.publications import publication_of, publications, publications_of
from planner.validation.runs import cluster_name
from tests.predictions import of_shipped, of_unseen

FIRST_PREDICTIONS = Path(__file__).parents[2] / "benchmarks" / "first_predictions.csv"


def test_runs_lie_in_their_interval_as_often_as_it_says_when_they_are_first_predicted():
    """1,146 runs as they were predicted before anything was known of their publication, which has no part in it.

    How wide a new publication's errors are was estimated on them (`first` of spread.csv), so that those of 80 %
    hold 80 %, every publication alike, dense or mixture. Those of 70 and 90 % are left to the quantiles.
    """
    first = errors_in(columns_in(FIRST_PREDICTIONS.read_text()))
    assert len(first.error) == 1146
    for share, of_runs in ((0.7, 0.742), (0.8, 0.82), (0.9, 0.899)):
        inside = coverage(all_errors(), first, share=share)
        assert inside.mean() == pytest.approx(of_runs, abs=0.01)
        of_publications = [inside[first.publication == name].mean() for name in np.unique(first.publication)]
        assert share - 0.035 < np.mean(of_publications) < share + 0.02
        of_sets = [inside[first.source == name].mean() for name in np.unique(first.source)]
        assert share - 0.03 < np.mean(of_sets) < share + 0.03
    for experts in (False, True):
        judged = first.where(first.experts == experts)
        inside = coverage(all_errors(), judged)
        of_publications = [inside[judged.publication == name].mean() for name in np.unique(judged.publication)]
        assert np.mean(of_publications) == pytest.approx(0.8, abs=0.02)  # one publication of mixtures is 0.03


def test_intervals_hold_more_of_runs_whose_causes_are_known():
    """Today's errors are smaller than first ones were: scripts were stated later, and causes counted."""
    known, judged = all_errors(), thinned(all_errors())
    for share in (0.7, 0.8, 0.9):
        inside = coverage(known, judged, share=share)
        of_publications = [inside[judged.publication == name].mean() for name in np.unique(judged.publication)]
        assert share < np.mean(of_publications) < share + 0.14
        assert share < inside.mean() < share + 0.2


def thinned(known):
    """Up to ten runs of each set."""
    random = np.random.default_rng(0)
    return known.where(
        np.concatenate([random.permutation(np.flatnonzero(known.source == s))[:10] for s in np.unique(known.source)])
    )


def test_every_timed_shipped_run_is_in_it_with_the_time_that_was_measured():
    p = of_shipped().predictions
    measured = {
        (run["source"], run["run"]): seconds
        for run, seconds, ok in zip(p.runs, p.measured_s, p.ok, strict=True)
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
    sources = {run["source"] for path in (*shipped_files(), *unseen_files()) for run in read_runs(path)}
    cited = publications_of(sorted(sources))
    assert set(cited) == set(publications())
    for source in sources:
        assert len([p for p in publications() if f"{source}-".startswith(f"{p.sets}-")]) == 1, source
    assert all(p.licence and p.at and p.title in p.citation for p in cited)
    assert publication_of("mosaics-own") is None


def test_quantiles_are_those_of_the_alike():
    """Nine runs like ours, off by 1 to 9 %, and a hundred of another kind, off by a half: ours count.

    A tenth run lies beyond the largest of nine with a chance of 10 %, as beyond the smallest. Nine publications that
    differ by p tell where it lies with sqrt(2 / 9) p more, and nobody has looked into ours.
    """
    near, far = np.full((9, 7), 8.0), np.full((100, 7), 8.0 * 2.0**60)
    its_traits = np.array(["hopper", "megatron", "nvlink", "bf16", "dense"])
    known = HeldOut(
        source=np.array([f"near-{k}" for k in range(9)] + ["far"] * 100), like=np.vstack([near, far]),
        traits=np.tile(its_traits, (109, 1)), error=np.r_[np.arange(1, 10) / 100, np.full(100, 0.5)],
    )  # fmt: skip
    low, middle, high = error_quantiles(known, np.full(7, 8.0), its_traits, [0.1, 0.5, 0.9])
    own, first = spreads(experts=False)[-2:]
    unknown = np.sqrt(2.0 / 9.0 * own**2 + first**2)
    ends = np.array([0.01, 0.05, 0.09]) + unknown * (np.array([POINTS[0], 0.0, POINTS[-1]]) + UNKNOWN_COSTS)
    assert (low, middle, high) == pytest.approx(ends, abs=0.01)


def test_a_trait_that_other_publications_have_widens_less_than_one_that_nobody_has():
    """Nine runs on NVLink in bf16; four publications far off have PCIe: they tell what it does, not the error here."""
    near, far = np.full((9, 7), 8.0), np.full((4, 7), 8.0 * 2.0**60)
    known = HeldOut(
        source=np.array([f"near-{k}" for k in range(9)] + [f"far-{k}" for k in range(4)]), like=np.vstack([near, far]),
        traits=np.array([["hopper", "megatron", "nvlink", "bf16", "dense"]] * 9
                        + [["hopper", "megatron", "pcie", "bf16", "dense"]] * 4),
        error=np.r_[np.arange(-4, 5) / 100, np.zeros(4)],
    )  # fmt: skip

    def width(link: str) -> float:
        low, high = error_quantiles(known, near[0], ["hopper", "megatron", link, "bf16", "dense"], [0.1, 0.9])
        return float(high - low)

    assert width("nvlink") < width("pcie") < 0.93 * width("ethernet")


def test_a_trait_that_no_known_run_has_makes_it_wide_and_is_named():
    """The wider the more traits are new; an interval of a familiar layout names none."""
    width, said = [], []
    for cluster, framework in (("dgx-h100", "nemo"), ("dgx-h100", "nanotron"), ("mi300x-server", "nanotron")):
        setup = Setup(load_model("llama-13b"), load_cluster(cluster), load_framework(framework))
        result = estimate(setup, Layouts.of(dp=32, tp=2, global_batch=512, precision=Precision.BF16))
        low, high = step_interval_s(setup, result, 0)
        width.append(np.log(high / low))
        said.append(unlike(setup, result, 0))
    assert width[0] < width[1] < width[2]
    assert said[0] == ""
    assert said[2].startswith("nothing measured is like this (")
    assert "framework nanotron, not" in said[2]


def test_a_gpu_on_which_nothing_was_measured_is_named():
    """H20 has H100's generation, a seventh of its arithmetic, and no run."""
    said = []
    for name in ("hgx-h20", "dgx-h800", "dgx-h200"):
        setup = Setup(load_model("llama-13b"), load_cluster(name), load_framework("megatron-core"))
        result = estimate(setup, Layouts.of(dp=8, tp=2, global_batch=512, precision=Precision.BF16))
        said.append(unlike(setup, result, 0))
    assert said == ["nothing measured is like this (GPU h20, not h100-sxm as in the nearest runs)", "", ""]


def test_the_gpus_of_each_architecture_are_those_of_measured_runs():
    runs = [run for path in [*shipped_files(), *unseen_files()] for run in read_runs(path)]
    gpus = [load_cluster(name).accelerator for name in {cluster_name(run) for run in runs}]
    for architecture in {gpu.efficiency.name for gpu in gpus}:
        known = {gpu.name for gpu in gpus if gpu.efficiency.name == architecture}
        assert {*fits_of(architecture).gpus} == known


def test_what_is_larger_than_every_measured_run_says_so():
    """The largest dense runs have 16,384 GPUs, and sequences of a million tokens nobody has published."""
    cluster, framework = load_cluster("dgx-h100"), load_framework("megatron-core")
    setup = Setup(load_model("llama3-405b"), cluster, framework)
    many = Layouts.of(dp=[128, 256], tp=8, pp=16, global_batch=2048, precision=Precision.BF16)
    result = estimate(setup, many)
    assert unlike(setup, result, 0) == ""
    assert unlike(setup, result, 1) == "no measured run has so many GPUs (32,768, at most 16,384)"
    long = Setup(replace(setup.model, seq_len=1 << 21), cluster, framework)
    assert unlike(long, estimate(long, many), 0).startswith("no measured run has sequences so long (2,097,152, at most")


def test_an_interval_holds_its_prediction_scaled_and_is_wider_for_more():
    model, layouts = (
        load_model("llama-13b"),
        Layouts.of(dp=16, tp=2, pp=2, global_batch=512, precision=Precision.BF16, attention=Attention.FLASH2),
    )
    for name in ("dgx-a100-80gb", "dgx-b200", "mi300x-server"):
        cluster = load_cluster(name)
        setup = Setup(model, cluster, load_framework(cluster.framework))
        result = estimate(setup, layouts)
        found, wider = (step_interval_s(setup, result, 0, share) for share in (0.8, 0.95))
        assert wider[0] <= found[0] < found[1] <= wider[1]
        assert 0.5 < found[0] / result.step_time_s[0] < 1.2  # both runs on MI300X took a third longer than predicted
        assert 0.9 < found[1] / result.step_time_s[0] < 2.0


def test_the_shipped_share_of_right_memory_predictions_is_todays():
    for name in ("ampere", "hopper", "blackwell", "blackwell-ultra"):
        known = fits_of(name)
        assert known.right / known.runs == pytest.approx(accuracy_of(name).fits_right, abs=1e-9)
    assert fits_of("ampere").failed == 237
    assert "judged by 1,458 runs on ampere GPUs: of 98 % it was right whether they fit" in accuracy_sentence("ampere")
    assert "judged by 172 runs on hopper GPUs: all ran, 100 % were predicted to fit" in accuracy_sentence("hopper")


def test_the_sentence_says_what_the_held_out_errors_are():
    size = np.abs(np.exp(-known_errors("hopper", experts=False).error) - 1.0)
    text = accuracy_sentence("hopper", (6.0, 7.0))
    assert text.startswith("with a chance of 80 % the step takes 6.00 s to 7.00 s: budget with these seconds. On 886 ")
    assert f"off by {100 * size.mean():.1f} % on average" in text
    assert "% in 80 % of them. The fits had not seen them; we have looked into them since. " in text
    assert "budget" not in accuracy_sentence("hopper")
    # Six runs leave none beyond either end of an interval of 80 %.
    few = accuracy_sentence("cdna2", (6.0, 7.0), unlike="nothing measured is like this")
    assert few.startswith("nothing measured is like this; with a chance of 80 % the step takes 6.00 s to 7.00 s; ")
    assert "fewer than 10 measured runs on cdna2 GPUs are shipped: 8 of them, predicted" in few


def test_a_model_with_experts_is_judged_by_runs_with_experts():
    """517 published ones, on H100, Blackwell and MI325X; for A100 too, but not for a GPU without a single run."""
    size = np.abs(np.exp(-known_errors("ampere", experts=True).error) - 1.0)
    text = accuracy_sentence("ampere", model=load_model("mixtral-8x7b"))
    assert text.startswith("on 517 measured runs of models with experts, step time was off by")
    assert f"off by {100 * size.mean():.1f} % on average" in text
    assert "state-space" not in text
    assert "state-space" in accuracy_sentence("hopper", model=load_model("nemotron-3-nano-30b-a3b"))
    assert "on 517 measured runs" in accuracy_sentence("cdna3", model=load_model("mixtral-8x7b"))
    like = (256.0, 1e7, 3e4, 1.0, 8.0, 1e11, 4096.0)
    same = ("hopper", "megatron", "nvlink and infiniband", "bf16")
    dense, sparse = (interval_factors(like, (*same, kind)) for kind in ("dense", "experts"))
    assert sparse[1] - sparse[0] > 1.5 * (dense[1] - dense[0])


def test_unseen_errors_are_those_of_the_shipped_profiles():
    """`unseen.csv` is written with the held-out errors: it says what is predicted today, of every unseen run."""
    p = of_unseen()
    text = (resources.files("planner.validation") / "unseen.csv").read_text(encoding="utf-8")
    rows = {(r["source"], r["run"]): r for r in csv.DictReader(text.splitlines())}
    assert len(rows) == p.ok.sum() == 2318
    for run, predicted, measured in zip(p.runs, p.step_time_s, p.measured_s, strict=True):
        if run["outcome"] == "oom":
            continue
        row = rows[run["source"], run["run"]]
        assert float(row["held_out_step_time_s"]) == pytest.approx(predicted, rel=1e-5)
        assert float(row["measured_step_time_s"]) == pytest.approx(measured, rel=1e-5)


def test_intervals_of_fitted_sets_hold_most_dense_runs_that_no_fit_saw():
    """Intervals of 80 %, made of the shipped sets' errors alone: every set alike, as one set has 212 runs of 1,801.

    They hold more: fewer publications tell less, and most causes of these runs' first errors are known now.
    """
    runs = unseen().where(~unseen().experts)
    inside = coverage(held_out(), runs)
    assert len(inside) == 1801
    assert 0.8 < np.mean([inside[runs.source == s].mean() for s in np.unique(runs.source)]) < 0.95


def test_a_run_s_interval_knows_nothing_of_its_publication():
    """Were its own publication's errors others, its interval would be the same; were another's, not."""
    known = all_errors()
    judged = known.where(np.flatnonzero(known.source == "vtrain-single-h1024")[:3])
    before = left_out_quantiles(known, judged, [0.1, 0.9])
    for name, same in (("vtrain", True), ("hagemann", False)):
        moved = replace(known, error=known.error + 0.5 * (known.publication == name))
        after = left_out_quantiles(moved, judged, [0.1, 0.9])
        assert np.array_equal(before, after) == same
    without = left_out_quantiles(known, judged, [0.1, 0.9], "architecture")
    assert (np.diff(without) > np.diff(before)).all()
    assert np.isnan(left_out_quantiles(judged, judged, [0.1, 0.9])).all()
