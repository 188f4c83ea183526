"""The interval around a prediction: what predictions of the measured runs most like it were off by, wider if unlike.

It is the weighted quantiles of errors of predictions that had not seen their run (`planner.validation.errors`), of
models with experts where it has some. A run counts the less the more its sizes differ and the fewer of its traits
agree, and foretells an error only so far: errors of runs that differ in a trait, such as the framework, differ by what
`spread.csv` says: how far predictions move if the trait had never been seen, with what one would have assumed in its
place (`benchmarks/cross_validate.py`). A trait that other publications' runs have widens by what they leave open of it.
"""

from functools import cache, lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.choices.table import CHOICES
from planner.setup import Setup
from planner.step.estimate import Estimate
from planner.validation.errors import (
    LIKENESS,
    TRAIT_WORDS,
    TRAITS,
    HeldOut,
    all_errors,
    errors_of_kind,
    fits_of,
    likeness,
    likeness_of_runs,
    rows_of,
    traits,
)
from planner.validation.predict import Predictions

WIDTH = 10.0  # octaves: runs that differ by a factor 1,000 in one size count 0.6 of those that don't
UNKNOWN_COSTS = 0.2  # of the spread: what nobody has measured is more often slower than predicted than faster
POINTS = np.array([NormalDist().inv_cdf((k + 0.5) / 7) for k in range(7)])
POINTS /= np.sqrt(np.mean(POINTS**2))  # a normal distribution in seven points of equal weight


@cache
def spreads(*, experts: bool) -> Array:
    """Standard deviations that a trait in which runs differ adds to errors, shape (7,).

    Then publications' own, and what a new one adds, of which nobody has looked for causes: so wide that intervals of
    80 % hold 80 % of `benchmarks/first_predictions.csv`, every publication alike.
    """
    rows = {r["trait"]: float(r["experts" if experts else "dense"]) for r in rows_of("spread.csv")}
    return np.array([rows[name] for name in (*TRAITS, "publication", "first")])


def _of_experts(its_traits: Any) -> bool:
    return bool(its_traits[TRAITS.index("kind")] == "experts")


def _variance(known: HeldOut, its_traits: Any) -> tuple[Array, Array]:
    """Variance that the traits add between each known run and one of such traits, two of shape (runs,).

    First as if nothing had them. Then what is left of each trait's, s^2, by n known publications that have it, but one,
    which alone tells nothing of how they differ: s^2 p^2 / (p^2 + n s^2), where a publication's errors vary by p^2.
    """
    has = known.traits == np.asarray(its_traits)
    of_trait, (own, _) = np.split(spreads(experts=_of_experts(its_traits)) ** 2, [-2])
    publications = np.array([np.count_nonzero(np.bincount(known.numbers[1][column])) for column in has.T])
    left = own * of_trait / (own + np.maximum(publications - 1, 0) * of_trait)
    return np.asarray(~has @ of_trait), np.asarray(~has @ left)


def error_quantiles(known: HeldOut, like: Array, its_traits: Any, shares: Any, first: float | None = None) -> Array:
    """Quantiles of the error of a run from those of known ones, shape (shares,); like: of shape (7,), its_traits: (5,).

    Every known run stands for a normal distribution around its error, as wide as what is open of the traits in which it
    differs. Its weight falls with its distance in octaves, and with the root of how many runs its set has: runs of a
    set err alike, but not all the same, so they count as what lies half-way between so many runs and one. It falls too
    as an estimate's of the new run's error does, with its variance: a publication's own, p^2, and that of the traits.
    So a lone publication that has all traits of the new run does not silence the others. Their number counts: the new
    run may lie beyond them all as any of them might, one more beside n, as in conformal prediction with weights
    (Tibshirani et al. 2019, arXiv 1904.06019); n is the geometric mean of the effective numbers (Kish 1965) of runs and
    of publications.

    Publications err apart from each other, by p. The mean of n of them is uncertain by p^2 / n, and what they scatter
    around their own mean falls short of p^2 by p^2 / n too. So each known run is wider by 2 p^2 / n.

    first: in place of `spreads`' own.
    """
    apart, variance = _variance(known, its_traits)
    distance = ((np.log2(known.like / like) / WIDTH) ** 2).sum(axis=1)
    p, its_first = spreads(experts=_of_experts(its_traits))[-2:]
    own, unlooked = p**2, (its_first if first is None else first) ** 2
    at, publication = known.numbers
    weight = np.exp(-0.5 * (distance - distance.min())) * own / (own + apart) * np.bincount(at)[at] ** -0.5
    of_runs, of_publications = ((w**2).sum() / w.sum() ** 2 for w in (weight, np.bincount(publication, weight)))
    variance = variance + 2.0 * of_publications * own + unlooked
    error = (known.error[:, None] + np.sqrt(variance)[:, None] * (POINTS + UNKNOWN_COSTS)).ravel()
    each = np.repeat(weight / len(POINTS), len(POINTS))
    order = np.argsort(error)
    middle = np.cumsum(each[order]) - 0.5 * each[order]
    level, one_more = np.asarray(shares, dtype=np.float64), np.sqrt(of_runs * of_publications)
    level = level * (1.0 + one_more) - one_more * np.heaviside(0.5 - level, 0.5)
    edge = of_runs / 2.0 / len(POINTS)  # the known ones end there, but for those without weight
    return np.asarray(np.interp(np.clip(level, edge, 1.0 - edge), middle / weight.sum(), error[order]))


@lru_cache(maxsize=4096)  # the page of `planner serve` shows mostly the same layouts at each change
def interval_factors(like: tuple[float, ...], its_traits: tuple[str, ...], share: float = 0.8) -> tuple[float, float]:
    """Factors to multiply a predicted step time by for the ends of its interval.

    like: `likeness` of the layout; its_traits: its `traits`. share: of cases in which the measured time lies between.
    """
    known = errors_of_kind(experts=_of_experts(its_traits))
    low, high = np.exp(error_quantiles(known, np.array(like), its_traits, [(1 - share) / 2, (1 + share) / 2]))
    return float(low), float(high)


def layout_traits(setup: Setup, result: Estimate, i: int) -> tuple[str, ...]:
    """The `traits` of layout i of an estimate."""
    x = result.layouts
    precision = CHOICES["precision"].plain(x.precision[i].item())
    return traits(setup.model, setup.cluster, setup.framework, int(x.gpus[i]), precision)


def step_interval_s(setup: Setup, result: Estimate, i: int, share: float = 0.8) -> tuple[float, float]:
    """Between which step times the measured one of layout i lies in `share` of such cases."""
    x = result.layouts
    like = likeness(
        setup.model, gpus=x.gpus[i], global_batch=x.global_batch[i], tp=x.tp[i], pp=x.pp[i],
        micro_batch=x.micro_batch[i],
    )  # fmt: skip
    low, high = interval_factors(tuple(like.tolist()), layout_traits(setup, result, i), share)
    return float(result.step_time_s[i]) * low, float(result.step_time_s[i]) * high


def unlike(setup: Setup, result: Estimate, i: int) -> str:
    """In what all measured runs differ from layout i of an estimate: traits of the nearest ones, or a size beyond them.

    Empty where some have its traits, and some are as large.
    """
    its_traits = layout_traits(setup, result, i)
    known = errors_of_kind(experts=_of_experts(its_traits))
    nearest = known.traits[int(np.argmin(_variance(known, its_traits)[0]))]
    other = [
        f"{word} {mine}, not {theirs}"
        for word, mine, theirs in zip(TRAIT_WORDS, its_traits, nearest, strict=True)
        if mine != theirs
    ]
    gpu, architecture = setup.cluster.accelerator.name, str(nearest[0])
    if its_traits[0] == architecture and gpu not in (gpus := fits_of(architecture).gpus):
        other.insert(0, f"GPU {gpu}, not {gpus[0]}")
    said = [f"nothing measured is like this ({', '.join(other)} as in the nearest runs)"] if other else []
    for column, size, words in (
        ("gpus", int(result.layouts.gpus[i]), "so many GPUs"), ("seq_len", setup.model.seq_len, "sequences so long")
    ):  # fmt: skip
        most = int(known.like[:, LIKENESS.index(column)].max())
        said += [f"no measured run has {words} ({size:,}, at most {most:,})"] if size > most else []
    return "; ".join(said)


def left_out_quantiles(
    known: HeldOut, judged: HeldOut, shares: Any, but: str = "publication", first: float | None = None
) -> Array:
    """Quantiles of judged runs' errors, made without those like them in one respect, shape (runs, shares).

    known: the errors that they are made of. but: what is left out whole: the run's publication, or with it all runs of
    its trait. NaN where nothing is left.
    """
    out = np.full((len(judged.source), len(shares)), np.nan)
    without, trait = (
        (errors.publication if but == "publication" else errors.traits[:, TRAITS.index(but)])
        for errors in (known, judged)
    )

    @cache
    def others(publication: str, experts: bool, value: str) -> HeldOut:
        return known.where((known.publication != publication) & (known.experts == experts) & (without != value))

    for i, of in enumerate(zip(judged.publication.tolist(), judged.experts.tolist(), trait.tolist(), strict=True)):
        left = others(*of)
        if len(left.error):
            out[i] = error_quantiles(left, judged.like[i], judged.traits[i], shares, first)
    return out


def coverage(
    known: HeldOut, judged: HeldOut, but: str = "publication", share: float = 0.8, first: float | None = None
) -> Array:
    """Whether each judged run lies in its interval of `left_out_quantiles`, shape (runs,): 0, 1, NaN for none."""
    low, high = left_out_quantiles(known, judged, [(1 - share) / 2, (1 + share) / 2], but, first).T
    return np.where(np.isfinite(low), (low <= judged.error) & (judged.error <= high), np.nan)


def held_shares(p: Predictions, ends: Array | None = None) -> dict[str, float | None]:
    """Share of each source's timed runs that lies in its interval of 80 %, and `overall`; None: none.

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
    source = np.array([p.runs[i]["source"] for i in rows], dtype=str)
    runs = HeldOut(source=source, like=like, traits=its_traits, error=np.zeros(len(rows)))
    out = np.full((len(p.runs), 2), np.nan)
    ends = left_out_quantiles(all_errors(), runs, [(1 - share) / 2, (1 + share) / 2])
    out[rows] = p.step_time_s[rows, None] * np.exp(ends)
    return out
