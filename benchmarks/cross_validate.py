"""Fit the profiles without each origin of measured runs and predict those: the errors that intervals are made of.

    python -m pip install '.[calibrate]'
    python benchmarks/cross_validate.py --output planner/validation/held_out.csv

An origin is one publication: all its sets are left out together. Two sets stand alone, for no other tells what they do:
`vtrain-single-h1024`, whose steps the host's launches bound, and `megatron-bridge-gb300`, the only one on its GPUs.
Each is predicted in parts by fits without the part: five at random, and one a model.
`--by-source` leaves out one set at a time instead. Prints the errors on every set, then of all
together the mean rank correlation and the order of pairs (`benchmarks/residuals.py`), and writes a line a run: what it
is like, the step time predicted by the fit that did not see it, and the measured one; beside it `unseen.csv`, the same
of runs that no fit uses, `spread.csv`: how much errors grow where something of a run was never seen (`strangers`),
with how wide a new publication's errors are (`first`; by the output before: run --unseen once more after new fits);
and `fits.csv`: of how many it is predicted right whether they fit, and the GPUs that runs were on. `--unseen` writes
only these three, where a profile changed that no fit touches or unseen runs were added.
`--architecture` fits one architecture's runs and keeps the output's lines of others.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import NormalDist

import numpy as np
from folds import Fold, folds, origin_of
from numpy.typing import NDArray
from residuals import pairs_in_order

from planner.base.arrays import Array
from planner.calibration.figures import Profiles, fitted_parameters
from planner.calibration.fit import Problem, fit_figures
from planner.calibration.identified import calibrate
from planner.calibration.selection import architecture_of, select
from planner.hardware import Cluster, Efficiency, Link, load_cluster, load_framework
from planner.hardware.framework_runs import Unstated
from planner.validation import MeasuredRun, Predictions, predict, read_runs, scores, shipped_files, unseen_files
from planner.validation.errors import COLUMNS, TRAITS, HeldOut, all_errors, columns_in, errors_in, likeness_of_runs
from planner.validation.interval import coverage, spreads
from planner.validation.runs import cluster_name

ARCHITECTURES = ("ampere", "hopper", "blackwell-ultra")
PARTS = 5
ALONE = ("vtrain-single-h1024", "megatron-bridge-gb300")
WITHIN = 2 / 3
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


def error_lines(runs: list[MeasuredRun], p: Predictions) -> list[list[str]]:
    """A line for each of some runs that was timed: what it is like, what it was predicted to take, what it took."""
    like, traits = likeness_of_runs(runs)
    out = []
    for i in np.flatnonzero(timed(p)):
        numbers = [*like[i], p.step_time_s[i], p.measured_s[i]]
        out.append([runs[i]["source"], runs[i]["run"], *traits[i], *(f"{x:.6g}" for x in numbers)])
    return out


def timed(p: Predictions) -> np.ndarray:
    """Which runs have both times."""
    return np.isfinite(p.step_time_s) & np.isfinite(p.measured_s) & p.ok


def strangers(runs: list[MeasuredRun]) -> dict[str, Predictions]:
    """The runs as they would be predicted had a trait of theirs never been seen, by trait: with what stands in for it.

    architecture: shares of peak as Hopper's, Hopper's own as Ampere's, which is how uncalibrated profiles came about.
    stack: Megatron-Core for what isn't Megatron's, else FSDP. precision: 16 bits reach fp8's share of peak and the
    other way round. link: all reach half of what they do, as PCIe did of what was assumed (A100-PCIe, SimuMax).
    """
    hopper, ampere = (load_cluster(name).accelerator.efficiency for name in ("dgx-h100", "dgx-a100-80gb"))

    def as_other(e: Efficiency) -> Efficiency:
        other = ampere if e.name == hopper.name else hopper
        power = {"unit_power_w": e.unit_power_w, "power_exponent": e.power_exponent}
        return replace(other, **power, matrix_fraction={**e.matrix_fraction, **other.matrix_fraction})

    def as_precision(e: Efficiency) -> Efficiency:
        share = dict(e.matrix_fraction)
        if "fp8" in share:
            share["fp8"], share["bf16"] = share["bf16"], share["fp8"]
        return replace(e, matrix_fraction=share)

    def with_efficiency(change: Callable[[Efficiency], Efficiency]) -> Callable[[str], Cluster]:
        def load(name: str) -> Cluster:
            c = load_cluster(name)
            return replace(c, accelerator=replace(c.accelerator, efficiency=change(c.accelerator.efficiency)))

        return cache(load)

    def half(link: Link) -> Link:
        return replace(link, fraction=link.fraction / 2, send_fraction=link.send_fraction / 2)

    @cache
    def slow_links(name: str) -> Cluster:
        c = load_cluster(name)
        return replace(c, node_link=half(c.node_link), network=half(c.network))

    # Figures of the other stack alone: what a run leaves unsaid is the same of both.
    alike = Unstated(zero=(1, 3))
    core, fsdp = (replace(load_framework(name), unstated=alike) for name in ("megatron-core", "fsdp"))
    return {
        "architecture": predict(runs, with_efficiency(as_other)),
        "stack": predict(runs, framework_of=lambda name: fsdp if load_framework(name).stack == core.stack else core),
        "precision": predict(runs, with_efficiency(as_precision)),
        "link": predict(runs, slow_links),
    }


def spread_lines(runs: list[MeasuredRun]) -> list[list[str]]:
    """Standard deviations that a trait never seen adds to errors, of dense models and of those with experts.

    They are of how far predictions move without the trait, in logarithms. Two thirds of a normal distribution are
    within 0.97 standard deviations, whatever a few wild ones do. Runs of a set count as the root of their number. A
    hybrid's is what hybrids' own errors are beyond dense models'. Last the deviation of all runs' errors as they are.
    """
    own, others = predict(runs), strangers(runs)
    kind = likeness_of_runs(runs)[1][:, TRAITS.index("kind")]
    source = np.array([run["source"] for run in runs])

    def deviation(moved: np.ndarray, rows: np.ndarray) -> float:
        rows = rows & timed(own)
        _, at, size = np.unique(source[rows], return_inverse=True, return_counts=True)
        error, weight = np.abs(moved[rows]), size[at] ** -0.5
        order = np.argsort(error)
        middle = np.cumsum(weight[order]) - 0.5 * weight[order]
        return float(np.interp(WITHIN, middle / weight.sum(), error[order]) / NormalDist().inv_cdf((1 + WITHIN) / 2))

    pools, error = (kind != "experts", kind == "experts"), np.log(own.measured_s / own.step_time_s)
    lines = []
    for name, p in others.items():
        moved = np.log(p.step_time_s / own.step_time_s)
        lines.append([name, *(f"{deviation(moved, pool):.3f}" for pool in pools)])
    hybrids = max(deviation(error, kind == "hybrid") ** 2 - deviation(error, kind == "dense") ** 2, 0.0) ** 0.5
    lines.append(["kind", f"{hybrids:.3f}", "0"])
    return [*lines, ["publication", *(f"{deviation(error, pool):.3f}" for pool in pools)]]


def mean_of(groups: NDArray[np.str_], values: Array) -> float:
    """The mean of the groups' means."""
    of = np.unique(groups, return_inverse=True)[1]
    return float((np.bincount(of, values) / np.bincount(of)).mean())


def first_errors() -> HeldOut:
    """The errors of runs as they were first predicted."""
    return errors_in(columns_in(Path(__file__).with_name("first_predictions.csv").read_text()))


def first_line() -> list[str]:
    """How wide a new publication's errors are, of dense models and of those with experts.

    So wide that intervals of 80 % hold 80 % of first predictions, every publication alike (by halving,
    rounded up to 0.001).
    """
    first = first_errors()
    widths = [_held_width(first.where(first.experts == e)) for e in (False, True)]
    return ["first", *(f"{np.ceil(1e3 * width) / 1e3:.3f}" for width in widths)]


def _held_width(judged: HeldOut, share: float = 0.8) -> float:
    low, high = 0.0, 1.0
    while high - low > 1e-5:
        middle = (low + high) / 2.0
        inside = coverage(all_errors(), judged, share=share, first=middle)
        low, high = (middle, high) if mean_of(judged.publication, inside) < share else (low, middle)
    return high


def fits_lines(p: Predictions) -> list[tuple[str, int, int, int]]:
    """Each architecture's runs, those of which it is predicted right whether they fit, and those that did not."""
    name = np.array([architecture_of(run, PROFILES) for run in p.runs])
    columns = (np.ones(len(name)), p.fits == p.ok, ~p.ok)
    return [(str(a), *(int(c[name == a].sum()) for c in columns)) for a in sorted(set(name))]


def measured_gpus(runs: list[MeasuredRun]) -> dict[str, str]:
    """Of each architecture the GPUs on which runs were measured, those of most runs first."""
    gpu_of = cache(lambda name: load_cluster(name).accelerator)
    gpus = [gpu_of(cluster_name(run)) for run in runs]
    counts = Counter((gpu.efficiency.name, gpu.name) for gpu in gpus)
    out: dict[str, list[str]] = {}
    for architecture, name in sorted(counts, key=lambda pair: (-counts[pair], pair)):
        out.setdefault(architecture, []).append(name)
    return {architecture: " ".join(names) for architecture, names in out.items()}


def kept(path: Path, architecture: str) -> list[list[str]]:
    """The lines of an output of runs on other architectures."""
    with path.open(newline="", encoding="utf-8") as stream:
        return [line for line in list(csv.reader(stream))[1:] if line[COLUMNS.index("architecture")] != architecture]


def write(path: Path, lines: list[list[str]], columns: tuple[str, ...] = COLUMNS) -> None:
    """A CSV file, of errors unless said."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows([columns, *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--unseen", action="store_true", help="fit nothing: write what is beside the output alone")
    parser.add_argument("--by-source", action="store_true")
    parser.add_argument("--architecture", choices=ARCHITECTURES, help="fit this one's runs; keep the output's others")
    parser.add_argument("--max-evaluations", type=int, default=12)
    args = parser.parse_args()
    unseen = predict([run for path in unseen_files() for run in read_runs(path)])
    everything = [run for path in shipped_files() for run in read_runs(path)]
    of_unseen = error_lines(unseen.runs, unseen)
    write(args.output.with_name("unseen.csv"), of_unseen)
    spread, columns = spread_lines(everything + unseen.runs), ("trait", "dense", "experts")
    write(args.output.with_name("spread.csv"), [*spread, ["first", "0", "0"]], columns)
    for of_files in (all_errors, spreads):  # the errors and spreads of files that were written here
        of_files.cache_clear()
    write(args.output.with_name("spread.csv"), [*spread, first_line()], columns)
    p = predict(everything)
    right = fits_lines(p)
    right += [line for line in fits_lines(unseen) if line[0] not in {name for name, *_ in right}]
    gpus = measured_gpus(everything + unseen.runs)
    right = [[name, *map(str, counts), gpus[name]] for name, *counts in sorted(right)]
    write(args.output.with_name("fits.csv"), right, ("architecture", "runs", "right", "failed", "gpus"))
    if args.unseen:
        return
    lines = kept(args.output, args.architecture) if args.architecture else []
    of_line = {(line[0], line[1]): float(line[-2]) for line in lines}
    held_out_s = {id(r): of_line[r["source"], r["run"]] for r in everything if (r["source"], r["run"]) in of_line}
    for architecture in ARCHITECTURES if args.architecture is None else (args.architecture,):
        chosen = select(everything, architecture)
        problem, figures = chosen.problem()
        if architecture not in fitted_parameters():  # six runs for the general list: what all of them tell is fitted
            figures = list(calibrate(problem, figures, args.max_evaluations).fit.figures)
        key = (lambda run: str(run["source"])) if args.by_source else origin_of
        for fold in with_parts(chosen.runs, key):
            rest = Problem(fold.rest, chosen.base)
            # Also figures that the rest doesn't tell: the shipped value would give away what is left out.
            fit = fit_figures(rest, figures, args.max_evaluations)
            held = fit.predict(fold.held)
            print(f"{architecture} without {fold.name}", flush=True)
            show_scores(held)
            lines += error_lines(fold.held, held)
            held_out_s |= {id(fold.held[i]): held.step_time_s[i] for i in np.flatnonzero(timed(held))}
    write(args.output, sorted(lines))
    whole = replace(p, step_time_s=np.array([held_out_s.get(id(run), np.nan) for run in everything]))
    overall = scores(whole)[1]
    print(f"all held out: mape {overall['mape']:.3f}, mean rank correlation {overall['rank_correlation']:.3f}")
    pairs_in_order(whole, np.isfinite(whole.step_time_s))
    print(f"{len(lines)} runs in {args.output}")


if __name__ == "__main__":
    main()
