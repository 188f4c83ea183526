"""How often the layout that is predicted to be faster is faster: pairs of measured runs, by their predicted difference.

    python benchmarks/near_pairs.py

A pair is of one publication's set, one model, batch, sequence, precision and kernel on as many GPUs; predicted by fits
without the publication. `equal`: the predicted difference below which the odds that the faster is faster are less than
two to one, by a logistic curve through the pairs that are predicted near each other (a group of n pairs counts as the
root of n). Of all pairs within 5 % it is `EQUAL` of `planner/search/found.py`. Of pairs within 10 %, by how the two
layouts differ, it is `LIKE`, `OTHER_DEGREES` and `OTHER_KINDS` of `planner/search/pick.py`.
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
RANKS, WIDER = ("tp", "pp", "cp"), 0.1
DIFFER = ("with the same degrees", "with other degrees", "with another kind of ranks")
ERRORS = [Path(errors.__file__).with_name(name) for name in ("held_out.csv", "unseen.csv")]


def differ(one: tuple[float, ...], other: tuple[float, ...]) -> int:
    """How two layouts differ, the place in `DIFFER`; their degrees are those of `RANKS`."""
    return 0 if one == other else 1 + any((a > 1) != (b > 1) for a, b in zip(one, other, strict=True))


def pairs() -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Of each pair its group, the logarithms of the ratio of steps predicted and measured, and how its two differ."""
    cells = {
        (run["source"], run["run"]): run for path in [*shipped_files(), *unseen_files()] for run in read_runs(path)
    }
    groups: dict[tuple[Any, ...], list[tuple[float, float, tuple[float, ...]]]] = defaultdict(list)
    for path in ERRORS:
        for row in csv.DictReader(path.open(encoding="utf-8")):
            run = cells[row["source"], row["run"]]
            steps = [float(np.log(float(row[name]))) for name in ("held_out_step_time_s", "measured_step_time_s")]
            groups[tuple(run[c] for c in ALIKE)].append((*steps, tuple(float(run[name] or 1) for name in RANKS)))
    rows = [
        (i, a[0] - b[0], a[1] - b[1], differ(a[2], b[2]))
        for i, g in enumerate(groups.values())
        for a, b in combinations(g, 2)
    ]
    group, predicted, measured, how = np.array(rows).T
    told = (predicted != 0) & (measured != 0)
    return group[told].astype(np.int64), predicted[told], measured[told], how[told].astype(np.int64)


def equal_within(
    group: NDArray[np.int64], predicted: NDArray[np.float64], measured: NDArray[np.float64], near: float = CLOSE
) -> float:
    """The predicted difference at which the odds are two to one, of pairs that are predicted so near to each other."""
    close = np.abs(predicted) < near
    _, at, size = np.unique(group[close], return_inverse=True, return_counts=True)
    towards = np.abs(predicted[close]) * np.sign(predicted[close] * measured[close])
    scale = np.geomspace(0.003, 0.3, 400)
    likelihood = (-np.log1p(np.exp(-towards / scale[:, None])) * size[at] ** -0.5).sum(axis=1)
    return float(np.expm1(scale[likelihood.argmax()] * np.log(ODDS)))


def main() -> None:
    """Print a row for each band of predicted difference, and below which steps can't be told apart."""
    group, predicted, measured, how = pairs()
    right, size = predicted * measured > 0, np.abs(predicted)
    print("predicted difference   pairs   the faster is faster   median measured difference")
    for low, high in pairwise(BANDS):
        k = (size >= np.log1p(low)) & (size < np.log1p(high))
        middle = np.expm1(np.median(np.abs(measured[k])))
        print(f"{low:9.0%} to {high:4.0%} {k.sum():11,} {right[k].mean():18.0%} {middle:26.1%}")
    print(f"equal within {equal_within(group, predicted, measured):.2%}: odds of less than {ODDS:g} to 1")
    for i, name in enumerate(DIFFER):
        k = how == i
        print(f"  {equal_within(group[k], predicted[k], measured[k], WIDER):.2%} {name}, {k.sum():,} pairs")


if __name__ == "__main__":
    main()
