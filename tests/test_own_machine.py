"""benchmarks/own_machine.py: what is drawn, and what its tables say of a work file. Nothing is timed here."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from planner.calibration.anchor import spread

SLOPES = (0.5, 0.1, 0.2, 0.1, 0.1, 0.0)
SCRIPT = Path(__file__).parents[1] / "benchmarks" / "own_machine.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = spec_from_file_location("own_machine", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(5))
def test_thirty_configurations_are_drawn_by_their_seed_within_bounds(bench: ModuleType, seed: int) -> None:
    cases = bench.drawn(seed, 30)
    assert cases == bench.drawn(seed, 30) != bench.drawn(seed + 1, 30)
    assert len(cases) == 30
    assert {bench.world_of(name) for name in cases} == {1, 2, 4}
    for name, case in cases.items():
        assert case["pp"] * case["dp"] * case["tp"] == bench.world_of(name)
        assert 1e6 <= case["parameters"] <= 1e8
        layers = case["config"].get("num_hidden_layers") or case["config"]["n_layer"]
        assert layers % (case["pp"] * case["virtual_stages"]) == 0
        assert case["config"].get("num_key_value_heads", 2) % case["tp"] == 0


def work(measured: dict[str, list[list[float]]], predicted: dict[str, float]) -> dict[str, Any]:
    """A work file of so many rounds of steps."""
    case = {"config": {"model_type": "llama"}, "parameters": 2e6, "pp": 1, "dp": 2, "tp": 1, "zero": 3,
            "recompute": "full", "schedule": "1f1b", "micro_batches": 2, "micro_batch": 1, "seq_len": 64}  # fmt: skip
    number = max(map(len, measured.values()))
    return {
        "seed": 1, "machine": "2 processors", "cases": dict.fromkeys(measured, case),
        "rounds": [{"seconds": {n: x[i] for n, x in measured.items() if i < len(x)}} for i in range(number)],
        "predicted": {n: {"step_time_s": s, "bytes": 105.0 * 2**20} for n, s in predicted.items()},
        "slopes": dict.fromkeys(predicted, SLOPES),
        "peak_bytes": dict.fromkeys(measured, 100 * 2**20),
    }  # fmt: skip


def test_errors_anchors_order_and_noise_of_a_work_file(bench: ModuleType) -> None:
    made = work(
        {"2-1": [[1.0, 1.0], [1.1, 1.1]], "2-2": [[2.0], [2.0]], "4-1": [[4.0], [4.0]], "4-2": [[4.1], [4.1]]},
        {"2-1": 1.26, "2-2": 2.4, "4-1": 2.0, "4-2": 4.1},
    )
    rows = bench.relative_errors(made)
    assert rows["2-1"]["measured_s"] == pytest.approx(1.05)
    assert rows["2-1"]["step_error"] == pytest.approx(0.2)
    assert rows["2-1"]["noise"] == pytest.approx(1.0 / 1.1 - 1.0)
    assert rows["2-2"]["memory_error"] == pytest.approx(0.05)
    # With the other of two as anchor: both 20 % too slow, and as much of one error as is the figures', not the run's
    # own, is taken from the other; so of half of it, and of none nothing.
    told = [s**2 for s in SLOPES] @ spread().figures ** 2
    share = told / (told + spread().noise ** 2)
    assert bench.anchored(made, rows) == pytest.approx(
        [1.2 ** (1.0 - share) - 1.0, 1.2 ** (1.0 - share) - 1.0, 2.0**share - 1.0, 0.5 - 1.0]
    )
    # 4-1 beside 4-2 differs by less than 10 %; 4-1 is said to take less than 2-2, which is wrong.
    assert bench.order(made, rows) == (4, 5)
    text = bench.tables(made)
    assert "Of 5 pairs that differ by 10 % or more, 4 (80%)" in text
    assert "| 2-1 | llama | 2.0 | dp 2 zero 3 recompute | 2 x 1 x 64 | 1050 ms | 1260 ms | +20.0% |" in text


def test_what_is_not_measured_yet_is_left_out(bench: ModuleType) -> None:
    made = work({"2-1": [[1.0]], "2-2": [[2.0]]}, {"2-1": 1.0})
    assert list(bench.relative_errors(made)) == ["2-1"]
    assert "not measured" in bench.tables(made)


def test_the_result_goes_between_a_page_s_markers(bench: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- own_machine.py -->\nold\n<!-- end -->\nbelow\n")
    for text in ("first", "second"):
        bench.write_between(page, text)
    assert page.read_text() == "above\n<!-- own_machine.py -->\n\nsecond\n\n<!-- end -->\nbelow\n"
    page.write_text("no markers")
    with pytest.raises(SystemExit, match="has no lines"):
        bench.write_between(page, "x")


def test_the_page_in_the_docs_has_the_markers(bench: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text((SCRIPT.parents[1] / "docs" / "own-machine.md").read_text(encoding="utf-8"))
    bench.write_between(page, "a result")
    assert "a result" in page.read_text()


def test_its_help_says_what_it_does() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "--work" in done.stdout
