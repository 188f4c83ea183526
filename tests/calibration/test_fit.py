"""Fits to measured runs: known figures recovered, what the runs don't tell left alone, files that load."""

from __future__ import annotations

import csv
import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.folds import folds
from planner.base.errors import FileFormatError, InputError, UnknownNameError
from planner.calibration.figures import FittedFigure, figures_of, parameters_of, predict_with
from planner.calibration.fit import ROBUST, fit_figures, jacobian_at_start
from planner.calibration.identified import LEAST_TOLD, calibrate, told
from planner.calibration.profile_files import fitted_profiles, profile_text, write_profiles
from planner.calibration.selection import select
from planner.hardware import load_cluster, load_efficiency, load_framework, profile_names, profile_table
from planner.validation import MeasuredRun, predict, read_runs, scores, shipped_files
from planner.validation.predict import loaders
from tests.commands import planner

NOISE = 0.01
SHARE = 0.2  # of the span between its bounds: how far each figure is moved from where a fit starts


def shipped_runs(*beginnings: str) -> list[MeasuredRun]:
    return [r for f in shipped_files() for r in read_runs(f) if r["source"].startswith(beginnings)]


def true_value(f: FittedFigure) -> float:
    """Moved towards the bound that is further off."""
    up = f.high - f.start > f.start - f.low
    return f.start + (SHARE if up else -SHARE) * (f.high - f.low)


def made_with(seed: int, runs: list[MeasuredRun]) -> tuple[list[str], list[MeasuredRun]]:
    """What the runs tell, by label, and the runs as measured where these figures are moved, but for a little noise."""
    chosen = select(runs)
    problem, figures = chosen.problem()
    share = told(jacobian_at_start(problem, figures), ROBUST**2 * float(np.mean(problem.weight**2)))
    moved = [f for f, x in zip(figures, share, strict=True) if x >= LEAST_TOLD]
    times = predict_with(moved, np.array([true_value(f) for f in moved]), runs, chosen.base).step_time_s
    times = times * np.exp(NOISE * np.random.default_rng(seed).standard_normal(len(runs)))
    made = [replace(r, cells=r.cells | {"step_time_s": float(t)}) for r, t in zip(runs, times, strict=True)]
    return [f.label for f in moved], made


def as_csv(path: Path, runs: list[MeasuredRun]) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, runs[0].cells.keys())
        writer.writeheader()
        for run in runs:
            cells = {k: str(v).lower() if isinstance(v, bool) else v for k, v in run.cells.items()}
            writer.writerow({k: "" if v is None else v for k, v in cells.items()})
    return path


@pytest.fixture(scope="module")
def moved_and_made() -> tuple[list[str], list[MeasuredRun]]:
    return made_with(1, shipped_runs("mosaic-h100", "megatron-core", "dgxc"))


@pytest.fixture(scope="module")
def made(moved_and_made) -> list[MeasuredRun]:
    return moved_and_made[1]


@pytest.fixture(scope="module")
def found(made):
    chosen = select(made)
    return chosen, calibrate(*chosen.problem())


def test_figures_that_made_the_runs_are_found_within_their_standard_errors(moved_and_made, found):
    moved, fit = moved_and_made[0], found[1].fit
    assert fit.converged
    assert "hopper matrix_fraction.fp16,bf16" in moved
    assert len(moved) >= 4
    assert set(moved) <= {f.label for f in fit.figures}
    rows = [(f, v, e) for f, v, e in zip(fit.figures, fit.value, fit.error, strict=True) if f.label in moved]
    off = {f.label: (value - true_value(f)) / error for f, value, error in rows}
    assert max(map(abs, off.values())) < 3.0, off
    assert np.sqrt(np.mean(np.square(list(off.values())))) < 2.0, off
    for f, _, error in rows:  # which is small beside how far the fit had to go
        assert error < 0.5 * abs(f.start - true_value(f)), f.label


def test_the_fit_predicts_the_runs_to_their_noise_and_the_profiles_as_they_are_do_not(made, found):
    _, c = found
    before, after = scores(predict(made))[1], scores(c.fit.predict(made))[1]
    assert before["mape"] > 0.05
    assert after["mape"] < 1.2 * NOISE


def test_what_the_runs_do_not_tell_stays(made):
    few = [r for r in made if r["precision"] != "fp8" and not r["source"].startswith("dgxc")]
    problem, figures = select(few).problem()
    c = calibrate(problem, figures)
    left = {x.figure.label: x.reason for x in c.left}
    assert left["hopper matrix_fraction.fp8"] == "no run depends on it"
    assert all(share >= LEAST_TOLD for share in c.told)
    assert {f.label for f in c.fit.figures} | set(left) == {f.label for f in figures}


def test_few_runs_get_few_figures(made):
    runs = [r for r in made if r["source"].startswith("megatron-core-h100-weak")]
    c = calibrate(*select(runs).problem())
    assert 1 <= len(c.fit.figures) <= len(runs) // 3
    with pytest.raises(InputError, match=r"1 timed run tells none"):
        calibrate(*select(runs[:1]).problem())


def test_runs_of_one_configuration_count_once(made):
    one = made[0]
    again = [replace(one, cells=one.cells | {"run": f"again-{i}", "step_time_s": (1 + 1e-9 * i) * one["step_time_s"]})
             for i in range(4)]  # fmt: skip
    with pytest.raises(InputError, match=r"4 timed runs tell none"):
        calibrate(*select(again).problem())


def test_a_row_that_stands_twice_counts_once(made):
    again = [replace(r, cells=r.cells | {"run": f"again {r['run']}", "note": "copied"}) for r in made[:3]]
    chosen = select([*made, *again])
    assert chosen.runs == select(made).runs
    assert chosen.left == {"the same in another row but for its name": 3}


def test_told_is_nothing_of_an_unseen_figure_and_nearly_all_of_a_plain_one():
    jacobian = np.column_stack([np.zeros(50), np.ones(50), np.tile([1.0, -1.0], 25), np.tile([1.0, -1.0], 25)])
    share = told(jacobian, 0.01)
    assert share[0] == 0.0
    assert share[1] > 0.99
    assert share[2] == share[3] == pytest.approx(0.5, abs=0.01)  # only their sum is seen: half of each stays a guess
    assert told(jacobian[:, :3], 0.01)[2] > 0.99


def test_every_source_counts_alike(made):
    """Ten times the same rows of one source leave the fit where it was."""
    runs = [r for r in made if r["source"] in ("mosaic-h100", "megatron-core-h100-weak")]
    mosaic = [r for r in runs if r["source"] == "mosaic-h100"]
    often = runs + [
        replace(r, cells=r.cells | {"step_time_s": (1 + 1e-9 * i) * r["step_time_s"]})
        for i in range(1, 10)
        for r in mosaic
    ]
    one, ten = select(runs), select(often)
    figures = one.problem()[1][:1]
    a, b = (fit_figures(chosen.problem()[0], figures).value[0] for chosen in (one, ten))
    assert a == pytest.approx(b, rel=1e-4)


def test_the_list_of_every_architecture_names_fields_that_there_are():
    for architecture in profile_names("efficiency"):
        clusters = [c for name in profile_names("clusters")
                    if (c := load_cluster(name)).accelerator.efficiency.name == architecture]  # fmt: skip
        frameworks = [load_framework(name) for name in profile_names("frameworks")]
        for everything in (False, True):
            figures = figures_of(parameters_of(architecture, everything), clusters, frameworks)
            assert len({f.label for f in figures}) == len(figures)
            for f in figures:
                assert f.low < f.high, f.label
                assert f.start >= 0.0


def test_a_framework_profile_says_what_a_fit_may_move_and_with_whom(tmp_path):
    cluster = load_cluster("dgx-h100")
    shipped = [load_framework(name) for name in ("megatron-core", "nanotron", "nemo")]

    def moved(text):
        path = tmp_path / "mine.toml"
        path.write_text('name = "mine"\nbase = "megatron-core"\n' + text)
        figures = figures_of((), [cluster], [*shipped, load_framework(str(path))])
        return {f.field: f.names for f in figures if f.start == 0.5 and "nemo" not in f.names}

    assert moved("") == {"overlap_tensor": ("megatron-core", "nanotron"), "overlap_grad_reduce": ("nanotron",)}
    assert moved('[fitted.hopper]\noverlap_tensor = "megatron-core"')["overlap_tensor"] == (
        "megatron-core", "mine", "nanotron",
    )  # fmt: skip
    assert "mine" not in moved('[fitted.ampere]\noverlap_tensor = "megatron-core"')["overlap_tensor"]
    with pytest.raises(FileFormatError, match=r"in fitted only .*'host_step_us' is none"):
        moved('[fitted.hopper]\nhost_step_us = "x"')


def test_selection_says_what_it_leaves(made):
    chosen = select([*made, *shipped_runs("korthikanti")], hold_out=["megatron-core"])
    assert chosen.architecture == "hopper"
    assert {r["source"] for r in chosen.held} == {"megatron-core-h100-weak", "megatron-core-h100-strong"}
    assert chosen.left == {"on ampere GPUs; one architecture at a time: --architecture ampere": 10}
    assert {r["source"] for r in select(shipped_runs("korthikanti", "nanotron"), "ampere").runs} == {
        "korthikanti-table5"
    }
    with pytest.raises(UnknownNameError, match=r"unknown source 'megatron-score'; nearest: .*megatron-core-h100"):
        select(made, hold_out=["megatron-score"])
    with pytest.raises(UnknownNameError, match="unknown architecture 'ampere'; allowed: hopper"):
        select(made, "ampere")
    unknown = [replace(r, cells=r.cells | {"cluster": "dgx-x"}) for r in made[:3]]
    assert list(select(made + unknown).left.values()) == [3]
    with pytest.raises(InputError, match="no run with a measured step time can be predicted; unknown cluster"):
        select(unknown)


def test_folds_leave_out_publications_whole(made):
    mine = [replace(r, cells=r.cells | {"source": "mine"}) for r in made[:4]]
    left_out = folds(made + mine)
    assert [f.name for f in left_out] == ["megatron-core", "mosaic", "dgxc", "mine"]
    for fold in left_out:
        assert len(fold.held) + len(fold.rest) == len(made) + 4
        assert not {r["source"] for r in fold.held} & {r["source"] for r in fold.rest}
    with pytest.raises(InputError, match="all runs are mine's"):
        folds(mine)


def test_profiles_of_ones_own_are_written_whole_and_predict_as_the_fit(tmp_path, made):
    """Runs on a cluster of one's own, whose files lie beside it, in a folder that then can be moved."""
    own = tmp_path / "own"
    own.mkdir()
    text = Path(profile("accelerators", "h100-sxm")).read_text().replace('name = "h100-sxm"', 'name = "mine"')
    (own / "gpu.toml").write_text(text)
    text = Path(profile("clusters", "dgx-h100")).read_text()
    (own / "ours.toml").write_text(
        text.replace('"h100-sxm"', '"./gpu.toml"').replace('name = "dgx-h100"', 'name = "ours"')
    )
    few = [r for r in made if not r["source"].startswith("dgxc")]
    runs = [replace(r, cells=r.cells | {"cluster": str(own / "ours.toml")}) for r in few]
    chosen = select(runs)
    fit = calibrate(*chosen.problem()).fit
    texts = fitted_profiles(fit.fitted, *chosen.named(), "fitted by a test")
    assert set(texts) >= {"clusters/ours.toml", "accelerators/gpu.toml", "efficiency/hopper.toml"}
    write_profiles(tmp_path / "a", texts)
    (tmp_path / "a").rename(tmp_path / "b")
    for path in own.iterdir():
        path.unlink()
    p = predict(runs, *loaders(tmp_path / "b"))
    assert not any(p.reasons)
    np.testing.assert_allclose(p.step_time_s, fit.predict(runs).step_time_s, rtol=1e-4)
    cluster = load_cluster(str(tmp_path / "b/clusters/ours.toml"))
    assert cluster.accelerator.efficiency.matrix_fraction["bf16"] == pytest.approx(fit.value[0], rel=1e-5)
    assert (
        "fitted by a test; standard errors: matrix_fraction.fp16 +- "
        in (cluster.accelerator.efficiency.sources["matrix_fraction.bf16"])
    )
    # What was not fitted keeps its figure and its source.
    shipped = load_efficiency("hopper")
    assert cluster.accelerator.efficiency.tile_rows == shipped.tile_rows
    assert cluster.accelerator.efficiency.sources["tile_rows"] == shipped.sources["tile_rows"]


def profile(kind: str, name: str) -> Path:
    return Path(__file__).parents[2] / "hardware_profiles" / kind / f"{name}.toml"


@pytest.mark.parametrize(
    ("kind", "name"),
    [(k, n) for k in ("accelerators", "clusters", "efficiency", "frameworks", "links") for n in profile_names(k)],
)
def test_every_shipped_profile_is_written_as_it_is_read(kind, name):
    """Plain fields, figures, tables of either and the sources used: nothing is lost on the way to a file."""
    data, _ = profile_table(kind, name, None)
    assert tomllib.loads(profile_text(data)) == data


def test_two_clusters_of_one_file_name_are_refused(tmp_path, found):
    _, c = found
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        text = profile("clusters", "dgx-h100").read_text().replace('name = "dgx-h100"', f'name = "{name}"')
        (tmp_path / name / "mine.toml").write_text(text)
    clusters = [str(tmp_path / name / "mine.toml") for name in ("a", "b")]
    with pytest.raises(InputError, match=r"would both be written to clusters/mine\.toml"):
        fitted_profiles(c.fit.fitted, clusters, [], "x")


def test_the_command_fits_scores_and_writes(tmp_path, made):
    runs = str(
        as_csv(tmp_path / "runs.csv", [r for r in made if "8b" in r["source"] or not r["source"].startswith("dgxc")])
    )
    folder = tmp_path / "mine"
    args = ["calibrate", "--from", runs, "--hold-out", "mosaic", "--profile", str(folder)]
    done = planner(*args, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert {f["figure"] for f in record["figures"]} | {f["figure"] for f in record["left_figures"]} == {
        f.label for f in select(read_runs(Path(runs))).problem()[1]
    }
    assert record["timed_runs"] == record["runs"] == sum(s["rows"] for s in record["after"]["sources"].values())
    assert record["after"]["overall"]["mape"] < record["before"]["overall"]["mape"]
    assert set(record["held_after"]["sources"]) == {"mosaic-h100"}
    assert all(Path(path).is_file() for path in record["written"])
    sources = tomllib.loads((folder / "efficiency/hopper.toml").read_text())["sources"]
    assert any(
        "planner calibrate --from runs.csv --architecture hopper --hold-out mosaic" in x for x in sources.values()
    )
    fresh = json.loads(planner("validate", runs, "--profiles", str(folder), "--json").stdout)
    for source, s in record["after"]["sources"].items():
        assert fresh["sources"][source]["mape"] == pytest.approx(s["mape"], abs=1e-4)
    assert "held_out_mape" not in fresh["overall"]
    cluster = str(folder / "clusters/dgx-h100.toml")
    done = planner("estimate", "llama3-8b", "--cluster", cluster, "--dp", "8", "--global-batch", "64")
    assert done.returncode == 0, done.stderr


def test_the_command_prints_what_was_fitted_and_what_was_left(tmp_path, made):
    runs = [
        r for r in made if r["source"].startswith(("megatron-core", "dgxc-h100-llama")) and r["precision"] == "bf16"
    ]
    done = planner(
        "calibrate", "--from", str(as_csv(tmp_path / "a.csv", runs[:20])), str(as_csv(tmp_path / "b.csv", runs[20:]))
    )
    assert done.returncode == 0, done.stderr
    left = ("Left as the profile has them", "hopper matrix_fraction.fp8", "no run depends on it")
    for said in (f"{len(runs)} timed runs of 3 sources on hopper GPUs", "figures fitted to", *left, "overall"):
        assert said in done.stdout


BAD = [
    (["calibrate"], "allowed: --from RUNS.csv or --probe FILE"),
    (["calibrate", "RUNS", "--json"], "allowed: --from RUNS.csv or --probe FILE"),
    (["calibrate", "RUNS", "--hold-out", "x"], "--hold-out needs --from"),
    (["calibrate", "--from", "RUNS", "--probe", "probe.json"], "--probe stands beside --from"),
    (["calibrate", "--from", "RUNS", "--cluster", "selene"], "--cluster needs --probe"),
    (["calibrate", "--from", "nothing.csv"], "nothing.csv"),
    (["calibrate", "--from", "RUNS", "--hold-out", "korthikanti"], "left to fit"),
    (["calibrate", "--from", "RUNS", "--hold-out", "bloom"], "unknown source 'bloom'"),
    (["calibrate", "--from", "RUNS", "--architecture", "hopper"], "unknown architecture 'hopper'"),
    (["calibrate", "--from", "RUNS", "--profile", "/dev/null/x"], "/dev/null/x"),
    (["validate", "RUNS", "--profiles", "tests"], "no profiles in it"),
]


@pytest.mark.parametrize(("args", "named"), BAD, ids=[" ".join(a)[-40:] for a, _ in BAD])
def test_bad_input_is_one_line_and_exit_code_2(args, named, reference_runs):
    done = planner(*(str(reference_runs("korthikanti_2022_a100.csv")) if a == "RUNS" else a for a in args))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert named in done.stderr


def test_a_fit_that_fails_leaves_no_folder(tmp_path, made):
    nonsense = [
        replace(r, cells=r.cells | {"step_time_s": 10.0 ** (300 if i % 2 else -300)}) for i, r in enumerate(made[:20])
    ]
    runs = as_csv(tmp_path / "runs.csv", nonsense)
    done = planner("calibrate", "--from", str(runs), "--profile", str(tmp_path / "out"))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not (tmp_path / "out").exists()


def test_a_profile_that_is_not_one_is_named(tmp_path, reference_runs):
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "selene.toml").write_text("name = 3\n")
    with pytest.raises(FileFormatError, match=r"selene\.toml"):
        loaders(tmp_path)[0]("selene")
