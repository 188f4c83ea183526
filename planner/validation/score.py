"""How predictions are scored against measurements; definitions in the package's README and `validate --help`.

And predictions as CSV text, a row a run.
"""

import csv
import io
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.base.units import GIB
from planner.validation.predict import Predictions


def _ranks(x: Array) -> Array:
    """Ranks from 0, ties sharing their average."""
    _, inverse, count = np.unique(x, return_inverse=True, return_counts=True)
    before = np.cumsum(count) - count
    return np.asarray((before + (count - 1) / 2.0)[inverse])


def rank_correlation(a: Array, b: Array) -> float | None:
    """Spearman's correlation; None with fewer than two rows or a constant side."""
    if len(a) < 2:
        return None
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / size if size > 0 else None


def _regret(predicted: Array, measured: Array, fits: Any, ok: Any) -> float | str | None:
    """Measured time of the pick over the best's, less one; 'failed' where the pick ran out of memory.

    Runs of one layout are predicted alike: the pick is any of them, and their mean counts.
    """
    candidates = fits & (np.isfinite(measured) | ~ok)
    if not np.any(np.isfinite(measured)):
        return None
    if not np.any(candidates):
        return "failed"
    rows = np.flatnonzero(candidates)
    pick = rows[predicted[rows] == predicted[rows].min()]
    if not np.all(ok[pick]):
        return "failed"
    return float(measured[pick].mean() / np.nanmin(measured) - 1.0)


def score(
    predicted: Array, measured: Array, fits: Any, ok: Any, memory: Array, memory_measured: Array
) -> dict[str, Any]:
    """The scores of one source's rows; arrays of shape (rows,), NaN where nothing was measured.

    predicted, measured: step times (or what the source gives instead, as time); fits, ok: predicted and measured
    outcome; memory, memory_measured: peak bytes.
    """
    timed = np.isfinite(measured) & ok
    error = predicted[timed] / measured[timed] - 1.0
    with_memory = np.isfinite(memory_measured)
    memory_error = memory[with_memory] / memory_measured[with_memory] - 1.0

    def mean(values: Array) -> float | None:
        return float(np.mean(values)) if len(values) else None

    return {
        "rows": len(predicted),
        "timed_rows": int(timed.sum()),
        "mape": mean(np.abs(error)),
        "bias": mean(error),
        "max_error": float(np.max(np.abs(error))) if len(error) else None,
        "rank_correlation": rank_correlation(predicted[timed], measured[timed]),
        "regret": _regret(predicted, np.where(ok, measured, np.nan), fits, ok),
        "oom_accuracy": mean((fits == ok).astype(np.float64)),
        "oom_missed": int(np.sum(fits & ~ok)),
        "oom_false": int(np.sum(~fits & ok)),
        "memory_rows": int(with_memory.sum()),
        "memory_mape": mean(np.abs(memory_error)),
    }


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
