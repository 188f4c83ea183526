"""Fit the profiles without each origin of measured runs and predict those: the errors that intervals are made of.

    python -m pip install '.[calibrate]'
    python benchmarks/cross_validate.py --output planner/validation/held_out.csv

An origin is one publication: all its sets are left out together. Two sets stand alone, for no other tells what they do:
`vtrain-single-h1024`, whose steps the host's launches bound, and `megatron-bridge-gb300`, the only one on its GPUs.
Each is predicted in parts by fits without the part: five at random, and one a model.
`--by-source` leaves out one set at a time instead. Prints the errors on every set, then of all
together the mean rank correlation and the order of pairs (`benchmarks/residuals.py`), and writes a line a run: what it
is like, the step time predicted by the fit that did not see it, and the measured one; beside it `unseen.csv`, the same
of runs that no fit uses. `--unseen` writes only these, where a profile changed that no fit touches.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from residuals import pairs_in_order

from planner.calibration.figures import Profiles
from planner.calibration.fit import Problem, fit_figures
from planner.calibration.identified import calibrate
from planner.calibration.parameters import PARAMETERS
from planner.calibration.selection import Fold, architecture_of, folds, origin_of, select
from planner.validation import MeasuredRun, Predictions, predict, read_runs, scores, shipped_files, unseen_files
from planner.validation.interval import ALONE, COLUMNS, likeness_of_runs
from planner.validation.predict import Models

ARCHITECTURES = ("ampere", "hopper", "blackwell-ultra")
PARTS = 5
PROFILES = Profiles()  # shipped ones, each loaded once


def at_random(runs: list[MeasuredRun]) -> list[str]:
    """One of five parts for each run."""
    part = np.random.default_rng(0).permutation(len(runs)) % PARTS
    return [f"part {k + 1} of {PARTS}" for k in part]


def by_model(runs: list[MeasuredRun]) -> list[str]:
    """The model of each run."""
    return [str(run["model"]) for run in runs]


PARTS_OF = {"vtrain-single-h1024": at_random, "megatron-bridge-gb300": by_model}


def with_parts(runs: list[MeasuredRun], key: Callable[[MeasuredRun], str]) -> list[Fold]:
    """What is left out together, without the sets that stand alone, and the parts of those."""
    out = []
    common = [r for r in runs if r["source"] not in ALONE]
    for fold in folds(common, key) if common else []:
        out.append(Fold(name=fold.name, rest=[r for r in runs if key(r) != fold.name], held=fold.held))
    for name in ALONE:
        alone = [r for r in runs if r["source"] == name]
        part = PARTS_OF[name](alone)
        for which in dict.fromkeys(part):
            held = [r for r, its in zip(alone, part, strict=True) if its == which]
            out.append(Fold(name=f"{name}, {which}", rest=[r for r in runs if r not in held], held=held))
    return out


def show_scores(predictions: Predictions) -> None:
    by_source, overall = scores(predictions)
    for name, s in [*by_source.items(), ("overall", overall)]:
        cells = [
            f"{key} {s[key]:.3f}" if isinstance(s[key], float) else f"{key} {s[key]}"
            for key in ("mape", "bias", "max_error", "rank_correlation", "regret", "oom_accuracy")
        ]
        print(f"  {name:32s} {s['timed_rows']:5d}  " + "  ".join(cells))


def unseen_lines(p: Predictions) -> list[list[str]]:
    """A line a timed run of `measured_runs/unseen/`, predicted by the shipped profiles, which none was fitted to."""
    like, models, out = likeness_of_runs(p.runs), Models(), []
    for i, run in enumerate(p.runs):
        if not p.ok[i]:
            continue
        experts = models.models[models.of(run)].num_experts > 0
        numbers = [*like[i], p.step_time_s[i], p.measured_s[i], experts]
        out.append([run["source"], run["run"], architecture_of(run, PROFILES), *(f"{x:.6g}" for x in numbers)])
    return out


def fits_lines(p: Predictions) -> list[tuple[str, int, int, int]]:
    """Each architecture's runs, those of which it is predicted right whether they fit, and those that did not."""
    name = np.array([architecture_of(run, PROFILES) for run in p.runs])
    columns = (np.ones(len(name)), p.fits == p.ok, ~p.ok)
    return [(str(a), *(int(c[name == a].sum()) for c in columns)) for a in sorted(set(name))]


def write(path: Path, lines: list[list[str]]) -> None:
    """A CSV file of errors."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows([COLUMNS, *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--unseen", action="store_true", help="fit nothing: write `unseen.csv` beside the output alone")
    parser.add_argument("--by-source", action="store_true")
    parser.add_argument("--max-evaluations", type=int, default=12)
    args = parser.parse_args()
    unseen = predict([run for path in unseen_files() for run in read_runs(path)])
    write(args.output.with_name("unseen.csv"), unseen_lines(unseen))
    if args.unseen:
        return
    everything = [run for path in shipped_files() for run in read_runs(path)]
    lines, held_out_s = [], {}
    for architecture in ARCHITECTURES:
        chosen = select(everything, architecture)
        _, figures = chosen.problem()
        key = (lambda run: str(run["source"])) if args.by_source else origin_of
        for fold in with_parts(chosen.runs, key):
            rest = Problem(fold.rest, chosen.base)
            if architecture in PARAMETERS:
                # Also those that the rest doesn't tell: the shipped value would give away what is left out.
                fit = fit_figures(rest, figures, args.max_evaluations)
            else:  # six runs for the general list of figures: those alone that the rest tells
                fit = calibrate(rest, figures, args.max_evaluations).fit
            p = fit.predict(fold.held)
            print(f"{architecture} without {fold.name}", flush=True)
            show_scores(p)
            like = likeness_of_runs(fold.held)
            for i in np.flatnonzero(np.isfinite(p.step_time_s) & np.isfinite(p.measured_s) & p.ok):
                times = [p.step_time_s[i], p.measured_s[i]]
                run = fold.held[i]
                held_out_s[id(run)] = p.step_time_s[i]
                lines.append([run["source"], run["run"], architecture, *(f"{x:.6g}" for x in [*like[i], *times, 0])])
    write(args.output, sorted(lines))
    p = predict(everything)
    right = fits_lines(p)
    right += [line for line in fits_lines(unseen) if line[0] not in {name for name, *_ in right}]
    with args.output.with_name("fits.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows([("architecture", "runs", "right", "failed"), *sorted(right)])
    whole = replace(p, step_time_s=np.array([held_out_s.get(id(run), np.nan) for run in everything]))
    overall = scores(whole)[1]
    print(f"all held out: mape {overall['mape']:.3f}, mean rank correlation {overall['rank_correlation']:.3f}")
    pairs_in_order(whole, np.isfinite(whole.step_time_s))
    print(f"{len(lines)} runs in {args.output}")


if __name__ == "__main__":
    main()
