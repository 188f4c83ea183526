"""Fronts and heat maps of a sweep: against brute force, as commands, as pictures."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.base.errors import FileFormatError, InputError, UnknownNameError
from planner.models import load_model
from planner.models.flops import causal_share
from planner.report.plain_table import plain_text
from planner.report.sweep import sweep_view
from planner.report.tables import PARTS
from planner.sweeps.case_grid import grid
from planner.sweeps.columns import Column
from planner.sweeps.fronts import fronts, nondominated
from planner.sweeps.parquet import read_about, write_results
from planner.sweeps.results import Results, load_results
from planner.sweeps.run import SweepProgress, run_sweep
from planner.sweeps.sweep import load_sweep
from tests.commands import planner
from tests.sweep.conftest import SMALL
from tests.sweep.test_resume import Here

POINTS = st.integers(2, 3).flatmap(lambda k: st.lists(st.lists(st.integers(0, 6), min_size=k, max_size=k), min_size=1))


@given(POINTS)
def test_the_front_is_all_that_nothing_beats(points):
    array = np.array(points, dtype=np.float64)
    kept = nondominated(array)
    beaten = [any((q <= p).all() and (q < p).any() for q in array) for p in array]
    assert {tuple(p) for p in array[kept]} == {tuple(p) for p, b in zip(array, beaten, strict=True) if not b}
    assert len({tuple(p) for p in array[kept]}) == len(kept)
    assert array[kept].tolist() == sorted(array[kept].tolist())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    both = SMALL.replace('"gpt2"', '"gpt2", "llama-7b"')
    (folder / "sweep.toml").write_text(f"{both}micro_batch = [1]\n")  # fewer layouts, as many cases
    run_sweep(load_sweep(folder / "sweep.toml"), folder / "out.parquet", Here().answers)
    return folder / "out.parquet"


@pytest.fixture
def results(file: Path) -> Results:
    return load_results(file)


def test_fronts_of_time_cost_and_power(results):
    found = fronts(results, ["time", "cost", "power"])
    assert [front.model for front in found] == ["gpt2", "llama-7b"]
    for front in found:
        assert front.columns == ("training_days", "training_cost_usd", "power_kw")
        every = np.stack([front.cases.numbers(name) for name in front.columns], axis=1)
        best = np.stack([front.best.numbers(name) for name in front.columns], axis=1)
        assert not any((p <= b).all() and (p < b).any() for b in best for p in every)
        for i in range(3):
            assert best[:, i].min() == every[:, i].min()


def test_the_best_are_told_with_the_mfu_that_recommend_shows_first(results, tmp_path):
    progress = SweepProgress(cases=1, done=1, layouts=1, kept_cases=1, kept_layouts=1, already=True)
    shown = plain_text(sweep_view(tmp_path, progress, results.table, 1.0))
    rows = results.where(["model=llama-7b", "status=fits"]).table.to_pylist()
    row = min(rows, key=lambda row: row["time_s_per_billion_tokens"])
    assert row["causal_mfu"] == pytest.approx(row["mfu"] * causal_share(load_model("llama-7b")))
    assert f"{row['causal_mfu']:.1%}" in shown
    assert "causal MFU" in shown


def test_a_larger_mfu_is_better(results):
    found = fronts(results.where(["model=gpt2"]), ["mfu", "memory"])[0]
    assert found.best.numbers("mfu")[0] == found.cases.numbers("mfu").max()


def test_a_cell_is_the_best_of_its_cases(results):
    rows = results.where(["model=gpt2"])
    found = grid(rows, "accelerator.memory_gib", "gpus", "time")
    assert (found.xs, found.ys) == ([8.0, 40.0, 80.0], [4, 8])
    assert found.over == ["cluster", "accelerator.power_w", "global_batch", "objective"]
    days, memory, gpus = rows.numbers("training_days"), rows.numbers("accelerator.memory_gib"), rows.numbers("gpus")
    for r, y in enumerate(found.ys):
        for c, x in enumerate(found.xs):
            assert found.cells[r][c] == days[(memory == x) & (gpus == y)].min()
    most = grid(rows, "accelerator.memory_gib", "gpus", "mfu").cells[0][0]
    assert most == rows.numbers("mfu")[(memory == 8) & (gpus == 4)].max()
    text = grid(rows, "accelerator.memory_gib", "gpus", "binding")
    assert text.by == "training_days"
    assert text.cells[1][2] == rows.values("binding")[text.rows[1][2]]


def test_cells_where_nothing_fits_are_empty(results):
    found = grid(results.where(["model=llama-7b"]), "accelerator.memory_gib", "gpus", "time")
    assert found.cells[0][0] is None
    assert found.cells[1][2] is not None


@pytest.mark.parametrize(
    ("x", "y", "where", "said"),
    [
        ("gpus", "gpus", "model=gpt2", "two axes"),
        ("gpus", "mfu", "model=gpt2", "allowed: an axis with several values: cluster"),
        ("gpus", "global_batch", "cluster=dgx-h100", "several values of model"),
        ("gpus", "speed", "model=gpt2", "unknown column 'speed'"),
        ("gpus", "global_batch", "model=gpt3", "no such row; model has gpt2, llama-7b"),
        ("gpus", "global_batch", "model", "COLUMN=VALUE"),
        ("gpus", "global_batch", "speed=3", "unknown column"),
    ],
)
def test_a_wrong_grid_is_one_line(results, x, y, where, said):
    with pytest.raises((InputError, UnknownNameError), match=said):
        grid(results.where([where]), x, y, "time")


def test_wrong_figures_are_one_line(results):
    with pytest.raises(InputError, match="two figures or more"):
        fronts(results, ["time"])
    with pytest.raises(InputError, match="holds string; allowed: a column of numbers"):
        fronts(results, ["time", "cluster"])


def test_a_file_that_no_sweep_wrote_is_one_line(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "text.parquet").write_text("no")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    for name, said in (
        ("none.parquet", "can't be read"),
        ("text.parquet", "not a Parquet file"),
        ("none.parquet", "No such file or directory"),
        ("other.parquet", "is not the"),
    ):
        with pytest.raises(FileFormatError, match=said):
            load_results(tmp_path / name)


def test_the_commands_print_and_draw(file, tmp_path):
    pictures = ("--svg", str(tmp_path / "front.svg"), "--png", str(tmp_path / "front.png"))
    front = planner("pareto", str(file), *pictures)
    axes = ("--x", "accelerator.memory_gib", "--y", "gpus", "--where", "model=llama-7b")
    map_ = planner("heatmap", str(file), *axes, "--svg", str(tmp_path / "map.svg"), "--json")
    assert (front.returncode, front.stderr, map_.returncode, map_.stderr) == (0, "", 0, "")
    largest = planner("heatmap", str(file), *axes, "--value", "binding", "--svg", str(tmp_path / "part.svg"), "--json")
    part = next(name for line in json.loads(largest.stdout)["cells"] for name in line if name)
    words = "".join(ElementTree.parse(tmp_path / "part.svg").getroot().itertext())
    assert all(text in words for text in ("largest cost after matrix products", PARTS[part]))
    assert "binding" not in words
    assert "not beaten in training time, training cost, power" in front.stdout
    assert len(json.loads(map_.stdout)["cells"]) == 2
    assert (tmp_path / "front.png").read_bytes().startswith(b"\x89PNG")
    drawn = {
        name: "".join(ElementTree.parse(tmp_path / name).getroot().itertext()) for name in ("front.svg", "map.svg")
    }
    for text in ("training time (days)", "training cost (USD)", "power (kW)", "gpt2, 1,024 tokens per sequence"):
        assert text in drawn["front.svg"]
    for text in ("accelerator memory (GiB)", "GPUs", "training time (days)", "no layout fits"):
        assert text in drawn["map.svg"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["heatmap", "FILE", "--x", "gpus", "--y", "cluster"], "needs --svg, --png or --html"),
        (["heatmap", "FILE", "--x", "gpus", "--y", "cluster", "--svg", "a.png"], "ends in .svg"),
        (["pareto", "nothing.parquet"], "nothing.parquet: can't be read"),
        (["sweep", "SWEEP", "-o", "r.csv"], "-o is r.csv; allowed: a path that ends in .parquet"),
        (["sweep", "nothing.toml", "-o", "out.parquet"], "nothing.toml: can't be read"),
        (["sweep", "nothing.toml", "-o", "out.parquet", "--workers", "0"], "--workers is 0"),
    ],
)
def test_bad_commands_are_one_line_and_exit_code_2(file, args, said):
    own = {"FILE": str(file), "SWEEP": str(file.with_name("sweep.toml"))}
    done = planner(*(own.get(a, a) for a in args))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.strip().splitlines()) == 1
    assert said in done.stderr


def test_a_relative_name_with_a_colon_is_no_address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a:b").mkdir()
    about = {"sweep": "", "versions": {}, "cases": 1, "layouts": 1, "definition": {}}
    write_results(Path("c:d"), Path("a:b"), [Column("x", "float64", "", "")], [(1.0,)], about)
    assert read_about(Path("c:d")) == about


def test_whole_numbers_among_floats_may_be_large(tmp_path):
    import pyarrow.parquet as pq

    write_results(tmp_path / "x.parquet", tmp_path, [Column("x", "float64", "", "")], [(2**63 - 1,), (None,)], {})
    assert pq.read_table(tmp_path / "x.parquet")["x"].to_pylist() == [2.0**63, None]
