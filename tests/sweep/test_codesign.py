"""What a sweep over hardware must say: more is never slower, prices scale costs, and rows are `recommend`'s."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.base.units import GIB
from planner.question import careful, load_setup
from planner.search import default_attention, default_precision, recommend
from planner.step.step_time import StepTime
from planner.sweeps.columns import columns
from planner.sweeps.results import Results, load_results
from planner.sweeps.run import run_sweep
from planner.sweeps.sweep import load_sweep
from tests.sweep.test_resume import Here

BASE = """
models = ["llama-13b"]
clusters = ["dgx-a100-80gb"]
gpus = [16]
global_batches = [64]
[search]
schedule = ["1f1b", "interleaved"]
micro_batch = [1, 2]
"""


def swept(folder: Path, text: str) -> Results:
    (folder / "sweep.toml").write_text(text)
    run_sweep(load_sweep(folder / "sweep.toml"), folder / "out.parquet", Here().answers, restart=True)
    return load_results(folder / "out.parquet")


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("accelerator.memory_gib", [10, 20, 24, 30, 40, 60, 80, 141, 192]),
        ("accelerator.memory_bandwidth_gbyte_per_s", [500, 1000, 2039, 4000, 8000]),
        ("accelerator.peak_tflops.bf16", [100, 200, 312, 624]),
        ("network.bandwidth_gbit_per_s", [10, 25, 50, 100, 200, 400]),
        ("node_link.bandwidth_gbyte_per_s", [32, 64, 150, 300, 900]),
        ("nics_per_node", [1, 2, 4, 8]),
    ],
)
def test_more_is_never_slower(tmp_path, field, values):
    found = swept(tmp_path, f"{BASE}\n[hardware]\n{field} = {values}\n")
    assert found.values(field) == values
    step = found.numbers("step_time_s")
    step = np.where(np.isnan(step), np.inf, step)
    assert np.isfinite(step).any()
    assert np.all(step[1:] <= step[:-1] * (1 + 1e-12)), step.tolist()


def test_checkpoints_repairs_and_stragglers_are_assumed_as_by_time(tmp_path):
    text = BASE.replace("[search]", "tokens = 1e11\n[search]") + "[assumptions]\nmtbf_hours = 200\n"
    usual, behind, broken, slow = (
        float(swept(tmp_path, text + more).numbers("training_goodput")[0])
        for more in ("", "host_copies = 1\n", "repair_hours = 24\n",
                     "straggler_hours = 100\nstraggler_minutes = 60\nstraggler_slows = 0.3\n")
    )  # fmt: skip
    assert broken < slow < usual < behind


def test_where_nothing_fits_the_row_says_so(tmp_path):
    found = swept(tmp_path, f"{BASE}\n[hardware]\naccelerator.memory_gib = [4, 80]\n")
    assert found.values("status") == ["over memory", "fits"]
    reason = found.values("reason")[0]
    assert reason.startswith("the layout of least memory needs ")
    assert reason.endswith(" GiB of 3.387")  # what fits with 95 % of 4 GiB
    assert found.values("layouts")[0] == found.values("layouts")[1] > 0
    assert np.isnan(found.numbers("step_time_s")[0])


def test_where_nothing_is_legal_the_row_says_so(tmp_path):
    text = BASE.replace("[16]", "[16, 10007]").replace('["dgx-a100-80gb"]', '["dgx-a100-80gb", "dgx-1-v100"]')
    found = swept(tmp_path, text.replace("[search]", 'precisions = ["bf16"]\n[search]'))
    assert found.values("status") == ["fits", "not legal", "not legal", "not legal"]
    assert "10,007 GPUs" in found.values("reason")[1]
    assert "bf16" in found.values("reason")[2]


def test_prices_and_power_scale_what_they_should(tmp_path):
    found = swept(
        tmp_path,
        BASE.replace("[search]", "tokens = 1e10\nprices = { dgx-a100-80gb = 2 }\n[search]")
        + "\n[hardware]\naccelerator.price_usd_per_hour = { times = [1, 2] }\naccelerator.power_w = [200, 400]\n"
        + "[assumptions]\nsite_factor = 1.5\nmtbf_hours = 1e12\n",
    )
    price, power, step = (found.numbers(n) for n in ("price_usd_per_gpu_hour", "accelerator.power_w", "step_time_s"))
    assert sorted(set(price)) == [2.0, 4.0]
    assert min(step[power == 200.0]) > 1.05 * max(step[power == 400.0])  # a part with half the watts clocks lower
    rate = 64 * 2048 / step
    np.testing.assert_allclose(found.numbers("tokens_per_s"), rate)
    np.testing.assert_allclose(found.numbers("cost_usd_per_billion_tokens"), 16 * price * 1e9 / rate / 3600)
    np.testing.assert_allclose(found.numbers("power_kw"), 16 * power * 1.5 / 1000)
    np.testing.assert_allclose(found.numbers("energy_kwh_per_billion_tokens"), 0.016 * power * 1.5 * 1e9 / rate / 3600)
    steps = np.ceil(1e10 / (64 * 2048))
    np.testing.assert_allclose(found.numbers("training_goodput"), 1.0, rtol=1e-3)
    days = steps * step / 86400 / found.numbers("training_goodput")
    np.testing.assert_allclose(found.numbers("training_days"), days)
    np.testing.assert_allclose(found.numbers("training_cost_usd"), 16 * price * days * 24)
    np.testing.assert_allclose(found.numbers("training_energy_mwh"), 16 * power * 1.5 * days * 24 / 1e6)


def test_a_row_is_what_recommend_finds(tmp_path):
    found = swept(tmp_path, BASE.replace("[search]", 'objectives = ["time", "memory"]\n[search]'))
    settled = {"schedule": ["1f1b", "interleaved"], "micro_batch": [1, 2]}
    q, fixed = careful(load_setup("llama-13b", "dgx-a100-80gb"), **settled)
    for i, objective in enumerate(("time", "memory")):
        asked = recommend(
            q, gpus=16, global_batch=64, precision=default_precision(q.cluster),
            attention=default_attention(q.cluster), objective=objective, top=1, fixed=fixed,
        )  # fmt: skip
        best = int(asked.best[0])
        row: dict[str, Any] = found.table.slice(i, 1).to_pylist()[0]
        assert row["layouts"] == asked.legal
        assert row["step_time_s"] == asked.estimate.step_time_s[best]
        assert row["memory_gib"] == asked.estimate.memory_bytes[best] / GIB
        for name, value in asked.estimate.layouts.row(best).items():
            assert row[name] == value
        assert sum(row[f"time.{f.name}"] for f in fields(StepTime)) == pytest.approx(row["step_time_s"])


def test_every_column_says_what_it_is(tmp_path):
    found = swept(tmp_path, f"{BASE}\n[hardware]\naccelerator.memory_gib = [40, 80]\n")
    sweep = load_sweep(tmp_path / "sweep.toml")
    assert found.table.column_names == [c.name for c in columns(sweep.cases, None)]
    for field in found.table.schema:
        assert set(field.metadata) == {b"unit", b"meaning", b"axis"}
        assert field.metadata[b"meaning"]
    assert found.unit("accelerator.memory_gib") == "GiB"
    assert found.varied() == ["accelerator.memory_gib"]
