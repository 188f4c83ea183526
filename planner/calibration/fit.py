"""Figures of hardware and framework profiles fitted to measured runs: robust least squares within physical bounds.

The unknowns are scaled to the unit interval between their bounds. A run's residual is the logarithm of predicted over
measured step time, its soft absolute value on one scale; every source counts alike. Standard errors are those of the
Jacobian at the fit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.base.arrays import Array
from planner.calibration.figures import FittedFigure, Profiles, predict_with
from planner.validation import MeasuredRun, Predictions
from planner.validation.runs import REAL

ROBUST = 0.02
"""Relative error from which on a run counts by its size rather than its square."""
STEP = 0.01
"""Fraction of the span between a figure's bounds: a step that shows whether the figure matters."""
OUTCOMES = ("source", "run", "note", "step_time_kind", *REAL)
"""Columns that don't tell one configuration from another."""
AT_BOUND = 1e-3
"""Fraction of the span between a figure's bounds: a fitted figure nearer than this to a bound is said to be at it."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Figures with their fitted values and standard errors, SI, shape (figures,).

    jacobian: of the weighted residuals over the unit interval, shape (timed runs, figures); variance: of a weighted
    residual. converged: not stopped by the number of evaluations.
    """

    figures: tuple[FittedFigure, ...]
    value: Array
    error: Array
    jacobian: Array
    variance: float
    timed_runs: int
    sources: int
    converged: bool
    base: Profiles

    @property
    def fitted(self) -> list[tuple[FittedFigure, float, float]]:
        """Each figure with its value and standard error."""
        return list(zip(self.figures, self.value.tolist(), self.error.tolist(), strict=True))

    def predict(self, runs: list[MeasuredRun]) -> Predictions:
        """Predictions of runs by the fitted profiles."""
        return predict_with(self.figures, self.value, runs, self.base)

    def at_bound(self, i: int) -> str:
        """`lower` or `upper` where figure i ended at a bound, else empty."""
        f = self.figures[i]
        share = (self.value[i] - f.low) / (f.high - f.low)
        return "lower" if share < AT_BOUND else "upper" if share > 1.0 - AT_BOUND else ""


class Problem:
    """Runs to fit to: their measured times and weights, and how many different configurations they are."""

    def __init__(self, runs: list[MeasuredRun], base: Profiles) -> None:
        """Predicts the runs once, to know which can be and what was measured."""
        self.runs, self.base = runs, base
        shipped = predict_with((), np.zeros(0), runs, base, closed_form=True)
        self.timed = np.isfinite(shipped.measured_s) & np.isfinite(shipped.step_time_s)
        self.measured_s = shipped.measured_s[self.timed]
        source = np.array([run["source"] for run in runs])[self.timed]
        names, at, size = np.unique(source, return_inverse=True, return_counts=True)
        self.weight = np.array([float(n) ** -0.5 for n in size])[at]
        self.sources = len(names)
        timed = [run.cells for run, is_timed in zip(runs, self.timed, strict=True) if is_timed]
        self.different = len({tuple(v for k, v in cells.items() if k not in OUTCOMES) for cells in timed})

    def errors(self, figures: Sequence[FittedFigure], unit: Array) -> Array:
        """Logarithm of predicted over measured, shape (timed runs,), at places of the unit interval."""
        p = predict_with(figures, in_si(figures, unit), self.runs, self.base, closed_form=True)
        return np.asarray(np.log(p.step_time_s[self.timed] / self.measured_s))

    def residuals(self, figures: Sequence[FittedFigure], unit: Array) -> Array:
        """Soft absolute errors, all on one scale, then weighted by source.

        The least-squares routine's own loss would come after the weight, and forgive a run of a small source what it
        holds against one of a large source.
        """
        u = self.errors(figures, unit) / ROBUST
        return np.asarray(self.weight * (ROBUST * np.sqrt(2.0 * (np.sqrt(1.0 + u**2) - 1.0))))


def in_si(figures: Sequence[FittedFigure], unit: Array) -> Array:
    """Places in the unit interval as values."""
    low = np.array([f.low for f in figures])
    return np.asarray(low + unit * (np.array([f.high for f in figures]) - low))


def start_of(figures: Sequence[FittedFigure]) -> Array:
    """The figures' starts, as places in the unit interval, a little inside the bounds."""
    return np.array([np.clip((f.start - f.low) / (f.high - f.low), 0.02, 0.98) for f in figures])


def jacobian_at_start(problem: Problem, figures: Sequence[FittedFigure]) -> Array:
    """Slopes of the weighted errors at the figures' starts; shape (timed runs, figures)."""
    return slopes(lambda unit: problem.weight * problem.errors(figures, unit), start_of(figures))


def slopes(function: Callable[[Array], Array], unit: Array) -> Array:
    """The Jacobian of a function of places in the unit interval, by a step of each inwards: at a bound too."""
    here = function(unit)
    out = np.zeros((len(here), len(unit)))
    for i, place in enumerate(unit):
        step = STEP if place < 0.5 else -STEP
        moved = unit.copy()
        moved[i] += step
        out[:, i] = (function(moved) - here) / step
    return out


def fit_figures(problem: Problem, figures: Sequence[FittedFigure], max_evaluations: int = 20) -> Fit:
    """Robust least squares from the figures' starts."""
    from scipy.optimize import least_squares

    start = start_of(figures)
    # Near bounds the solver would move the others too, though nothing tells where to.
    free = np.any(jacobian_at_start(problem, figures) != 0, axis=0)

    def places(unit: Array) -> Array:
        out = start.copy()
        out[free] = unit
        return out

    def residuals(unit: Array) -> Array:
        return problem.residuals(figures, places(unit))

    found = least_squares(residuals, start[free], bounds=(0, 1), diff_step=1e-3, max_nfev=max_evaluations)
    jacobian = np.zeros((len(found.fun), len(figures)))
    # The routine's own differences are relative to the place: nothing at a lower bound.
    jacobian[:, free] = slopes(residuals, found.x)
    variance = 2.0 * float(found.cost) / max(len(found.fun) - len(figures), 1)
    squared = np.diag(np.linalg.pinv(jacobian.T @ jacobian)) * variance
    span = np.array([f.high - f.low for f in figures])
    return Fit(
        figures=tuple(figures),
        value=in_si(figures, places(found.x)),
        error=np.sqrt(np.clip(squared, 0.0, None)) * span,
        jacobian=jacobian,
        variance=variance,
        timed_runs=len(problem.measured_s),
        sources=problem.sources,
        converged=found.status > 0,
        base=problem.base,
    )
