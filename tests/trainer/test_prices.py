"""Prices of passes: sizes counted right, coefficients recovered, and a calibration that runs."""

from __future__ import annotations

import json
import tomllib

import numpy as np
import pytest

from planner.trainer.attention import BLOCK
from planner.trainer.microbenchmarks import grid, passes
from planner.trainer.prices import FEATURES, PriceSizes, features, fit, score_elements
from planner.trainer.stopwatch import undisturbed, usual_s
from tests.cli.test_train import TINY, planner
from tests.trainer.helpers import llama


def test_coefficients_are_recovered_though_one_measurement_is_disturbed():
    rng = np.random.default_rng(0)
    rows = rng.uniform(0.1, 2.0, (30, 4))
    true = np.array([1e-3, 0.0, 2e-3, 5e-3])
    times = rows @ true
    times[7] *= 3
    found = fit(rows.tolist(), times.tolist())
    np.testing.assert_allclose(found.seconds, true, atol=2e-4)
    assert found.median_error < 0.02
    assert found.worst_error > 0.5


def test_scores_are_those_that_attention_computes():
    model = llama()
    whole = PriceSizes(model=model, b=2, tokens=BLOCK + 32)
    rows = [(BLOCK, BLOCK), (32, BLOCK + 32)]
    assert score_elements(whole) == 2 * 4 * sum(q * k for q, k in rows)
    parts = [PriceSizes(model=model, b=2, tokens=BLOCK), PriceSizes(model=model, b=2, tokens=32, start=BLOCK)]
    assert sum(map(score_elements, parts)) == score_elements(whole)


def test_a_layers_products_are_its_weights():
    model = llama()
    row = dict(zip(FEATURES["layer"], features("layer", PriceSizes(model=model, b=1, tokens=1)), strict=True))
    weights = 16 * (4 + 2 * 2) * 4 + 16 * 16 + 3 * 16 * 24
    assert row["product_gflop"] * 1e9 == pytest.approx(2 * weights)


def test_passes_are_measured():
    model, b = next(iter(grid(quick=True)))
    samples = passes(np, model, b, 0.01, lambda: None)
    assert {s.key for s in samples} == {
        "update", *(f"gelu {part} {kind}" for part in ("embedding", "layer", "head") for kind in "FBIW")
    }  # fmt: skip
    assert all(s.time_s > 0 for s in samples)


def test_disturbed_timings_do_not_count():
    times, shares = [1.0, 9.0, 1.1, 5.0, 1.2], [1.0, 0.3, 0.99, 0.6, 1.0]
    assert undisturbed(shares).tolist() == [True, False, True, False, True]
    assert usual_s(times, shares) == pytest.approx(1.05)
    assert undisturbed([0.5, 0.2]).tolist() == [True, False]


@pytest.mark.slow
def test_calibrate_writes_prices_that_train_predicts_with(tmp_path):
    prices = tmp_path / "prices.toml"
    done = planner("calibrate", str(prices), "--quick", "--seconds", "0.02")
    assert done.returncode == 0, done.stderr
    assert "gelu layer F" in done.stdout
    table = tomllib.loads(prices.read_text())
    assert table["ranks"] == 1
    assert set(table["median_error"]) == set(table["seconds"])
    done = planner(*TINY, "--pp", "2", "--prices", str(prices), "--json")
    record = json.loads(done.stdout)
    assert record["predicted_step_time_s"] > 0
    assert record["predicted_passes_held"] == record["passes_held"]
    assert set(record["predicted_pass_s"]) == set(record["pass_s"]) == {"F", "B"}
    table = planner(*TINY, "--pp", "2", "--prices", str(prices)).stdout
    assert "Predicted beside measured" in table
    assert "stage rank 1: passes held" in table
    (tmp_path / "other.toml").write_text("x = 1\n")
    done = planner(*TINY, "--prices", str(tmp_path / "other.toml"))
    assert done.returncode == 2
    assert "no prices; write them with planner calibrate" in done.stderr
