"""Each run predicted by a fit that had not seen its publication."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.calibration.fit import Fit, Problem, fit_figures
from planner.calibration.selection import folds
from planner.validation import MeasuredRun, Predictions


def cross_validated(runs: list[MeasuredRun], fit: Fit, max_evaluations: int = 20) -> Predictions:
    """Predictions of all runs, each fold's by the figures of `fit` fitted anew to the other folds' runs.

    A figure that only the runs left out tell stays free: leaving it at the profile's value would give them away.

    Raises InputError if there is one source only.
    """
    at = {id(run): i for i, run in enumerate(runs)}
    whole = fit.predict(runs)
    step_time_s, memory_bytes, fits = whole.step_time_s.copy(), whole.memory_bytes.copy(), whole.fits.copy()
    for fold in folds(runs):
        rows = np.array([at[id(run)] for run in fold.held])
        p = fit_figures(Problem(fold.rest, fit.base), fit.figures, max_evaluations).predict(fold.held)
        step_time_s[rows], memory_bytes[rows], fits[rows] = p.step_time_s, p.memory_bytes, p.fits
    return replace(whole, step_time_s=step_time_s, memory_bytes=memory_bytes, fits=fits)
