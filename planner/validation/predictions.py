"""Predictions as CSV text, a row a run."""

from __future__ import annotations

import csv
import io

import numpy as np

from planner.base.arrays import Array
from planner.base.units import GIB
from planner.validation.predict import Predictions

HEADER = (
    "source", "run", "predicted_step_time_s", "measured_step_time_s", "predicted_memory_gib", "measured_memory_gib",
    "predicted_outcome", "measured_outcome", "reason", "low_s", "high_s",
)  # fmt: skip


def predictions_csv(p: Predictions, ends: Array) -> str:
    """A header and a row a run; cells are empty where nothing was predicted or measured.

    ends: of the intervals, low_s and high_s, shape (rows, 2).
    """

    def cell(value: float) -> str:
        return f"{value:.6g}" if np.isfinite(value) else ""

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADER)
    for i, run in enumerate(p.runs):
        predicted = "" if p.reasons[i] else ("ok" if p.fits[i] else "oom")
        times = [cell(p.step_time_s[i]), cell(p.measured_s[i])]
        memory = [cell(p.memory_bytes[i] / GIB), cell(p.measured_memory_bytes[i] / GIB)]
        rest = [predicted, run["outcome"], p.reasons[i], *map(cell, ends[i])]
        writer.writerow([run["source"], run["run"], *times, *memory, *rest])
    return out.getvalue()
