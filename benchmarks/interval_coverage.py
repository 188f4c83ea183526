"""How often intervals of 80 % hold the measured step, and how sharp they are: publication or a trait left out.

    python benchmarks/interval_coverage.py

A run whose publication is left out keeps the error of the fit that had not seen it, or of the profiles that no fit of
it touched. Where its framework, GPU architecture, precision or links are left out it is predicted with what stands in
for them (`strangers` in `cross_validate.py`), and the interval is made of runs of other publications and other ones
alone. Last come runs as they were first predicted (`first_predictions.py`), before anything was known of their
publication. Of each set up to 30 runs count, drawn at random. `held`: of all runs; every set alike; every publication
alike.
Width, interval score (Gneiting and Raftery 2007; lower is better) and the mean pinball loss at 19 levels (half of the
CRPS) are of the error in logarithms, every set alike.
"""

from __future__ import annotations

import numpy as np
from cross_validate import first_errors, mean_of, strangers, timed
from numpy.typing import NDArray

from planner.validation import Predictions, read_runs, shipped_files, unseen_files
from planner.validation.errors import HeldOut, all_errors, likeness_of_runs
from planner.validation.interval import left_out_quantiles

Array = NDArray[np.float64]
MOST = 30
LEVELS, ENDS = np.arange(1, 20) / 20, (0.1, 0.9)
FIRST = "as first predicted, publication left out"


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


def scores(judged: HeldOut, quantiles: Array) -> dict[str, Array]:
    """Of each run; quantiles: of its error at LEVELS and ENDS, shape (runs, 21)."""
    low, high = quantiles[:, -2:].T
    error, over = judged.error, judged.error[:, None] - quantiles[:, :-2]
    outside = np.maximum(low - error, 0.0) + np.maximum(error - high, 0.0)
    return {
        "held": ((low <= error) & (error <= high)).astype(np.float64),
        "width": high - low,
        "score": high - low + 10.0 * outside,
        "pinball": np.maximum(LEVELS * over, (LEVELS - 1.0) * over).mean(axis=1),
    }


def show(name: str, judged: HeldOut, quantiles: Array, rows: NDArray[np.bool_]) -> None:
    """One line of some runs."""
    ok = np.isfinite(quantiles[:, -1]) & rows
    if not ok.any():
        return
    judged = judged.where(ok)
    each = scores(judged, quantiles[ok])
    held = each.pop("held")
    sets, publications = mean_of(judged.source, held), mean_of(judged.publication, held)
    rest = "  ".join(f"{key} {mean_of(judged.source, value):.3f}" for key, value in each.items())
    off = np.abs(np.expm1(-judged.error)).mean()
    print(
        f"  {name:32s} {ok.sum():5d} in {len(np.unique(judged.source)):2d}  off {off:6.1%}  "
        f"held: runs {held.mean():4.0%}, sets {sets:4.0%}, publications {publications:4.0%}  {rest}",
        flush=True,
    )


def main() -> None:
    runs = [run for path in (*shipped_files(), *unseen_files()) for run in read_runs(path)]
    known = all_errors()
    kinds = {"publication": known, **{t: errors_of(p) for t, p in strangers(runs).items()}, FIRST: first_errors()}
    for but, errors in kinds.items():
        judged = drawn(errors)
        quantiles = left_out_quantiles(known, judged, [*LEVELS, *ENDS], "publication" if but == FIRST else but)
        print(but if but == FIRST else f"{but} left out")
        same = np.array([
            ((known.traits == t).all(axis=1) & (known.publication != p)).any()
            for t, p in zip(judged.traits, judged.publication, strict=True)
        ])  # fmt: skip
        for experts, name in ((False, "dense and hybrid"), (True, "mixtures")):
            its = judged.experts == experts
            show(name, judged, quantiles, its)
            if but == "publication":
                show(f"{name}, others have all traits", judged, quantiles, its & same)
                show(f"{name}, none has all", judged, quantiles, its & ~same)


if __name__ == "__main__":
    main()
