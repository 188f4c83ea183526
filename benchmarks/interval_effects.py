"""A rule for intervals that was tried and not taken: errors as a sum of random effects (docs/accuracy-findings.md).

    python benchmarks/interval_effects.py            # beside today's rule, about five minutes
    python benchmarks/interval_effects.py --slopes   # with slopes of each set's own around its mean sizes
    python benchmarks/interval_effects.py --centred  # around the prediction: the mean counts as width

The logarithm of measured over predicted step time is a free mean, plus effects of each trait's level, one slope for
each size in octaves, effects of the publication and of its set, and the run's own error, all normal around 0. Models
with experts have effects of their own, whose deviations are `ratio` times as large. Deviations by restricted maximum
likelihood (REML); a question's error, of a new publication, by the best linear unbiased predictor; Student's degrees
of freedom and a scale by likelihood of errors predicted without their publication, each publication counting alike.
All is estimated again without what is left out.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from cross_validate import WITHIN, mean_of, strangers, timed
from interval_coverage import ENDS, LEVELS, Array, drawn, errors_of, scores, show
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import t as student

from planner.validation import predict, read_runs, shipped_files, unseen_files
from planner.validation.errors import LIKENESS, TRAITS, HeldOut, all_errors
from planner.validation.interval import left_out_quantiles

LEAST, MOST = 1e-4, 3.0  # a deviation that the likelihood puts at zero ends at the first
SIZES = slice(-1 - len(LIKENESS), -1)
NAMES = (*TRAITS, "size", "publication", "source", "slope", "run", "ratio")


@dataclass(frozen=True)
class Components:
    """Standard deviations, by NAMES, shape (11,); of an error over its predicted one: Student's scale and freedom."""

    deviations: Array
    scale: float = 1.0
    freedom: float = 5.0


@dataclass(frozen=True)
class Sums:
    """Of known runs, by set, sums of products of their columns: 1, levels of traits, sizes, the error.

    at, level: the trait of each level, and its name. centre: mean sizes, octaves. sums: shape (sets, columns, columns).
    """

    at: NDArray[np.int64]
    level: NDArray[np.str_]
    centre: Array
    sums: Array
    publication: NDArray[np.str_]
    experts: bool

    def columns(self, runs: HeldOut) -> Array:
        levels = runs.traits[:, self.at] == self.level
        return np.hstack([np.ones((len(levels), 1)), levels, np.log2(runs.like) - self.centre])

    @classmethod
    def of(cls, known: HeldOut) -> Sums:
        pairs = [(t, name) for t in range(len(TRAITS)) for name in np.unique(known.traits[:, t])]
        empty = cls(
            np.array([t for t, _ in pairs]), np.array([name for _, name in pairs]), np.log2(known.like).mean(axis=0),
            np.zeros(0), known.publication, bool(known.experts[0]),
        )  # fmt: skip
        rows = np.hstack([empty.columns(known), known.error[:, None]])
        _, first, of = np.unique(known.source, return_index=True, return_inverse=True)
        sums = np.array([rows[of == k].T @ rows[of == k] for k in range(len(first))])
        return replace(empty, sums=sums, publication=known.publication[first])

    def deviations(self, c: Components) -> tuple[Array, Array]:
        """Of the effects of all columns but the mean; of publication, set, slope and run."""
        d = c.deviations * (c.deviations[-1] if self.experts else 1.0)
        return np.concatenate([d[self.at], np.full(len(LIKENESS), d[5])]), d[6:10]

    def information(self, c: Components) -> tuple[Array, float]:
        """Of each publication X'V^-1 X with the error as last column; the log determinant of all V."""
        shared, of_set, slope, own = self.deviations(c)[1]
        count, first = self.sums[:, 0, 0], self.sums[:, 0]
        basis = np.zeros((*first.shape, 1 + len(LIKENESS)))
        basis[:, 0, 0], basis[:, 0, 1:] = of_set, -slope * first[:, SIZES] / count[:, None]
        basis[:, SIZES, 1:] = slope * np.eye(len(LIKENESS))
        left, of_sets = absorbed(self.sums / own**2, basis)
        left = np.array([left[self.publication == name].sum(axis=0) for name in np.unique(self.publication)])
        left, of_publications = absorbed(left, shared * np.eye(first.shape[1])[None, :, :1])
        return left, 2.0 * count.sum() * np.log(own) + of_sets + of_publications

    @property
    def scatter(self) -> float:
        """Variance of sizes within a set, summed over them, every set of two runs and more alike."""
        count = self.sums[:, 0, 0]
        squares = np.einsum("skk->s", self.sums[:, SIZES, SIZES]) - (self.sums[:, 0, SIZES] ** 2).sum(axis=1) / count
        several = count > 1
        return float((squares[several] / (count[several] - 1.0)).mean()) if several.any() else 0.0


def absorbed(information: Array, basis: Array) -> tuple[Array, float]:
    """Information where runs share effects of variance 1 along a basis of columns too; log determinants it adds."""
    across = information @ basis
    inner = np.eye(basis.shape[-1]) + np.swapaxes(basis, 1, 2) @ across
    left = information - across @ np.linalg.solve(inner, np.swapaxes(across, 1, 2))
    return left, float(np.linalg.slogdet(inner)[1].sum())


@dataclass(frozen=True)
class Effects:
    """The effects as known runs tell them; spread: deviations that new levels add, shape (5,)."""

    sums: Sums
    components: Components
    spread: Array
    centred: bool

    def error(self, runs: HeldOut, without: str) -> tuple[Array, Array]:
        """Mean and deviation of the error of runs of a new publication, one publication's runs not counting."""
        s, keep = self.sums, np.unique(self.sums.publication) != without
        of_columns, own = s.deviations(self.components)
        information = s.information(self.components)[0][keep].sum(axis=0)
        covariance = np.linalg.inv(information[:-1, :-1] + np.diag(np.concatenate([[0.0], of_columns**-2.0])))
        x, levels = s.columns(runs), slice(1, 1 + len(s.at))
        x[:, levels] *= s.sums[s.publication != without, 0, levels].sum(axis=0) > 0
        known = np.stack([x[:, levels][:, s.at == t].any(axis=1) for t in range(len(TRAITS))], axis=1)
        ratio = self.components.deviations[-1] if s.experts else 1.0
        new = ~known @ ((ratio * self.components.deviations[: len(TRAITS)]) ** 2 + self.spread**2)
        variance = np.einsum("ni,ij,nj->n", x, covariance, x) + new + own**2 @ [1.0, 1.0, s.scatter, 1.0]
        mean = x @ covariance @ information[:-1, -1]
        return (0.0 * mean, np.sqrt(variance + mean**2)) if self.centred else (mean, np.sqrt(variance))


def pools(known: HeldOut) -> list[HeldOut]:
    return [known.where(known.experts == e) for e in (False, True) if (known.experts == e).any()]


def minus_likelihood(all_sums: list[Sums], c: Components) -> float:
    """Twice the negative logarithm of the restricted likelihood, but for a constant."""
    total = 0.0
    for sums in all_sums:
        information, log_determinant = sums.information(c)
        deviation, whole = sums.deviations(c)[0], information.sum(axis=0)
        inner = whole[:-1, :-1] + np.diag(np.concatenate([[0.0], deviation**-2.0]))
        left = whole[-1, -1] - whole[:-1, -1] @ np.linalg.solve(inner, whole[:-1, -1])
        total += log_determinant + 2.0 * np.log(deviation).sum() + np.linalg.slogdet(inner)[1] + left
    return float(total)


def estimate(known: HeldOut, start: Array, *, slopes: bool, centred: bool) -> Components:
    """Deviations by REML from some start; the tails by errors without their publication."""
    all_sums = [Sums.of(pool) for pool in pools(known)]
    bounds = [(np.log(LEAST), np.log(MOST))] * 10 + [(np.log(0.1), np.log(30.0))]
    if not slopes:
        bounds[NAMES.index("slope")] = (np.log(1e-6),) * 2
    if len(all_sums) == 1:
        bounds[-1] = (np.log(start[-1]),) * 2
    x = np.clip(np.log(start), *np.array(bounds).T)
    found = minimize(lambda x: minus_likelihood(all_sums, Components(np.exp(x))), x, method="L-BFGS-B", bounds=bounds)
    c, off, share = Components(np.exp(found.x)), [], []
    for pool, sums in zip(pools(known), all_sums, strict=True):
        effects = Effects(sums, c, np.zeros(len(TRAITS)), centred)
        for name in np.unique(pool.publication):
            runs = pool.where(pool.publication == name)
            mean, deviation = effects.error(runs, str(name))
            off.append((runs.error - mean) / deviation)
            share.append(np.full(len(mean), 1.0 / len(mean)))
    error, weight = np.concatenate(off), np.concatenate(share)

    def unlikely(y: Array) -> float:
        return float(-(weight * (student.logpdf(error / np.exp(y[0]), np.exp(y[1])) - y[0])).sum())

    tail = minimize(unlikely, [0.0, 1.5], method="L-BFGS-B", bounds=[(-2.0, 2.0), (0.0, np.log(1000.0))]).x
    return Components(c.deviations, *(float(v) for v in np.exp(tail)))


def spreads(moved: dict[str, Array], own: HeldOut, rows: NDArray[np.bool_]) -> Array:
    """`spread.csv` of some runs, shape (2, 5): how far predictions move without a trait, sets as the root of runs."""

    def deviation(of: Array, which: NDArray[np.bool_]) -> float:
        if not which.any():
            return 0.0
        _, at, size = np.unique(own.source[which], return_inverse=True, return_counts=True)
        far, weight = np.abs(of[which]), size[at] ** -0.5
        order = np.argsort(far)
        middle = np.cumsum(weight[order]) - 0.5 * weight[order]
        return float(np.interp(WITHIN, middle / weight.sum(), far[order]) / NormalDist().inv_cdf((1 + WITHIN) / 2))

    kind = own.traits[:, TRAITS.index("kind")]
    both = (~own.experts, own.experts)
    out = np.array([[deviation(moved[t], rows & pool) if t in moved else 0.0 for t in TRAITS] for pool in both])
    hybrids = deviation(own.error, rows & (kind == "hybrid")) ** 2 - deviation(own.error, rows & (kind == "dense")) ** 2
    out[0, TRAITS.index("kind")] = max(hybrids, 0.0) ** 0.5
    return out


def levels_of(runs: HeldOut, what: str) -> NDArray[np.str_]:
    """Of each run what is left out: its publication, or its trait's level."""
    return runs.publication if what == "publication" else runs.traits[:, TRAITS.index(what)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slopes", action="store_true")
    parser.add_argument("--centred", action="store_true")
    given = vars(parser.parse_args())
    known = all_errors()
    whole = estimate(known, np.array([0.05] * 5 + [0.01, 0.05, 0.05, 0.03, 0.05, 2.0]), **given)
    likelihood = minus_likelihood([Sums.of(pool) for pool in pools(known)], whole)
    figures = ", ".join(f"{n} {v:.4f}" for n, v in zip(NAMES, whole.deviations, strict=True))
    print(f"{figures}, scale {whole.scale:.3f}, freedom {whole.freedom:.2f}; -2 log likelihood {likelihood:.1f}")
    runs = [run for path in (*shipped_files(), *unseen_files()) for run in read_runs(path)]
    p, away = predict(runs), strangers(runs)
    moved = {t: np.log(q.step_time_s / p.step_time_s)[timed(p)] for t, q in away.items()}
    own, ratios = errors_of(p), []
    for but in ("publication", *moved):
        judged = drawn(known if but == "publication" else errors_of(away[but]))
        old = left_out_quantiles(known, judged, [*LEVELS, *ENDS], but)
        new = np.full_like(old, np.nan)
        for level in np.unique(levels_of(judged, but)):
            rest = known.where(levels_of(known, but) != level)
            c, spread = estimate(rest, whole.deviations, **given), spreads(moved, own, levels_of(own, but) != level)
            of_student = c.scale * student.ppf([*LEVELS, *ENDS], c.freedom)
            for experts in (False, True):
                its = (levels_of(judged, but) == level) & (judged.experts == experts)
                pool = rest.where(rest.experts == experts)
                for name in np.unique(judged.publication[its]):
                    if not set(pool.publication) - {name}:
                        continue
                    rows = np.flatnonzero(its & (judged.publication == name))
                    effects = Effects(Sums.of(pool), c, spread[int(experts)], given["centred"])
                    mean, deviation = effects.error(judged.where(rows), str(name))
                    new[rows] = mean[:, None] + deviation[:, None] * of_student
        print(f"{but} left out")
        for experts, word in ((False, "dense and hybrid"), (True, "mixtures")):
            both = np.isfinite(old[:, 0]) & np.isfinite(new[:, 0]) & (judged.experts == experts)
            each = []
            for name, quantiles in (("today's", old), ("effects", new)):
                show(f"{word}, {name}", judged, quantiles, both)
                found = scores(judged.where(both), quantiles[both])
                each.append([mean_of(judged.source[both], found[key]) for key in ("score", "pinball", "width")])
            ratios.append(np.log(each[1]) - np.log(each[0]))
    mean = np.exp(np.mean(ratios, axis=0))
    print(f"over today's rule, geometric mean of ten: score {mean[0]:.3f}, pinball {mean[1]:.3f}, width {mean[2]:.3f}")


if __name__ == "__main__":
    main()
