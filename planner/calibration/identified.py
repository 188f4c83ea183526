"""The figures that some runs identify; the others stay as the profile has them.

Before any run a figure may be anywhere between its bounds: a variance of 1/12 of the span squared. What the runs add is
in the Jacobian; `told` is the share of that variance that they take away. At one half the figure's standard error is
what a guess between the bounds would have.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.base.arrays import Array
from planner.base.errors import InputError
from planner.calibration.figures import FittedFigure
from planner.calibration.fit import ROBUST, Fit, Problem, fit_figures, jacobian_at_start

GUESS = 12.0
"""One over the variance of a guess in the unit interval."""
LEAST_TOLD = 0.5
RUNS_A_FIGURE = 3
"""At least so many timed runs of different configurations for each figure that is fitted to them."""


@dataclass(frozen=True, kw_only=True)
class Left:
    """A figure that is not fitted, and why."""

    figure: FittedFigure
    reason: str


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A fit of what the runs tell, how much of it (shape (figures,)), and what was left as it was."""

    fit: Fit
    told: Array
    left: tuple[Left, ...]


def told(jacobian: Array, variance: float) -> Array:
    """Share of a guess's variance that the runs take away, by figure, 0 to 1.

    jacobian: of weighted residuals over the unit interval, (runs, figures); variance: of a weighted residual.
    """
    information = jacobian.T @ jacobian / max(variance, 1e-300) + GUESS * np.eye(jacobian.shape[1])
    return np.asarray(1.0 - GUESS * np.diag(np.linalg.inv(information)))


def calibrate(problem: Problem, figures: Sequence[FittedFigure], max_evaluations: int = 20) -> Calibration:
    """Fit the figures that the runs tell; the others stay as they are.

    Raises InputError if the runs tell none of them.
    """
    left: list[Left] = []
    # Before the fit, with a model's usual error for the residuals': what is hopeless would only wander.
    variance = ROBUST**2 * float(np.mean(problem.weight**2)) if len(problem.weight) else 1.0
    free = _pruned(list(figures), jacobian_at_start(problem, figures), variance, problem.different, left)
    while free:
        fit = fit_figures(problem, free, max_evaluations)
        kept = _pruned(free, fit.jacobian, fit.variance, problem.different, left)
        if len(kept) == len(free):
            return Calibration(fit=fit, told=told(fit.jacobian, fit.variance), left=tuple(left))
        free = kept
    n = len(problem.measured_s)
    runs = f"{n} timed run{'s' * (n != 1)} {'tell' if n != 1 else 'tells'}"
    raise InputError(f"{runs} none of the figures that may be fitted; allowed: more runs, more different")


def _pruned(
    figures: list[FittedFigure], jacobian: Array, variance: float, different: int, left: list[Left]
) -> list[FittedFigure]:
    """Without what is told too little, the least told first: of two that only their sum is told one stays."""
    kept = list(range(len(figures)))
    while kept:
        share = told(jacobian[:, kept], variance)
        worst = int(np.argmin(share))
        if not np.any(jacobian[:, kept[worst]]):
            reason = "no run depends on it"
        elif share[worst] < LEAST_TOLD:
            reason = f"the runs tell {100 * share[worst]:.0f} % of what its bounds leave open"
        elif len(kept) * RUNS_A_FIGURE > different:
            reason = f"{different} different runs are too few for {len(kept)} figures; this one they tell least"
        else:
            break
        left.append(Left(figure=figures[kept.pop(worst)], reason=reason))
    return [figures[i] for i in kept]
