"""How much worse a run is predicted that is stated by the columns of its table alone.

    python benchmarks/columns_alone.py            # half a minute; --sets: each set, those first that lose most

Of runs in the repository `measured_runs/software.toml` says more than their columns: what travels beside compute, whose
memory was measured, which embeddings are tied. Of a table that nobody here has seen it says nothing, and what the
framework does unless told stands in (`planner/validation/defaults.py`). The unseen runs are predicted with all of it,
and with nothing but columns, framework and cluster. By kind: the mean over sets of the mean |predicted / measured - 1|,
the mean of predicted / measured - 1, and the share of runs in the interval of 80 % made without their publication; of
all sets, the error of the peak memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from planner.validation import MeasuredRun, predict, read_runs, unseen_files
from planner.validation import runs as tables
from planner.validation.errors import TRAITS, likeness_of_runs
from planner.validation.interval import intervals

KEPT = ("framework", "cluster")
KINDS = {"dense": ("dense", "hybrid"), "mixtures": ("experts",)}
Numbers = NDArray[np.float64]


def by_set(runs: list[MeasuredRun], values: Numbers, rows: NDArray[np.bool_]) -> dict[str, float]:
    """The mean of some rows' values in each set."""
    source = np.array([run["source"] for run in runs])
    return {str(name): float(values[rows & (source == name)].mean()) for name in np.unique(source[rows])}


def mean(values: Iterable[float]) -> float:
    """In per cent."""
    return 100 * float(np.mean([*values]))


def report(runs: list[MeasuredRun], kind: NDArray[np.str_]) -> dict[str, float]:
    """Prints what predictions of the runs are off by; the mean error of each set."""
    p = predict(runs)
    low, high = intervals(p).T
    with np.errstate(invalid="ignore"):
        error, inside = p.step_time_s / p.measured_s - 1, (low <= p.measured_s) & (p.measured_s <= high)
        memory = np.abs(p.memory_bytes / p.measured_memory_bytes - 1)
    timed, sets = np.isfinite(error) & p.ok, dict[str, float]()
    for name, kinds in KINDS.items():
        rows = timed & np.isin(kind, kinds)
        of = by_set(runs, np.abs(error), rows)
        sets |= {f"{name} {source}": off for source, off in of.items()}
        bias = mean(by_set(runs, error, rows).values())
        print(
            f"  {name}: {mean(of.values()):.1f} % off in {len(of)} sets, {bias:+.1f}; {mean(inside[rows]):.0f} % held"
        )
    of = by_set(runs, memory, np.isfinite(memory))
    print(f"  memory: {mean(of.values()):.1f} % off in {len(of)} sets")
    return sets


def main() -> None:
    """With all that is said, then by columns alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", action="store_true")
    args = parser.parse_args()
    runs = [run for path in unseen_files() for run in read_runs(path)]
    kind = likeness_of_runs(runs)[1][:, TRAITS.index("kind")]
    said = tables.software()
    print("with all that is said:")
    full = report(runs, kind)
    print("by columns alone:")
    tables._said.cache_clear()
    with patch.object(tables, "software", lambda: {of: said[of] if of in KEPT else {} for of in said}):
        alone = report(runs, kind)
    for name in sorted(full, key=lambda name: full[name] - alone[name]) if args.sets else ():
        print(f"{100 * full[name]:7.1f} {100 * alone[name]:7.1f}  {name}")


if __name__ == "__main__":
    main()
