"""Fits how far peak memory lies from what is predicted, and shows how often layouts of each chance did fit.

    python benchmarks/memory_errors.py            # prints; writes planner/costs/memory/fit_chance.toml with --write

The logarithm of needed over predicted memory is taken as logistic, one distribution for all runs. A run that states its
memory counts by the density there, one that ran out or fit by the probability of that. A set of n runs counts as the
root of n. Left out, as they say nothing of the formula: a run that fit with less than 60 % of the memory predicted; one
that does not state its recomputation, which the prediction chose; one that fit though its states and the inputs of its
recomputed layers alone are more than the memory, so that host memory held some. A kind (framework, GPU architecture,
precision, experts) is measured where ten runs of three publications state memory or ran out: one publication does not
tell how they differ. The scale is that of runs whose kinds are all measured by the other publications, and of the rest
another. The chances that are shown come from fits without the run's own publication, of runs that state their
recomputation and can have been as stated.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from planner.costs.memory import fit_chance as chance
from planner.hardware import load_cluster, load_framework
from planner.layouts import Layouts
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.validation.accuracy import shipped_files, unseen_files
from planner.validation.defaults import candidates, framework_name
from planner.validation.predict import Models, predict
from planner.validation.runs import MeasuredRun, cluster_name, read_runs

BANDS = (0.0, 0.05, 0.3, 0.7, 0.9, 0.95, 0.99, 1.0)
TELLS = 0.6  # of the memory: a run that fit below it says nothing of the error
LEAST, PUBLICATIONS = 10, 3  # of a kind that is measured: runs that state memory or ran out, and publications of them
LOCATIONS, SCALES = np.linspace(-0.3, 0.3, 121), np.geomspace(0.008, 0.3, 73)


@dataclass(frozen=True)
class Known:
    """Runs of which memory is predicted, arrays of shape (n,).

    share: logarithm of predicted memory over capacity; ratio: of measured over predicted, NaN where it isn't stated.
    """

    runs: list[MeasuredRun]
    kinds: list[tuple[tuple[str, ...], ...]]
    source: NDArray[np.str_]
    publication: NDArray[np.str_]
    share: NDArray[np.float64]
    ratio: NDArray[np.float64]
    ok: NDArray[np.bool_]
    told: NDArray[np.bool_]
    """Whether a run states its recomputation, and can have been as it is stated."""

    @property
    def telling(self) -> NDArray[np.bool_]:
        """Which say something of memory's error."""
        return self.told & (np.isfinite(self.ratio) | ~self.ok | (self.share > np.log(TELLS)))

    def measured(self, rows: NDArray[np.bool_]) -> set[str]:
        """Kinds of which enough of some runs, of enough publications, state their memory or ran out of it.

        A run tells of its own framework, and of those that this one is built on.
        """
        known = np.flatnonzero(rows & (np.isfinite(self.ratio) | ~self.ok))
        told = [(kind, self.publication[i]) for i in known for names in self.kinds[i] for kind in names]
        count, by = Counter(kind for kind, _ in told), Counter(kind for kind, _ in set(told))
        return {kind for kind, n in count.items() if n >= LEAST and by[kind] >= PUBLICATIONS}

    def familiar(self, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which runs have only kinds that some runs measure."""
        measured = self.measured(rows)
        return np.array([not chance.unmeasured(kinds, measured) for kinds in self.kinds])


def can_have_been(run: MeasuredRun, setup: Setup) -> bool:
    """Whether states and the inputs of recomputed layers alone fit, of a run that recomputes all."""
    if run["recompute"] != "full":
        return True
    table = Layouts.of_rows(candidates(run, setup.model, setup.framework)[:1])
    m = estimate(setup, table).memory
    inputs = m.activations_bytes / (1.0 + setup.framework.fragmentation)
    least = m.parameters_bytes + m.gradients_bytes + m.optimizer_bytes + inputs
    return bool(least[0] <= setup.cluster.accelerator.memory_bytes)


def known_runs() -> Known:
    """All shipped and unseen runs, predicted."""
    every = [run for path in [*shipped_files(), *unseen_files()] for run in read_runs(path)]
    p, models = predict(every), Models()
    rows = np.flatnonzero(np.isfinite(p.memory_bytes))
    setups = []
    for i in rows:
        cluster = load_cluster(cluster_name(every[i]))
        framework = load_framework(framework_name(every[i], cluster))
        setups.append(Setup(models.models[models.of(every[i])], cluster, framework))
    room = np.array([s.cluster.accelerator.memory_bytes for s in setups])
    source = np.array([every[i]["source"] for i in rows])
    ok, share = p.ok[rows], np.log(p.memory_bytes[rows] / room)
    told = [
        every[i]["recompute"] is not None and (not fit or over <= 0 or can_have_been(every[i], s))
        for i, s, fit, over in zip(rows, setups, ok, share, strict=True)
    ]
    return Known(
        runs=[every[i] for i in rows],
        kinds=[chance.kinds_of(s, every[i]["precision"]) for s, i in zip(setups, rows, strict=True)],
        source=source, publication=np.array([name.split("-")[0] for name in source]),
        share=share,
        ratio=np.log(p.measured_memory_bytes[rows] / p.memory_bytes[rows]), ok=ok, told=np.array(told),
    )  # fmt: skip


def log_likelihood(known: Known, rows: NDArray[np.bool_], location: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Of some runs, summed along the last axis; location and scale broadcast with the runs."""
    _, at, size = np.unique(known.source[rows], return_inverse=True, return_counts=True)
    ratio, share, ok = known.ratio[rows], known.share[rows], known.ok[rows]
    stated = np.isfinite(ratio)
    z = (np.where(stated, ratio, -share) - location) / scale
    density = -np.abs(z) - 2 * np.log1p(np.exp(-np.abs(z))) - np.log(scale)
    outcome = -np.logaddexp(0, np.where(ok, -z, z))
    return (np.where(stated, density, outcome) * size[at] ** -0.5).sum(axis=-1)


def fit(known: Known, rows: NDArray[np.bool_], every: int = 1) -> tuple[float, float]:
    """Location and scale of greatest likelihood, on a grid, of which only every so manyth point may be tried."""
    locations, scales = LOCATIONS[::every], SCALES[::every]
    likelihood = np.stack([log_likelihood(known, rows, locations[:, None], scale) for scale in scales])
    j, i = np.unravel_index(likelihood.argmax(), likelihood.shape)
    return float(locations[i]), float(scales[j])


def fits(known: Known, rows: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Location, scale of runs whose kinds the other publications measure, and scale of the others."""
    location, familiar = fit(known, rows)[0], np.zeros(len(rows), dtype=bool)
    for name in np.unique(known.publication[rows]):
        its = known.publication == name
        familiar[its] = known.familiar(rows & ~its)[its]
    both = (rows & familiar, rows & ~familiar)
    scale, wider = (SCALES[log_likelihood(known, of, np.array(location), SCALES[:, None]).argmax()] for of in both)
    return location, float(scale), float(wider)


def held_out(
    known: Known, only: set[str] | None = None
) -> Iterator[tuple[str, NDArray[np.bool_], NDArray[np.float64]]]:
    """Of each publication its runs, and the chance of fitting that a fit without it gives to every run.

    only: publications, where not all are wanted.
    """
    for name in sorted(set(known.publication.tolist()) if only is None else only):
        rest = known.telling & (known.publication != name)
        location, scale, wider = fits(known, rest)
        z = (known.share + location) / np.where(known.familiar(rest), scale, wider)
        yield known.publication == name, 1.0 / (1.0 + np.exp(z))


def main() -> None:
    """Print the fit and its reliability; write it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write planner/costs/memory/fit_chance.toml")
    args = parser.parse_args()
    known = known_runs()
    tells, ok = known.telling, known.ok
    location, scale, wider = fits(known, tells)
    failing = np.isin(known.source, np.unique(known.source[~ok]))
    said = np.zeros(len(ok))
    for its, chances in held_out(known):
        said[its] = chances[its]
    counts = f"{tells.sum():,} of {len(ok):,} runs tell: "
    counts += f"{np.isfinite(known.ratio).sum()} state memory, {(~ok).sum()} ran out"
    measured = sorted(known.measured(tells))
    print(f"{counts}\nlocation {location:.4f}, scale {scale:.4f}, of kinds without measured memory {wider:.4f}")
    print(f"with measured memory: {', '.join(measured)}\n")
    print("chance said   all runs   did fit   of sets with failures   did fit")
    for low, high in [*pairwise(BANDS), (0.9, 1.0)]:
        here = (said >= low) & ((said < high) | (high == 1.0)) & known.told
        of = here & failing
        shares = [f"{ok[k].mean():8.1%}" if k.any() else " " * 8 for k in (here, of)]
        print(f"{low:4.0%} to {high:4.0%} {here.sum():10,}  {shares[0]} {of.sum():23,}  {shares[1]}")
    if args.write:
        print(f"\n{chance.FITTED}")
        chance.FITTED.write_text(
            f'source = "benchmarks/memory_errors.py: {counts}; a set of n runs counts as the root of n"\n'
            f"location = {location:.4f}\nscale = {scale:.4f}\n"
            "# Where a kind is not measured, and the kinds that are: ten runs of three publications tell of them.\n"
            f"unmeasured_scale = {wider:.4f}\n"
            f"measured = [{', '.join(f'{kind!r}' for kind in measured)}]\n".replace("'", '"')
        )


if __name__ == "__main__":
    main()
