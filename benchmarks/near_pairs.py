"""How often the layout that is predicted to be faster is faster: pairs of measured runs, by their predicted difference.

    python benchmarks/near_pairs.py

A pair is of one publication's set, one model, batch, sequence, precision and kernel on as many GPUs.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from planner.validation.accuracy import shipped_files, unseen_files
from planner.validation.predict import predict
from planner.validation.runs import read_runs

ALIKE = ("source", "model", "layers", "hidden", "n_gpus", "global_batch", "seq_len", "precision", "attention")
BANDS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)


def main() -> None:
    """Print a row for each band of predicted difference."""
    runs = [run for path in [*shipped_files(), *unseen_files()] for run in read_runs(path)]
    p = predict(runs)
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for i in np.flatnonzero(np.isfinite(p.step_time_s) & np.isfinite(p.measured_s) & p.ok):
        groups[tuple(runs[i][name] for name in ALIKE)].append(int(i))
    pairs = np.array([pair for group in groups.values() for pair in combinations(group, 2)])
    predicted, measured = (np.log(t[pairs[:, 0]] / t[pairs[:, 1]]) for t in (p.step_time_s, p.measured_s))
    right, size = predicted * measured > 0, np.abs(predicted)
    print("predicted difference   pairs   the faster is faster   median measured difference")
    for low, high in pairwise(BANDS):
        k = (size >= np.log1p(low)) & (size < np.log1p(high)) & (size > 0)
        middle = np.expm1(np.median(np.abs(measured[k])))
        print(f"{low:9.0%} to {high:4.0%} {k.sum():11,} {right[k].mean():18.0%} {middle:26.1%}")


if __name__ == "__main__":
    main()
