"""How often the layout that is predicted to be faster is faster: pairs of measured runs, by their predicted difference.

    python benchmarks/near_pairs.py

A pair is of one publication's set, one model, batch, sequence, precision and kernel on as many GPUs; predicted by fits
without the publication. `equal`: the predicted difference below which the odds that the faster is faster are less than
two to one, by a logistic curve through the pairs that are predicted within 5 % of each other (a group of n pairs counts
as the root of n). It is `EQUAL` of `planner/search/found.py`.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.validation import errors
from planner.validation.accuracy import shipped_files, unseen_files
from planner.validation.runs import read_runs

ALIKE = ("source", "model", "layers", "hidden", "n_gpus", "global_batch", "seq_len", "precision", "attention")
BANDS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
CLOSE, ODDS = 0.05, 2.0
ERRORS = [Path(errors.__file__).with_name(name) for name in ("held_out.csv", "unseen.csv")]


def pairs() -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Of each pair its group, and the logarithms of the ratio of steps predicted and measured."""
    cells = {
        (run["source"], run["run"]): run for path in [*shipped_files(), *unseen_files()] for run in read_runs(path)
    }
    groups: dict[tuple[Any, ...], list[tuple[float, ...]]] = defaultdict(list)
    for path in ERRORS:
        for row in csv.DictReader(path.open(encoding="utf-8")):
            run = cells[row["source"], row["run"]]
            steps = (float(row[name]) for name in ("held_out_step_time_s", "measured_step_time_s"))
            groups[tuple(run[c] for c in ALIKE)].append(tuple(np.log(s) for s in steps))
    rows = [(i, a[0] - b[0], a[1] - b[1]) for i, g in enumerate(groups.values()) for a, b in combinations(g, 2)]
    group, predicted, measured = np.array(rows).T
    told = (predicted != 0) & (measured != 0)
    return group[told].astype(np.int64), predicted[told], measured[told]


def equal_within(group: NDArray[np.int64], predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> float:
    """The predicted difference at which the odds are two to one."""
    close = np.abs(predicted) < CLOSE
    _, at, size = np.unique(group[close], return_inverse=True, return_counts=True)
    towards = np.abs(predicted[close]) * np.sign(predicted[close] * measured[close])
    scale = np.geomspace(0.003, 0.3, 400)
    likelihood = (-np.log1p(np.exp(-towards / scale[:, None])) * size[at] ** -0.5).sum(axis=1)
    return float(np.expm1(scale[likelihood.argmax()] * np.log(ODDS)))


def main() -> None:
    """Print a row for each band of predicted difference, and below which steps can't be told apart."""
    group, predicted, measured = pairs()
    right, size = predicted * measured > 0, np.abs(predicted)
    print("predicted difference   pairs   the faster is faster   median measured difference")
    for low, high in pairwise(BANDS):
        k = (size >= np.log1p(low)) & (size < np.log1p(high))
        middle = np.expm1(np.median(np.abs(measured[k])))
        print(f"{low:9.0%} to {high:4.0%} {k.sum():11,} {right[k].mean():18.0%} {middle:26.1%}")
    print(f"equal within {equal_within(group, predicted, measured):.2%}: odds of less than {ODDS:g} to 1")


if __name__ == "__main__":
    main()
