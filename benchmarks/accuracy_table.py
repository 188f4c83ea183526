"""The first table of docs/accuracy.md: errors by GPU generation and kind of model, familiar and new publications.

    python benchmarks/accuracy_table.py

A shipped run is predicted by a fit that had not seen its publication; an unseen run by the shipped profiles, which no
run of its publication was fitted to. `step`: the mean over sets of the mean |predicted / measured - 1|; `worst set`:
the largest of those means; `in interval`: runs whose step lies in the interval of 80 % that is made without their
publication. Everything is read from planner/validation/held_out.csv and unseen.csv.
"""

from __future__ import annotations

import numpy as np

from planner.validation.errors import HeldOut, errors_of_kind, held_out, unseen
from planner.validation.interval import coverage

KINDS = {False: "dense and hybrid", True: "mixtures"}


def line(architecture: str, experts: bool, where: str, errors: HeldOut) -> str:
    rows = (errors.architecture == architecture) & (errors.experts == experts)
    if not rows.any():
        return ""
    judged = errors.where(np.flatnonzero(rows))
    off = np.abs(np.exp(-judged.error) - 1.0)
    sets = {str(s): off[judged.source == s].mean() for s in np.unique(judged.source)}
    worst = max(sets, key=lambda s: sets[s])
    inside = coverage(errors_of_kind(experts=experts), judged)
    held = f"{100 * np.nanmean(inside):.0f} %" if np.isfinite(inside).any() else "none made"
    return (
        f"| {architecture} | {KINDS[experts]} | {where} | {len(off)} in {len(sets)} | "
        f"{100 * np.mean(list(sets.values())):.1f} % | {100 * sets[worst]:.0f} % ({worst}) | {held} |"
    )


def main() -> None:
    print("| GPUs | models | runs | number, in sets | step | worst set | in interval |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    everything = sorted({*held_out().architecture, *unseen().architecture})
    for experts in KINDS:
        for architecture in everything:
            for where, errors in (("fitted, held out", held_out()), ("unseen", unseen())):
                if row := line(str(architecture), experts, where, errors):
                    print(row)


if __name__ == "__main__":
    main()
