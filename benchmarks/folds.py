"""Measured runs left out together: those of a publication, for fits that have not seen it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.base.errors import InputError
from planner.validation import MeasuredRun
from planner.validation.publications import publication_of


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Runs that are left out together, and the others."""

    name: str
    rest: list[MeasuredRun]
    held: list[MeasuredRun]


def origin_of(run: MeasuredRun) -> str:
    """The publication of a shipped run, which stands for all its sources; the source of one's own."""
    publication = publication_of(run["source"])
    return publication.sets if publication else str(run["source"])


def folds(runs: Sequence[MeasuredRun], key: Callable[[MeasuredRun], str] = origin_of) -> list[Fold]:
    """One for each value of a key: for each origin, or what else is left out together.

    Raises InputError if there is one only.
    """
    of = [key(run) for run in runs]
    names = list(dict.fromkeys(of))
    if len(names) < 2:
        raise InputError(f"each source is left out in turn, and all runs are {names[0]}'s; allowed: 2 or more")
    return [
        Fold(
            name=name,
            rest=[run for run, its in zip(runs, of, strict=True) if its != name],
            held=[run for run, its in zip(runs, of, strict=True) if its == name],
        )
        for name in names
    ]
