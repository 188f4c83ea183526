"""Fit the profiles without each origin of measured runs and predict those: the errors that intervals are made of.

    python -m pip install '.[calibrate]'
    python benchmarks/cross_validate.py --output planner/validation/held_out.csv

An origin is one publication: all its sets are left out together. One set alone has steps that the host's launches bound
(`vtrain-single-h1024`; without it nothing identifies their times): it is predicted in five parts, each by a fit
without that part. Prints the errors on every set, and writes a line a run: what it is like, the step time predicted by
the fit that did not see it, and the measured one.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from calibrate import SETS, fit, show_scores

from planner.hardware import load_cluster
from planner.validation import Run, predict, read_runs, shipped_files
from planner.validation.interval import COLUMNS, likeness_of_runs

ORIGINS = {
    "dgx-a100": ("hagemann", "bigscience", "korthikanti", "mosaic", "narayanan", "vtrain"),
    "dgx-h100": ("megatron-core", "nanotron", "dgxc", "mosaic"),
}
ALONE, PARTS = "vtrain-single", 5


def folds(runs: list[Run], origins: tuple[str, ...]) -> list[tuple[str, list[Run], list[Run]]]:
    """What is left out together: its name, the runs to fit, those to predict."""
    out = []
    for origin in origins:
        rest = [r for r in runs if not r["source"].startswith(origin)]
        held = [r for r in runs if r["source"].startswith(origin) and not r["source"].startswith(ALONE)]
        out.append((origin, rest, held))
    alone = [r for r in runs if r["source"].startswith(ALONE)]
    part = np.random.default_rng(0).permutation(len(alone)) % PARTS
    for k in range(PARTS if alone else 0):
        held = [r for r, p in zip(alone, part, strict=True) if p == k]
        out.append((f"{ALONE}, part {k + 1} of {PARTS}", [r for r in runs if r not in held], held))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--max-evaluations", type=int, default=12)
    args = parser.parse_args()
    everything = [run for path in shipped_files() for run in read_runs(path)]
    lines = []
    for cluster, origins in ORIGINS.items():
        runs = [r for r in everything if r["cluster"].startswith(cluster)]
        for name, rest, held in folds(runs, origins):
            p = fit(rest, SETS[cluster], args.max_evaluations).predict(held)
            print(f"{cluster} without {name}", flush=True)
            show_scores(p)
            like = likeness_of_runs(held)
            for i in np.flatnonzero(np.isfinite(p.step_time_s) & np.isfinite(p.measured_s) & p.ok):
                times = [p.step_time_s[i], p.measured_s[i]]
                architecture = load_cluster(held[i]["cluster"]).accelerator.efficiency.name
                lines.append(
                    [held[i]["source"], held[i]["run"], architecture, *(f"{x:.6g}" for x in [*like[i], *times])]
                )
    with args.output.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows([COLUMNS, *sorted(lines)])
    p = predict(everything)
    name = np.array([load_cluster(r["cluster"]).accelerator.efficiency.name for r in everything])
    right = [[a, int((name == a).sum()), int((p.fits == p.ok)[name == a].sum())] for a in sorted(set(name))]
    with args.output.with_name("fits.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows([("architecture", "runs", "right"), *right])
    print(f"{len(lines)} runs in {args.output}")


if __name__ == "__main__":
    main()
