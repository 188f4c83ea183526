"""How often intervals of 80 % hold the measured step: publication left out, or with it all that share one trait.

    python benchmarks/interval_coverage.py

A run whose publication is left out keeps the error of the fit that had not seen it, or of the profiles that no fit of
it touched. Where its framework, GPU architecture, precision or links are left out it is predicted with what stands in
for them (`strangers` in `cross_validate.py`), and the interval is made of runs of other ones alone. Of each set up to
30 runs count, drawn at random. `runs`: of all; `sets`: every set alike.
"""

from __future__ import annotations

import numpy as np
from cross_validate import strangers, timed

from planner.validation import Predictions, read_runs, shipped_files, unseen_files
from planner.validation.interval import HeldOut, coverage, errors_of_kind
from planner.validation.likeness import likeness_of_runs

MOST = 30


def errors_of(p: Predictions) -> HeldOut:
    """The errors of timed predictions."""
    rows = np.flatnonzero(timed(p))
    like, traits = likeness_of_runs([p.runs[i] for i in rows])
    return HeldOut(
        source=np.array([p.runs[i]["source"] for i in rows]),
        like=like,
        traits=traits,
        error=np.log(p.measured_s[rows] / p.step_time_s[rows]),
    )


def drawn(known: HeldOut) -> HeldOut:
    """Up to MOST runs of each set."""
    random = np.random.default_rng(0)
    rows = [random.permutation(np.flatnonzero(known.source == s))[:MOST] for s in np.unique(known.source)]
    return known.where(np.sort(np.concatenate(rows)))


def show(name: str, judged: HeldOut, inside: np.ndarray) -> None:
    """One line: coverage, mean error, and how wide the intervals are."""
    ok = np.isfinite(inside)
    if not ok.any():
        return
    sets = [inside[ok & (judged.source == s)].mean() for s in np.unique(judged.source[ok])]
    off = np.abs(np.exp(-judged.error[ok]) - 1.0).mean()
    held = f"held: runs {100 * inside[ok].mean():3.0f} %, sets {100 * np.mean(sets):3.0f} %"
    print(f"  {name:34s} {ok.sum():5d} {len(sets):4d}  off {100 * off:4.1f} %   {held}", flush=True)


def main() -> None:
    runs = [run for path in (*shipped_files(), *unseen_files()) for run in read_runs(path)]
    others = {trait: errors_of(p) for trait, p in strangers(runs).items()}
    for experts in (False, True):
        print("models with experts" if experts else "models without experts")
        known = errors_of_kind(experts=experts)
        judged = drawn(known)
        inside = coverage(known, judged)
        show("publication left out", judged, inside)
        same = np.array([
            ((known.traits == t).all(axis=1) & (known.publication != p)).any()
            for t, p in zip(judged.traits, judged.publication, strict=True)
        ])  # fmt: skip
        show("  others have all its traits", judged, np.where(same, inside, np.nan))
        show("  none has all its traits", judged, np.where(same, np.nan, inside))
        for trait, errors in others.items():
            stranger = drawn(errors.where(errors.experts == experts))
            show(f"{trait} left out", stranger, coverage(known, stranger, trait))


if __name__ == "__main__":
    main()
