"""Fit the profiles without each origin of measured runs and predict those: the errors that intervals are made of.

    python -m pip install '.[calibrate]'
    python benchmarks/cross_validate.py --output planner/validation/held_out.csv

An origin is one publication: all its sets are left out together. One set alone has steps that the host's launches bound
(`vtrain-single-h1024`; without it nothing identifies their times): it is predicted in five parts, each by a fit
without that part. `--by-source` leaves out one set at a time instead. Prints the errors on every set, then of all
together the mean rank correlation and the order of pairs (`benchmarks/residuals.py`), and writes a line a run: what it
is like, the step time predicted by the fit that did not see it, and the measured one; beside it `unseen.csv`, the same
of runs that no fit uses.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
from residuals import pairs_in_order

from planner.calibration.fit import Problem, fit_figures
from planner.calibration.selection import Fold, folds, origin_of, select
from planner.hardware import load_cluster
from planner.validation import Predictions, Run, predict, read_runs, scores, shipped_files
from planner.validation.interval import COLUMNS, likeness_of_runs
from planner.validation.predict import Models

ARCHITECTURES = ("ampere", "hopper")
ALONE, PARTS = "vtrain-single", 5


def with_parts(runs: list[Run], together: list[Fold]) -> list[Fold]:
    """What is left out together, without the set that stands alone, and the parts of that."""
    alone = [r for r in runs if r["source"].startswith(ALONE)]
    out = []
    for fold in together:
        held = [r for r in fold.held if not r["source"].startswith(ALONE)]
        if held:
            out.append(Fold(name=fold.name, rest=fold.rest, held=held))
    part = np.random.default_rng(0).permutation(len(alone)) % PARTS
    for k in range(PARTS if alone else 0):
        held = [r for r, p in zip(alone, part, strict=True) if p == k]
        rest = [r for r in runs if r not in held]
        out.append(Fold(name=f"{ALONE}, part {k + 1} of {PARTS}", rest=rest, held=held))
    return out


def show_scores(predictions: Predictions) -> None:
    by_source, overall = scores(predictions)
    for name, s in [*by_source.items(), ("overall", overall)]:
        cells = [
            f"{key} {s[key]:.3f}" if isinstance(s[key], float) else f"{key} {s[key]}"
            for key in ("mape", "bias", "max_error", "rank_correlation", "regret", "oom_accuracy")
        ]
        print(f"  {name:32s} {s['timed_rows']:5d}  " + "  ".join(cells))


def architecture_of(run: Run) -> str:
    """The architecture of the accelerators that a run was measured on."""
    return load_cluster(run["cluster"]).accelerator.efficiency.name


def unseen_lines() -> list[list[str]]:
    """A line a run of `measured_runs/unseen/`, predicted by the shipped profiles, which no such run has touched."""
    runs = [run for path in sorted(shipped_files()[0].parent.glob("unseen/*.csv")) for run in read_runs(path)]
    p, like, models, out = predict(runs), likeness_of_runs(runs), Models(), []
    for i, run in enumerate(runs):
        experts = models.models[models.of(run)].num_experts > 0
        numbers = [*like[i], p.step_time_s[i], p.measured_s[i], experts]
        out.append([run["source"], run["run"], architecture_of(run), *(f"{x:.6g}" for x in numbers)])
    return out


def write(path: Path, lines: list[list[str]]) -> None:
    """A CSV file of errors."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows([COLUMNS, *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--by-source", action="store_true")
    parser.add_argument("--max-evaluations", type=int, default=12)
    args = parser.parse_args()
    everything = [run for path in shipped_files() for run in read_runs(path)]
    lines, held_out_s = [], {}
    for architecture in ARCHITECTURES:
        chosen = select(everything, architecture)
        _, figures = chosen.problem()
        together = folds(chosen.runs, (lambda run: str(run["source"])) if args.by_source else origin_of)
        for fold in with_parts(chosen.runs, together):
            # All figures, also those that the rest doesn't tell: the shipped value would give away what is left out.
            p = fit_figures(Problem(fold.rest, chosen.base), figures, args.max_evaluations).predict(fold.held)
            print(f"{architecture} without {fold.name}", flush=True)
            show_scores(p)
            like = likeness_of_runs(fold.held)
            for i in np.flatnonzero(np.isfinite(p.step_time_s) & np.isfinite(p.measured_s) & p.ok):
                times = [p.step_time_s[i], p.measured_s[i]]
                run = fold.held[i]
                held_out_s[id(run)] = p.step_time_s[i]
                lines.append([run["source"], run["run"], architecture, *(f"{x:.6g}" for x in [*like[i], *times, 0])])
    write(args.output, sorted(lines))
    write(args.output.with_name("unseen.csv"), unseen_lines())
    p = predict(everything)
    name = np.array([architecture_of(run) for run in everything])
    right = [[a, int((name == a).sum()), int((p.fits == p.ok)[name == a].sum())] for a in sorted(set(name))]
    with args.output.with_name("fits.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows([("architecture", "runs", "right"), *right])
    whole = replace(p, step_time_s=np.array([held_out_s.get(id(run), np.nan) for run in everything]))
    overall = scores(whole)[1]
    print(f"all held out: mape {overall['mape']:.3f}, mean rank correlation {overall['rank_correlation']:.3f}")
    pairs_in_order(whole, np.isfinite(whole.step_time_s))
    print(f"{len(lines)} runs in {args.output}")


if __name__ == "__main__":
    main()
