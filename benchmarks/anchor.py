"""What one, or three, runs of a set tell of its others: errors and intervals before and after an anchor.

    python benchmarks/anchor.py              # the tables of docs/calibration.md
    python benchmarks/anchor.py --write      # also planner/calibration/anchor_spread.csv

Errors are those of `held_out.csv` (fits without the run's publication) and `unseen.csv` (profiles that no fit of it
touched). Of each set up to 30 runs count, drawn once; of them every one is the anchor of the others, or 40 draws of
three are; `nearest` takes for each run those of the set with the nearest sizes. Of
the two runs that `planner.calibration.next_runs` would name, for all others or for one asked run, the errors stand
beside those of all pairs. The update is the planner's own, linear
at the profiles' figures. The spreads that it starts from are measured on all other publications than the set's, in five
parts: what is written for users is measured on all.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from folds import origin_of
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import gammaln

from planner.calibration.anchor import Spread, slopes_of, update
from planner.calibration.moved import KINDS, moved_cluster, moved_framework
from planner.calibration.next_runs import best_two
from planner.hardware import load_cluster, load_framework
from planner.validation import MeasuredRun, Predictions, predict, read_runs, shipped_files, unseen_files
from planner.validation.errors import all_errors, held_out, unseen
from planner.validation.interval import left_out_quantiles

Array = NDArray[np.float64]
MOST, DRAWS, PARTS = 30, 40, 5
START = Spread(figures=np.full(len(KINDS), 0.05), noise=0.042, prior_runs=1.0)
OUTPUT = Path("planner/calibration/anchor_spread.csv")


@dataclass(frozen=True)
class Set:
    """A set's runs: errors, slopes, sizes in octaves, half of the interval without an anchor; whose it is."""

    name: str
    origin: str
    shipped: bool
    error: Array
    slopes: Array
    size: Array
    half: Array


def all_slopes(runs: list[MeasuredRun]) -> tuple[Predictions, Array]:
    """Predictions with the shipped profiles, and the slopes of their log steps by the figures."""

    def steps(shift: Array) -> Array:
        return predict(
            runs,
            lambda name: moved_cluster(load_cluster(name), shift),
            lambda name: moved_framework(load_framework(name), shift),
        ).step_time_s

    return predict(runs), slopes_of(steps, np.zeros(len(KINDS)))


def sets() -> list[Set]:
    """All sets of four runs and more."""
    random, out = np.random.default_rng(0), []
    for files, known in ((shipped_files(), held_out()), (unseen_files(), unseen())):
        runs = [run for path in files for run in read_runs(path)]
        p, slopes = all_slopes(runs)
        timed = np.flatnonzero(np.isfinite(p.step_time_s) & np.isfinite(p.measured_s) & p.ok)
        source = np.array([runs[i]["source"] for i in timed])
        for name in dict.fromkeys(source.tolist()):
            rows, there = timed[source == name], np.flatnonzero(known.source == name)
            assert len(rows) == len(there), f"{name}: held_out.csv or unseen.csv is old"
            if len(rows) < 4:
                continue
            some = np.sort(random.permutation(len(rows))[:MOST])
            picked = known.where(there[some])
            half = np.diff(left_out_quantiles(all_errors(), picked, [0.1, 0.9]))[:, 0] / 2
            at = rows[some]
            out.append(
                Set(name, origin_of(runs[at[0]]), files == shipped_files(), picked.error, slopes[at],
                    np.log2(picked.like), half)
            )  # fmt: skip
    return out


def cases(s: Set, k: int, nearest: bool = False) -> list[tuple[Array, Array]]:
    """Anchors and the runs that they are to tell of, as indices."""
    n = len(s.error)
    if nearest:
        far = ((s.size[:, None] - s.size[None]) ** 2).sum(-1) + 1e9 * np.eye(n)
        return [(np.argsort(far[i], kind="stable")[:k], np.array([i])) for i in range(n)]
    random = np.random.default_rng(1)
    draws = [np.array([i]) for i in range(n)] if k == 1 else [random.choice(n, k, replace=False) for _ in range(DRAWS)]
    return [(a, np.setdiff1d(np.arange(n), a)) for a in draws]


def judged(s: Set, k: int, before: Spread, nearest: bool = False) -> tuple[Array, Array, Array, Array]:
    """Of all cases: error in logarithms without and with the anchor, half of the interval without and with it."""
    rows = []
    for anchors, rest in cases(s, k, nearest):
        u = update(s.slopes[anchors], s.error[anchors], before)
        after = s.error[rest] - s.slopes[rest] @ u.shift
        rows.append(np.stack([s.error[rest], after, s.half[rest], u.half_width(s.slopes[rest])]))
    return tuple(np.concatenate(rows, axis=1))


def named_pairs(known: list[Set], spread_of: dict[str, Spread]) -> None:
    """Errors after the two runs that are named before any is known, beside the mean of all pairs; set by set alike."""
    print("two runs known           sets  off before  named  drawn   named better in")
    for shipped in (True, False):
        for one in (False, True):
            rows = []
            for s in (s for s in known if s.shipped == shipped and len(s.error) >= 5):
                before, n = spread_of[s.origin], len(s.error)
                prior, cases = np.diag(before.figures**2), []
                shared = s.slopes @ prior @ s.slopes.T
                pairs = np.array(list(combinations(range(n), 2)))
                block = shared[pairs[:, :, None], pairs[:, None, :]] + before.noise**2 * np.eye(2)
                gain = np.linalg.solve(block, shared[pairs])  # what each pair's errors say of each run's
                off = np.abs(np.expm1(np.einsum("pkn,pk->pn", gain, s.error[pairs]) - s.error))
                off[np.arange(len(pairs))[:, None], pairs] = np.nan
                for t in range(n) if one else [None]:
                    rest = np.setdiff1d(np.arange(n), [t]) if one else np.arange(n)
                    a, b = (int(rest[k]) for k in best_two(
                        prior, before.noise, s.slopes[rest], s.slopes if t is None else s.slopes[[t]]
                    ))  # fmt: skip
                    named = int(np.flatnonzero((pairs == sorted((a, b))).all(axis=1))[0])
                    whose = slice(None) if t is None else [t]
                    alone = np.abs(np.expm1(-s.error[whose])).mean()
                    cases.append([alone, np.nanmean(off[named, whose]), np.nanmean(off[:, whose])])
                rows.append(np.mean(cases, axis=0))
            a = np.array(rows)
            name = f"{'shipped' if shipped else 'unseen'}, {'for one run' if one else 'for all others'}"
            m = 100 * a.mean(axis=0)
            print(f"{name:24s} {len(a):4d}  {m[0]:8.1f} % {m[1]:5.1f} % {m[2]:5.1f} %   {np.sum(a[:, 1] < a[:, 2])}")


def measured_spread(known: list[Set]) -> Spread:
    """Relative spreads by the least root mean error of others after an anchor; then the scale by Student's t."""

    def loss(x: Array) -> float:
        before = Spread(figures=np.exp(x), noise=START.noise, prior_runs=1.0)
        total = 0.0
        for s in known:
            for k in (1, 3):
                after = np.concatenate([
                    s.error[rest] - s.slopes[rest] @ update(s.slopes[a], s.error[a], before).shift
                    for a, rest in cases(s, k)[:15]
                ])  # fmt: skip
                total += np.sqrt(np.mean(np.sqrt(after**2 + 1e-4) - 1e-2)) / len(known)
        return total + 0.002 * float(((x - np.log(START.figures)) ** 2).sum())

    found = minimize(loss, np.log(START.figures), method="L-BFGS-B", options={"maxiter": 12})
    figures = np.exp(found.x)
    terms = []
    for s in known:
        for k in (1, 3):
            for anchors, rest in cases(s, k)[:15]:
                slopes = s.slopes[anchors]
                seen = (slopes * figures**2) @ slopes.T + START.noise**2 * np.eye(k)
                u = update(slopes, s.error[anchors], Spread(figures=figures, noise=START.noise, prior_runs=0.0))
                variance = np.einsum("ni,ij,nj->n", s.slopes[rest], u.covariance, s.slopes[rest]) + START.noise**2
                after = s.error[rest] - s.slopes[rest] @ u.shift
                terms.append(
                    (
                        k,
                        s.error[anchors] @ np.linalg.solve(seen, s.error[anchors]),
                        after**2 / variance,
                        len(cases(s, k)[:15]),
                    )
                )

    def unlikely(x: Array) -> float:
        runs, scale = np.exp(x)
        total = 0.0
        for k, surprise, off, weight in terms:
            nu = runs + k
            s2 = (runs * scale + surprise) / nu
            each = (nu + 1) / 2 * np.log1p(off / s2 / nu) + 0.5 * np.log(s2 * nu)
            total += (each.mean() - gammaln((nu + 1) / 2) + gammaln(nu / 2)) / weight
        return float(total)

    runs, scale = np.exp(minimize(unlikely, [0.0, 0.0], method="Nelder-Mead", options={"maxiter": 80}).x)
    return Spread(figures=figures * np.sqrt(scale), noise=START.noise * float(np.sqrt(scale)), prior_runs=float(runs))


def show(spread: Spread) -> None:
    pairs = zip(KINDS, spread.figures, strict=True)
    print(", ".join(f"{k} {v:.3f}" for k, v in pairs), f"noise {spread.noise:.3f}, prior_runs {spread.prior_runs:.2f}")


def table(known: list[Set], spread_of: dict[str, Spread], *, each: bool) -> None:
    """Means over sets, each counting alike; each: also set by set."""
    print(f"{'runs known':24s} sets  off before  after   in interval  half of it before  after")
    for shipped in (True, False):
        some = [s for s in known if s.shipped == shipped]
        for k, nearest in ((1, False), (1, True), (3, False), (3, True)):
            rows = []
            for s in some:
                e, after, half, now = judged(s, k, spread_of[s.origin], nearest)
                off = [np.abs(np.expm1(-x)).mean() for x in (e, after)]
                rows.append([*off, np.mean(np.abs(after) <= now), half.mean(), now.mean()])
            a = np.array(rows)
            m = 100 * a.mean(axis=0)
            name = f"{'shipped' if shipped else 'unseen'}, {k} {'nearest' if nearest else 'any'}"
            print(
                f"{name:24s} {len(some):4d}  {m[0]:8.1f} % {m[1]:5.1f} %  {m[2]:8.0f} %  {m[3]:12.0f} % {m[4]:10.0f} %"
                f"   better {np.sum(a[:, 1] < a[:, 0])}"
            )
            if each and k == 3 and not nearest:
                for s, r in sorted(zip(some, rows, strict=True), key=lambda pair: pair[1][1] - pair[1][0]):
                    print(f"    {s.name:34s} {100 * r[0]:5.1f} % {100 * r[1]:5.1f} %   {100 * r[2]:4.0f} %")
        best = [np.abs(np.expm1(np.median(s.error) - s.error)).mean() for s in some]
        print(f"  were one factor for each set known exactly: {100 * np.mean(best):.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {OUTPUT}")
    parser.add_argument("--each", action="store_true", help="also set by set")
    given = parser.parse_args()
    known = sets()
    origins = sorted({s.origin for s in known})
    part = {o: int(i) for i, o in zip(np.random.default_rng(2).permutation(len(origins)) % PARTS, origins, strict=True)}
    without = [measured_spread([s for s in known if part[s.origin] != k]) for k in range(PARTS)]
    for spread in without:
        show(spread)
    table(known, {o: without[part[o]] for o in origins}, each=given.each)
    named_pairs(known, {o: without[part[o]] for o in origins})
    if given.write:
        found = measured_spread(known)
        show(found)
        value = dict(zip(KINDS, found.figures, strict=True)) | {"noise": found.noise, "prior_runs": found.prior_runs}
        with OUTPUT.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([("figure", "value"), *((name, f"{v:.3g}") for name, v in value.items())])


if __name__ == "__main__":
    main()
