"""Would Hagemann's runs be predicted better, were a reduction slower where memory is nearly full?

    python benchmarks/full_memory.py

Their trainer (github.com/Aleph-Alpha/scaling, core/optimizer/allreduce.py) sums gradients in buckets of 500 million,
each with 3 GB of new buffers: a full allocator may have to free and ask anew for every bucket. Added here to today's
predictions: so many seconds a billion parameters of a rank, where the predicted memory is over SHARE of what there is.
An hypothesis: no profile has it (docs/accuracy-findings.md says why).
"""

from __future__ import annotations

import numpy as np
from hagemann import estimate_of, timed_runs
from numpy.typing import NDArray

from planner.hardware import load_cluster
from planner.validation import MeasuredRun, rank_correlation

Array = NDArray[np.float64]
SHARE = 0.78
SECONDS = (0.0, 0.1, 0.2, 0.3)  # a billion parameters


def predicted(runs: list[MeasuredRun]) -> tuple[Array, Array]:
    """Seconds of each run's step, and billions of parameters of its rank where memory is nearly full, else 0."""
    e, cluster = estimate_of(runs), load_cluster(runs[0]["cluster"])
    full = e.memory.total_bytes > SHARE * cluster.accelerator.memory_bytes
    return e.step_time_s, full * e.memory.parameters_bytes / 2e9  # 16 bits each


def main() -> None:
    runs = timed_runs()
    print(f"{'mape, % | rank correlation | pick slower, %':42s} {'runs':>4s} {'full':>4s}", end="")
    print("".join(f"{k:>22.1f} s" for k in SECONDS))
    for source in dict.fromkeys(r["source"] for r in runs):
        ours = [r for r in runs if r["source"] == source]
        measured = np.array([r["step_time_s"] for r in ours])
        step_s, billions = predicted(ours)
        cells = []
        for k in SECONDS:
            times = step_s + k * billions
            slower = measured[np.argmin(times)] / measured.min() - 1.0
            error = np.abs(times / measured - 1.0).mean()
            cells.append(f"{100 * error:.1f} | {rank_correlation(times, measured):.3f} | {100 * slower:.1f}")
        print(f"{source:42s} {len(ours):4d} {np.count_nonzero(billions):4d}", *(f"{cell:>23s}" for cell in cells))


if __name__ == "__main__":
    main()
