"""Where predictions of measured runs err: by set and choice, in the order of pairs, and how far any planner could go.

    python benchmarks/residuals.py

Three tables. Errors by what a run chose. Pairs of runs of a set that differ in one choice (and the degrees that it
moves) and by more than 2 % in time: the share put in the right order. And by set, what a planner would reach that knew
the mean measured time of every layout: runs that are the same in all stated cells differ in time, and no prediction
from those cells can tell them apart.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations

import numpy as np

from planner.validation import Predictions, predict, rank_correlation, read_runs, shipped_files

CHOICES = ("tp", "pp", "micro_batch", "recompute", "sequence_parallel", "attention", "zero", "virtual_stages")
SAME = (
    "model",
    "seq_len",
    "cluster",
    "n_gpus",
    "precision",
    "global_batch",
    "fused_norm",
    "schedule",
    "seq_splits",
    "cp",
    "ep",
)
FACTORS = (
    "cluster",
    "tp",
    "pp",
    "micro_batch",
    "seq_len",
    "recompute",
    "attention",
    "sequence_parallel",
    "zero",
    "precision",
)
STATED = (*SAME, *CHOICES, "dp")


def errors_by_factor(p: Predictions, timed: np.ndarray) -> None:
    error = p.step_time_s / p.measured_s - 1.0
    print(f"{'choice':28s} {'runs':>5s} {'mape %':>7s} {'bias %':>7s} {'worst %':>8s}")
    for factor in FACTORS:
        groups = defaultdict(list)
        for i in np.flatnonzero(timed):
            groups[p.runs[i][factor]].append(error[i])
        for value in sorted(groups, key=lambda v: (v is None, str(type(v)), v)):
            e = np.array(groups[value])
            if len(e) >= 5:
                shown = "not said" if value is None else value
                name, mape, worst = f"{factor} {shown}", np.abs(e).mean(), np.abs(e).max()
                print(f"{name:28s} {len(e):5d} {100 * mape:7.1f} {100 * e.mean():7.1f} {100 * worst:8.1f}")


def pairs_in_order(p: Predictions, timed: np.ndarray) -> None:
    right, wrong = defaultdict(int), defaultdict(int)
    sets = defaultdict(list)
    for i in np.flatnonzero(timed):
        sets[(p.runs[i]["source"], *(p.runs[i][c] for c in SAME))].append(i)
    for rows in sets.values():
        for i, j in combinations(rows, 2):
            different = [c for c in CHOICES if p.runs[i][c] != p.runs[j][c]]
            if len(different) == 1 and abs(p.measured_s[i] / p.measured_s[j] - 1.0) > 0.02:
                same_order = (p.step_time_s[i] < p.step_time_s[j]) == (p.measured_s[i] < p.measured_s[j])
                (right if same_order else wrong)[different[0]] += 1
    print(f"\n{'pairs that differ in':28s} {'pairs':>6s} {'right %':>8s}")
    for choice in CHOICES:
        if n := right[choice] + wrong[choice]:
            print(f"{choice:28s} {n:6d} {100 * right[choice] / n:8.1f}")
    n = sum(right.values()) + sum(wrong.values())
    print(f"{'all':28s} {n:6d} {100 * sum(right.values()) / n:8.1f}")


def reachable(p: Predictions, timed: np.ndarray) -> None:
    print("\nbest that any prediction from the stated cells could reach")
    print(f"{'set':30s} {'runs':>5s} {'layouts':>8s} {'mape %':>7s} {'rank':>6s} {'regret %':>9s}")
    ranks, regrets = [], []
    for source in dict.fromkeys(run["source"] for run in p.runs):
        rows = [i for i in np.flatnonzero(timed) if p.runs[i]["source"] == source]
        groups = defaultdict(list)
        for i in rows:
            groups[tuple(p.runs[i][c] for c in STATED)].append(p.measured_s[i])
        best = np.array([np.mean(groups[tuple(p.runs[i][c] for c in STATED)]) for i in rows])
        measured = p.measured_s[rows]
        rank, mape = rank_correlation(best, measured), float(np.abs(best / measured - 1.0).mean())
        pick = measured[np.flatnonzero(best == best.min())]
        regret = float(pick.mean() / measured.min() - 1.0)
        ranks.append(rank)
        regrets.append(regret)
        print(f"{source:30s} {len(rows):5d} {len(groups):8d} {100 * mape:7.1f} {rank:6.3f} {100 * regret:9.1f}")
    print(f"{'mean over sets':30s} {'':22s} {np.mean(ranks):6.3f} {100 * np.mean(regrets):9.1f}")


def main() -> None:
    p = predict([run for path in shipped_files() for run in read_runs(path)])
    timed = np.isfinite(p.step_time_s) & np.isfinite(p.measured_s) & p.ok
    errors_by_factor(p, timed)
    pairs_in_order(p, timed)
    reachable(p, timed)


if __name__ == "__main__":
    main()
