"""Predictions of all measured runs, which take seconds: made once for the tests that look at them."""

from __future__ import annotations

from functools import cache

from planner.api.validated import Validated, validate
from planner.validation import Predictions, predict, read_runs, unseen_files

__all__ = ["of_shipped", "of_unseen"]


@cache
def of_shipped() -> Validated:
    """What `planner validate` shows."""
    return validate()


@cache
def of_unseen() -> Predictions:
    """Of the runs that no fit saw."""
    return predict([run for path in unseen_files() for run in read_runs(path)])
