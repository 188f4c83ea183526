"""What the recommended layout loses on measured sweeps in which some layouts ran out of memory.

    python benchmarks/recommended_regret.py            # predicted by the shipped profiles
    python benchmarks/recommended_regret.py --held-out # by fits without the sweep's publication; minutes

A sweep is of one publication's set, one model, batch, sequence, precision and kernel on as many GPUs. Of its layouts
one is picked as a search does: it must fit with 95 %, and of those that can't be told apart from the fastest it is the
plainest (`planner.search.pick`). The chance of fitting is of a fit without the publication, always. `regret`: how much
longer the pick took than the best that ran; `of it caution`: what the best of those said to fit with 95 % took longer,
which no better prediction of steps could save. `best fits`: the chance that the best that ran is said to fit with.
`as likely`: of all sweeps' layouts with a chance within 0.1 of that one's, how many ran of how many.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
from folds import folds
from memory_errors import held_out, known_runs
from near_pairs import ALIKE

from planner.calibration.fit import Problem, fit_figures
from planner.calibration.selection import select
from planner.costs.memory.fit_chance import FIT_CHANCE
from planner.hardware import load_cluster, load_framework
from planner.layouts import Layouts
from planner.search.pick import plainest, told_apart, unusual
from planner.setup import Setup
from planner.validation import MeasuredRun, predict, read_runs, shipped_files
from planner.validation.defaults import candidates, framework_name
from planner.validation.predict import Models
from planner.validation.runs import cluster_name


def name_of(run: MeasuredRun) -> tuple[str, str]:
    """A run's own name."""
    return str(run["source"]), str(run["run"])


def held_out_steps(runs: list[MeasuredRun], publications: set[str]) -> dict[tuple[str, str], float]:
    """Steps of some publications' runs by fits that had not seen them."""
    out = {}
    for architecture in ("ampere", "hopper"):
        chosen = select(runs, architecture)
        if not any(run["source"].split("-")[0] in publications for run in chosen.runs):
            continue
        figures = chosen.problem()[1]
        for fold in folds(chosen.runs):
            if fold.held[0]["source"].split("-")[0] in publications:
                fit = fit_figures(Problem(fold.rest, chosen.base), figures, 12)
                steps = fit.predict(fold.held).step_time_s
                out.update({name_of(run): float(s) for run, s in zip(fold.held, steps, strict=True)})
    return out


def layouts_of(runs: list[MeasuredRun]) -> Layouts:
    """The layouts that runs state."""
    models, rows = Models(), []
    for run in runs:
        framework = load_framework(framework_name(run, load_cluster(cluster_name(run))))
        rows.append(candidates(run, models.models[models.of(run)], framework)[0])
    return Layouts.of_rows(rows)


def sweeps(runs: list[MeasuredRun]) -> dict[tuple[Any, ...], list[int]]:
    """Indices of the runs of each sweep in which some ran out of memory and two or more did not."""
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for i, run in enumerate(runs):
        groups[tuple(run[c] for c in ALIKE)].append(i)
    ran = {key: [runs[i]["outcome"] == "ok" for i in rows] for key, rows in groups.items()}
    return {key: rows for key, rows in groups.items() if not all(ran[key]) and sum(ran[key]) > 1}


def main() -> None:
    """Print a row a sweep, and the average."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held-out", action="store_true", help="predict steps by fits without the publication")
    args = parser.parse_args()
    runs = [run for path in shipped_files() for run in read_runs(path)]
    p, groups = predict(runs), sweeps(runs)
    known, chance = known_runs(), {}
    for its, chances in held_out(known, {str(key[0]).split("-")[0] for key in groups}):
        chance.update({name_of(known.runs[i]): float(chances[i]) for i in np.flatnonzero(its)})
    steps = held_out_steps(runs, {str(key[0]).split("-")[0] for key in groups}) if args.held_out else {}
    step = np.array([steps.get(name_of(run), s) for run, s in zip(runs, p.step_time_s, strict=True)])
    heads = f"{'sweep':44}  runs  out of memory  regret  of it caution  best fits   as likely  recommended"
    print(heads)
    every = np.array([i for rows in groups.values() for i in rows])
    said = np.array([chance[name_of(runs[i])] for i in every])
    regrets, cautions = [], []
    for key, rows in groups.items():
        ok, fits = p.ok[rows], np.array([chance[name_of(runs[i])] >= FIT_CHANCE for i in rows])
        best, safe = p.measured_s[rows][ok].min(), np.flatnonzero(fits)
        at, layouts = np.array(rows)[safe], layouts_of([runs[rows[k]] for k in safe])
        models = Models()
        cluster = load_cluster(cluster_name(runs[rows[0]]))
        framework = load_framework(framework_name(runs[rows[0]], cluster))
        odd = unusual(Setup(models.models[models.of(runs[rows[0]])], cluster, framework), layouts)
        apart = partial(told_apart, layouts, gpus_per_node=cluster.gpus_per_node)
        pick = plainest(step[at], np.array([chance[name_of(runs[i])] for i in at]), odd, apart)
        same = at[(step[at] == step[at[pick]]) & (p.memory_bytes[at] == p.memory_bytes[at[pick]])]
        regret = float(p.measured_s[same].mean() / best - 1.0) if p.ok[same].all() else np.nan
        caution = float(p.measured_s[at[p.ok[at]]].min() / best - 1.0)
        regrets.append(regret)
        cautions.append(caution)
        first = chance[name_of(runs[rows[int(np.nanargmin(np.where(ok, p.measured_s[rows], np.nan)))]])]
        alike = p.ok[every[np.abs(said - first) <= 0.1]]
        run = runs[at[pick]]
        text = " ".join(f"{c} {run[c]}" for c in ("tp", "pp", "micro_batch", "recompute"))
        lost = "  FAILED" if np.isnan(regret) else f"{regret:8.1%}"
        print(f"{key[0]:26} {key[1]!s:9} {key[-1]!s:7}  {len(rows):4}  {np.sum(~ok):13} {lost} {caution:14.1%}"
              f" {first:10.0%} {alike.sum():4} of {len(alike):4}  {text}")  # fmt: skip
    ran = [r for r in regrets if np.isfinite(r)]
    print(f"steps known exactly, memory as said: average {np.mean(cautions):.1%}, worst {max(cautions):.1%}")
    print(f"average {np.mean(ran):.1%}, worst {max(ran):.1%}; {len(regrets) - len(ran)} of {len(regrets)} picks failed")


if __name__ == "__main__":
    main()
