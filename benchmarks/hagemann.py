"""The timed runs of Hagemann et al. 2023 and their estimates, for the benchmarks that try hypotheses on them."""

from __future__ import annotations

import numpy as np

from planner.hardware import load_cluster, load_framework
from planner.layouts import Layouts
from planner.models import stack
from planner.setup import Setup
from planner.step.estimate import Estimate, estimate
from planner.validation import MeasuredRun, read_runs, shipped_files
from planner.validation.defaults import candidates
from planner.validation.predict import Models
from planner.validation.runs import said

SOURCE = "hagemann"


def timed_runs() -> list[MeasuredRun]:
    """Those that ran and say how long a step took."""
    runs = [r for path in shipped_files() for r in read_runs(path) if r["source"].startswith(SOURCE)]
    return [r for r in runs if r["outcome"] == "ok" and r["step_time_s"]]


def estimate_of(runs: list[MeasuredRun], parts: int = 1) -> Estimate:
    """The estimate of each run's layout with its global batch, or with one of so many equal parts of it."""
    framework = load_framework(said(runs[0], "framework"))
    made = Models()
    index = np.array([made.of(r) for r in runs])
    rows = [candidates(r, made.models[i], framework)[0] for r, i in zip(runs, index, strict=True)]
    layouts = Layouts.of_rows([row | {"global_batch": row["global_batch"] // parts} for row in rows])
    return estimate(Setup(stack(made.models, index), load_cluster(runs[0]["cluster"]), framework), layouts)
