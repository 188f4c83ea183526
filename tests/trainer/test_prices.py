"""Prices of the trainer's passes (benchmarks/trainer_prices.py): sizes, coefficients recovered, a step predicted."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from planner.trainer.attention import BLOCK
from planner.trainer.stopwatch import undisturbed, usual_s
from tests.hang import HANG_S
from tests.trainer.helpers import llama

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    from trainer_passes import grid, passes
    from trainer_prediction import training
    from trainer_prices import FEATURES, PriceSizes, features, fit, score_elements
    from trainer_step import predicted_step_s
finally:
    sys.path.remove(str(BENCHMARKS))


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


def test_a_step_is_its_passes_one_after_the_other_and_a_pipeline_shorter():
    """Passes of 1, 2 and 3 seconds by kind, nothing else: a step by hand."""
    prices = {f"gelu {part} {kind}": [0.0] * len(FEATURES[part]) for part in FEATURES for kind in "FBIW"}
    prices |= {f"gelu layer {kind}": [seconds] + [0.0] * 5 for kind, seconds in zip("FB", (1.0, 2.0), strict=True)}
    prices |= {"update": [3.0, 0.0], "send": [0.5, 0.0], "all_reduce": [0.0, 0.0]}
    options = ["--model", "gpt2", "--scale", "tiny", "--micro-batch", "1", "--micro-batches", "4"]
    run = training([*options, "--pp", "2", "--schedule", "gpipe"])
    layers = run.task.model.num_layers
    assert predicted_step_s(run, prices, "serial") == pytest.approx(4 * layers * 3.0 + 2 * 3.0)
    each = layers / 2
    assert predicted_step_s(run, prices, "mpi") == pytest.approx((4 + 1) * each * 3.0 + 2 * 0.5 + 3.0)
    with pytest.raises(Exception, match="prices have no 'send'"):
        predicted_step_s(run, {k: v for k, v in prices.items() if k != "send"}, "mpi")


@pytest.mark.slow
def test_measured_prices_say_what_a_step_takes(tmp_path):
    prices = tmp_path / "prices.toml"
    command = [sys.executable, BENCHMARKS / "trainer_passes.py", prices, "--quick", "--seconds", "0.02"]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "gelu layer F" in done.stdout
    table = tomllib.loads(prices.read_text())
    assert table["ranks"] == 1
    assert set(table["median_error"]) == set(table["seconds"])
    run = training(["--model", "gpt2", "--scale", "tiny", "--micro-batch", "1", "--micro-batches", "4", "--pp", "2"])
    assert predicted_step_s(run, table["seconds"], "serial") > 0
