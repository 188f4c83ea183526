"""Fits how far peak memory lies from what is predicted, and shows how often layouts of each chance did fit.

    python benchmarks/memory_errors.py            # prints; writes planner/costs/memory/fit_chance.toml with --write

The logarithm of needed over predicted memory is taken as logistic, one distribution for all runs. A run that states its
memory counts by the density there, one that ran out or fit by the probability of that; a run that fit with less than
60 % of the memory predicted says nothing and is left out. A set of n runs counts as the root of n. The chances that are
shown come from fits without the run's own publication.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np

from planner.costs.memory import fit_chance as chance
from planner.hardware import load_cluster
from planner.validation.accuracy import shipped_files, unseen_files
from planner.validation.predict import predict
from planner.validation.runs import read_runs
from planner.validation.software import cluster_name

BANDS = (0.0, 0.05, 0.3, 0.7, 0.9, 0.95, 0.99, 1.0)
TELLS = 0.6  # of the memory: a run that fit below it says nothing of the error


def runs() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Source, logarithms of predicted memory over capacity and of measured over predicted (NaN), whether it fit."""
    every = [run for path in [*shipped_files(), *unseen_files()] for run in read_runs(path)]
    p = predict(every)
    room = np.array([load_cluster(cluster_name(run)).accelerator.memory_bytes for run in every])
    share, ratio = np.log(p.memory_bytes / room), np.log(p.measured_memory_bytes / p.memory_bytes)
    known = np.isfinite(share)
    return np.array([run["source"] for run in every])[known], share[known], ratio[known], p.ok[known]


def fit(source: np.ndarray, share: np.ndarray, ratio: np.ndarray, ok: np.ndarray) -> tuple[float, float]:
    """Location and scale of greatest likelihood, on a grid."""
    _, at, size = np.unique(source, return_inverse=True, return_counts=True)
    weight, stated = size[at] ** -0.5, np.isfinite(ratio)
    location, scale = np.linspace(-0.3, 0.3, 121)[:, None, None], np.geomspace(0.008, 0.3, 73)[None, :, None]
    z = (np.where(stated, ratio, -share) - location) / scale
    density = -np.abs(z) - 2 * np.log1p(np.exp(-np.abs(z))) - np.log(scale)
    outcome = -np.logaddexp(0, np.where(ok, -z, z))
    likelihood = (np.where(stated, density, outcome) * weight).sum(axis=-1)
    i, j = np.unravel_index(likelihood.argmax(), likelihood.shape)
    return float(location[i, 0, 0]), float(scale[0, j, 0])


def main() -> None:
    """Print the fit and its reliability; write it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write planner/costs/memory/fit_chance.toml")
    args = parser.parse_args()
    source, share, ratio, ok = runs()
    tells = np.isfinite(ratio) | ~ok | (share > np.log(TELLS))
    location, scale = fit(source[tells], share[tells], ratio[tells], ok[tells])
    publication = np.array([name.split("-")[0] for name in source])
    failing = np.isin(source, np.unique(source[~ok]))
    said = np.zeros(len(source))
    for name in np.unique(publication):
        rest = tells & (publication != name)
        a, b = fit(source[rest], share[rest], ratio[rest], ok[rest])
        its = publication == name
        said[its] = 1.0 / (1.0 + np.exp((share[its] + a) / b))
    counts = f"{tells.sum():,} of {len(source):,} runs tell: "
    counts += f"{np.isfinite(ratio).sum()} state memory, {(~ok).sum()} ran out"
    print(f"{counts}\nlocation {location:.4f}, scale {scale:.4f}\n")
    print("chance said   all runs   did fit   of sets with failures   did fit")
    for low, high in pairwise(BANDS):
        here = (said >= low) & ((said < high) | (high == 1.0))
        of = here & failing
        shares = [f"{ok[k].mean():8.1%}" if k.any() else " " * 8 for k in (here, of)]
        print(f"{low:4.0%} to {high:4.0%} {here.sum():10,}  {shares[0]} {of.sum():23,}  {shares[1]}")
    if args.write:
        print(f"\n{chance.FITTED}")
        Path(chance.FITTED).write_text(
            f'source = "benchmarks/memory_errors.py: {counts}; a set of n runs counts as the root of n"\n'
            f"location = {location:.4f}\nscale = {scale:.4f}\n"
        )


if __name__ == "__main__":
    main()
