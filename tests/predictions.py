"""Predictions of all measured runs, which take seconds: made once for the tests that look at them."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import numpy as np

from planner.api.validated import Validated, validate
from planner.reproductions.measured_figures import _predicted
from planner.validation import Predictions, unseen_files

__all__ = ["of_shipped", "of_unseen"]


@cache
def of_shipped() -> Validated:
    """What `planner validate` shows."""
    return validate()


@cache
def of_unseen() -> Predictions:
    """Of the runs that no fit saw: of all that a paper's claims ask for (`tests/reproductions`)."""
    every, files = _predicted(()), set(unseen_files())
    rows = np.array([run.path in files for run in every.runs])
    arrays = {f.name: x[rows] for f in fields(every) if isinstance(x := getattr(every, f.name), np.ndarray)}
    runs, reasons = ([x for x, one in zip(of_all, rows, strict=True) if one] for of_all in (every.runs, every.reasons))
    return replace(every, **arrays, runs=runs, reasons=reasons)
