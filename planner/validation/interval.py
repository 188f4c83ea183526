"""The interval around a prediction: what predictions of the measured runs most like it were off by, wider if unlike.

`held_out.csv` keeps, for every shipped timed run, the step time predicted by a fit without the run's publication;
`unseen.csv` those on runs that no fit uses (`measured_runs/unseen/`). A prediction's interval is the weighted quantiles
of their errors, of models with experts where it has some. A run counts the less the more its sizes differ and the fewer
of its traits agree, and foretells an error only so far: errors of runs that differ in a trait, such as the framework,
differ by what `spread.csv` says: how far predictions move if the trait had never been seen, with what one would have
assumed in its place. `benchmarks/cross_validate.py` writes all three files.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from functools import cache, cached_property, lru_cache
from importlib import resources
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.base.arrays import Array, Bools
from planner.setup import Setup
from planner.step.estimate import Estimate
from planner.validation.likeness import LIKENESS, TRAIT_WORDS, TRAITS, likeness, likeness_of_runs, traits
from planner.validation.predict import Predictions
from planner.validation.publications import publication_of

COLUMNS = ("source", "run", *TRAITS, *LIKENESS, "held_out_step_time_s", "measured_step_time_s")
ALONE = ("vtrain-single-h1024", "megatron-bridge-gb300")
# Chosen for `coverage` (docs/accuracy.md). Octaves: runs that differ by a factor 1,000 in one size count 0.6 of those
# that don't. A run whose traits spread errors by REACH more than the nearest run's counts 0.6 of that.
WIDTH, REACH = 10.0, 0.03
SPREAD = 0.9  # of what `spread.csv` says
ONE_MORE = 0.5  # of what conformal prediction adds: known runs and a new one are not drawn alike
UNKNOWN_COSTS = 0.2  # of the spread: what nobody has measured is more often slower than predicted than faster
LEAST_RUNS = 10
POINTS = np.array([NormalDist().inv_cdf((k + 0.5) / 7) for k in range(7)])
POINTS /= np.sqrt(np.mean(POINTS**2))  # a normal distribution in seven points of equal weight


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Errors of predictions that had not seen the run, arrays of shape (n,), (n, 7) and (n, 5).

    error: logarithm of measured over predicted step time.
    """

    source: NDArray[np.str_]
    like: Array
    traits: NDArray[np.str_]
    error: Array

    def where(self, rows: Any) -> HeldOut:
        """Some of them."""
        return HeldOut(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    @property
    def architecture(self) -> NDArray[np.str_]:
        """The GPU architecture that each was measured on."""
        return self.traits[:, TRAITS.index("architecture")]

    @property
    def experts(self) -> Bools:
        """Which models have experts."""
        return np.asarray(self.traits[:, TRAITS.index("kind")] == "experts")

    @cached_property
    def publication(self) -> NDArray[np.str_]:
        """Where each was published; a source of its own where that isn't known."""
        names, at = np.unique(self.source, return_inverse=True)
        found = [publication_of(str(name)) for name in names]
        return np.array([str(n) if p is None else p.sets for n, p in zip(names, found, strict=True)])[at]


def _rows(name: str) -> list[dict[str, str]]:
    """The rows of a file beside this one."""
    text = (resources.files("planner.validation") / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _read(*names: str) -> HeldOut:
    """The errors in such files."""
    rows = [row for name in names for row in _rows(name)]
    number = np.array([[float(r[c]) for c in COLUMNS[2 + len(TRAITS) :]] for r in rows])
    return HeldOut(
        source=np.array([r["source"] for r in rows]),
        like=number[:, : len(LIKENESS)],
        traits=np.array([[r[t] for t in TRAITS] for r in rows]),
        error=np.log(number[:, -1] / number[:, -2]),
    )


@cache
def held_out() -> HeldOut:
    """The errors on the shipped runs of fits without their publication."""
    return _read("held_out.csv")


@cache
def unseen() -> HeldOut:
    """The errors of the shipped profiles on runs that no fit uses."""
    return _read("unseen.csv")


@cache
def all_errors() -> HeldOut:
    """Those and the ones on unseen runs."""
    return _read("held_out.csv", "unseen.csv")


@cache
def errors_of_kind(*, experts: bool) -> HeldOut:
    """All errors of models with experts, or of those without."""
    return all_errors().where(all_errors().experts == experts)


def known_errors(architecture: str, *, experts: bool) -> HeldOut:
    """What tells of a GPU architecture: errors of models without experts on it, or of all that have some.

    None for an architecture of which there are fewer runs than leave one beyond either end of an interval of 80 %.
    """
    known = errors_of_kind(experts=experts)
    on = known.architecture == architecture
    enough = np.count_nonzero(all_errors().architecture == architecture) >= LEAST_RUNS
    return known.where((on | experts) & enough)


def held_out_mape() -> dict[str, float]:
    """Mean relative error of those predictions, by set and `overall`."""
    known = held_out()
    size = np.abs(np.exp(-known.error) - 1.0)
    by_set = {str(name): float(size[known.source == name].mean()) for name in np.unique(known.source)}
    return by_set | {"overall": float(size.mean())}


@dataclass(frozen=True, kw_only=True)
class Fits:
    """Of measured runs, how many there are, of how many it is predicted right whether they fit, how many did not."""

    runs: int
    right: int
    failed: int


@cache
def fits_of(architecture: str) -> Fits:
    """What the shipped runs on an architecture tell of memory (`fits.csv`), else those that no fit uses."""
    row = next(r for r in _rows("fits.csv") if r["architecture"] == architecture)
    return Fits(runs=int(row["runs"]), right=int(row["right"]), failed=int(row["failed"]))


@cache
def spreads(*, experts: bool) -> Array:
    """Standard deviations that a trait in which runs differ adds to errors, and publications' own, shape (6,)."""
    rows = {r["trait"]: float(r["experts" if experts else "dense"]) for r in _rows("spread.csv")}
    return np.array([*(SPREAD * rows[t] for t in TRAITS), rows["publication"]])


def _variance(known: HeldOut, its_traits: Any) -> Array:
    """Variance that the traits add between each known run and one of such traits, shape (runs,)."""
    differs = known.traits != np.asarray(its_traits)
    return np.asarray(differs @ spreads(experts=_of_experts(its_traits))[:-1] ** 2)


def _of_experts(its_traits: Any) -> bool:
    return bool(its_traits[TRAITS.index("kind")] == "experts")


def error_quantiles(known: HeldOut, like: Array, its_traits: Any, shares: Any) -> Array:
    """Quantiles of the error of a run from those of known ones, shape (shares,); like: of shape (7,), its_traits: (5,).

    Every known run stands for a normal distribution around its error, as wide as the traits in which it differs. Its
    weight falls with its distance in octaves and in that width, and with the root of how many runs its set has: runs of
    a set err alike, but not all the same, so they count as what lies half-way between so many runs and one. So does
    their number: the new run may lie beyond them all as any of them might, one more beside n, as in conformal
    prediction with weights (Tibshirani et al. 2019, arXiv 1904.06019); n is the geometric mean of the effective numbers
    (Kish 1965) of runs and of sets. Each is as wide, too, as the mean of so many sets' errors is uncertain.
    """
    variance = _variance(known, its_traits)
    distance = ((np.log2(known.like / like) / WIDTH) ** 2).sum(axis=1) + variance / REACH**2
    _, at, size = np.unique(known.source, return_inverse=True, return_counts=True)
    weight = np.exp(-0.5 * (distance - distance.min())) * size[at] ** -0.5
    of_runs, of_sets = ((w**2).sum() / w.sum() ** 2 for w in (weight, np.bincount(at, weight)))
    variance = variance + of_sets * spreads(experts=_of_experts(its_traits))[-1] ** 2
    error = (known.error[:, None] + np.sqrt(variance)[:, None] * (POINTS + UNKNOWN_COSTS)).ravel()
    each = np.repeat(weight / len(POINTS), len(POINTS))
    order = np.argsort(error)
    middle = np.cumsum(each[order]) - 0.5 * each[order]
    level, one_more = np.asarray(shares, dtype=np.float64), ONE_MORE * np.sqrt(of_runs * of_sets)
    level = level * (1.0 + one_more) - one_more * np.heaviside(0.5 - level, 0.5)
    edge = of_runs / 2.0 / len(POINTS)  # the known ones end there, but for those without weight
    return np.asarray(np.interp(np.clip(level, edge, 1.0 - edge), middle / weight.sum(), error[order]))


def interval_factors(like: Array, its_traits: Any, share: float = 0.8) -> tuple[float, float]:
    """What to multiply a predicted step time by for the ends of its interval.

    like: `likeness` of the layout, shape (7,); its_traits: its `traits`. share: of cases in which the measured time
    lies between.
    """
    return _factors(tuple(like.tolist()), tuple(its_traits), share)


@lru_cache(maxsize=4096)  # the page of `planner serve` shows mostly the same layouts at each change
def _factors(like: tuple[float, ...], its_traits: tuple[str, ...], share: float) -> tuple[float, float]:
    known = errors_of_kind(experts=_of_experts(its_traits))
    low, high = np.exp(error_quantiles(known, np.array(like), its_traits, [(1 - share) / 2, (1 + share) / 2]))
    return float(low), float(high)


def layout_traits(setup: Setup, result: Estimate, i: int) -> tuple[str, ...]:
    """The `traits` of layout i of an estimate."""
    x = result.layouts
    return traits(setup.model, setup.cluster, setup.framework, int(x.gpus[i]), x.row(i)["precision"])


def step_interval_s(setup: Setup, result: Estimate, i: int, share: float = 0.8) -> tuple[float, float]:
    """Between which step times the measured one of layout i lies in `share` of such cases."""
    x = result.layouts
    like = likeness(
        setup.model, gpus=x.gpus[i], global_batch=x.global_batch[i], tp=x.tp[i], pp=x.pp[i],
        micro_batch=x.micro_batch[i],
    )  # fmt: skip
    factors = interval_factors(like, layout_traits(setup, result, i), share)
    step = float(result.step_time_s[i])
    return step * factors[0], step * factors[1]


def unlike(setup: Setup, result: Estimate, i: int) -> str:
    """In what the measured runs nearest to layout i of an estimate differ from it; empty where some have its traits."""
    its_traits = layout_traits(setup, result, i)
    known = errors_of_kind(experts=_of_experts(its_traits))
    nearest = known.traits[int(np.argmin(_variance(known, its_traits)))]
    other = [
        f"{word} {mine}, not {theirs}"
        for word, mine, theirs in zip(TRAIT_WORDS, its_traits, nearest, strict=True)
        if mine != theirs
    ]
    return f"nothing measured is like this ({', '.join(other)} as in the nearest runs)" if other else ""


def others(known: HeldOut, i: int, judged: HeldOut, but: str) -> Any:
    """Which known runs may tell of a judged one, where those like it in one respect are left out, shape (runs,).

    but: what is left out whole: the run's publication, or with it all runs of its trait. Runs of a set whose kind no
    other publication has (`ALONE`) may be judged by its own other runs.
    """
    name = judged.source[i]
    left = known.publication != judged.publication[i]
    if but == "publication" and name in ALONE:
        left = (known.source != name) | (known.like != judged.like[i]).any(axis=1)
    if but != "publication":
        column = TRAITS.index(but)
        left = left & (known.traits[:, column] != judged.traits[i, column])
    return left & (known.experts == judged.experts[i])


def coverage(known: HeldOut, judged: HeldOut | None = None, but: str = "publication", share: float = 0.8) -> Array:
    """Which runs lie in an interval made without those like it in one respect, shape (runs,) of 0, 1, NaN for none.

    known: the errors that intervals are made of. judged: the runs, default `known`. but: as of `others`.
    """
    judged = known if judged is None else judged
    inside, ends = np.full(len(judged.source), np.nan), [(1 - share) / 2, (1 + share) / 2]
    for i in range(len(inside)):
        left = others(known, i, judged, but)
        if left.any():
            low, high = error_quantiles(known.where(left), judged.like[i], judged.traits[i], ends)
            inside[i] = low <= judged.error[i] <= high
    return inside


def held_shares(p: Predictions, ends: Array | None = None) -> dict[str, float | None]:
    """Which share of each source's timed runs lies in its interval of 80 %, and `overall`; None: none.

    ends: of the intervals, shape (rows, 2); default `intervals`.
    """
    low, high = (intervals(p) if ends is None else ends).T
    source = np.array([*(run["source"] for run in p.runs)])
    timed = np.isfinite(low) & np.isfinite(p.measured_s) & p.ok
    inside = (low <= p.measured_s) & (p.measured_s <= high)

    def of(rows: Any) -> float | None:
        return float(inside[rows].mean()) if rows.any() else None

    return {str(name): of(timed & (source == name)) for name in np.unique(source)} | {"overall": of(timed)}


def intervals(p: Predictions, share: float = 0.8) -> Array:
    """Both ends of each predicted run's interval in seconds, made without its own publication's runs, shape (rows, 2).

    NaN where nothing is predicted.
    """
    like, its_traits = likeness_of_runs([run for run, why in zip(p.runs, p.reasons, strict=True) if not why])
    rows = np.flatnonzero([not why for why in p.reasons])
    source = np.array([p.runs[i]["source"] for i in rows])
    runs = HeldOut(source=source, like=like, traits=its_traits, error=np.zeros(len(rows)))
    out, ends = np.full((len(p.runs), 2), np.nan), [(1 - share) / 2, (1 + share) / 2]
    known = all_errors()
    for i, row in enumerate(rows):
        left = known.where(others(known, i, runs, "publication"))
        out[row] = p.step_time_s[row] * np.exp(error_quantiles(left, like[i], its_traits[i], ends))
    return out
