"""Do some measured runs drain their pipeline several times a step?

    python benchmarks/drains.py

Hagemann et al. 2023 say a global batch of 2,048 sequences for runs with 2,048 tokens. Predicted here: each set and
kernel's runs with pipeline stages, were the step's micro-batches sent through the pipeline in k parts that drain it,
with one reduction of gradients and one update at the end. An hypothesis about the runs: no profile has it.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hagemann import estimate_of, timed_runs
from numpy.typing import NDArray

from planner.validation import MeasuredRun, rank_correlation

Array = NDArray[np.float64]
PARTS = (1, 2, 4, 8, 16)


def step_s(runs: list[MeasuredRun], parts: int) -> Array:
    """Seconds of each run's step in so many parts; NaN where a part has no whole micro-batch."""
    whole = [r["global_batch"] % (parts * r["dp"] * r["micro_batch"]) == 0 for r in runs]
    kept = [r for r, w in zip(runs, whole, strict=True) if w]

    def parts_of(share: int) -> tuple[Array, Array]:
        e = estimate_of(kept, share)
        once = e.time.data_comm_s + e.time.optimizer_s
        return e.step_time_s - once, once

    out = np.full(len(runs), np.nan)
    out[np.array(whole)] = parts * parts_of(parts)[0] + parts_of(1)[1]
    return out


def main() -> None:
    runs = timed_runs()
    measured = np.array([r["step_time_s"] for r in runs])
    drained = {k: step_s(runs, k) for k in PARTS}
    groups = defaultdict(list)
    for i, r in enumerate(runs):
        if r["pp"] > 1:
            groups[r["source"], r["attention"]].append(i)
    print(f"{'mape, % (bias), of runs with stages':42s} {'runs':>4s}", *(f"{k:>13d} x" for k in PARTS))
    for (source, kernel), rows in groups.items():
        cells = []
        for k in PARTS:
            error = drained[k][rows] / measured[rows] - 1.0
            all_whole = bool(np.all(np.isfinite(error)))
            cells.append(f"{100 * np.abs(error).mean():.1f} ({100 * error.mean():+.1f})" if all_whole else "-")
        print(f"{source + ' ' + kernel:42s} {len(rows):4d}", *(f"{cell:>15s}" for cell in cells))
    print("\nrank correlation of a whole set, were its flash2 runs with stages drained so often")
    for source in dict.fromkeys(r["source"] for r in runs):
        rows = np.array([i for i, r in enumerate(runs) if r["source"] == source])
        moved = np.array([runs[i]["attention"] == "flash2" and runs[i]["pp"] > 1 for i in rows])
        ranks = []
        for k in PARTS:
            times = np.where(moved, drained[k][rows], drained[1][rows])
            ranks.append(f"{rank_correlation(times, measured[rows]):.3f}" if np.all(np.isfinite(times)) else "-")
        print(f"{source:42s} {len(rows):4d}", *(f"{cell:>15s}" for cell in ranks))


if __name__ == "__main__":
    main()
