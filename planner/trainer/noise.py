"""The gradient noise scale B_simple = tr(Sigma) / |G|^2 (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1).

Two estimates of the gradient's squared norm, from batches of B_small and B_big sequences, give both parts unbiased:

    |G|^2     = (B_big |G_big|^2 - B_small |G_small|^2) / (B_big - B_small)
    tr(Sigma) = (|G_small|^2 - |G_big|^2) / (1 / B_small - 1 / B_big)

Each is noisy, so averages over steps are divided, not the parts of one step. The standard error of that ratio is the
delta method's, with the steps taken as independent: to first order the ratio errs by the mean over steps of
(tr(Sigma) - B |G|^2) / |G|^2. It says nothing where |G|^2 itself is not well above its own error.
"""

import math
from dataclasses import dataclass, field

import numpy as np

CLEAR = 2.0
"""Standard errors that the gradient's squared norm must be above zero: about 95 % of a normal distribution."""


@dataclass
class NoiseScale:
    """Both parts of each step that was measured."""

    gradient: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)

    def add(self, small: int, small_norm: float, big: int, big_norm: float) -> None:
        """One pair of batches: their sizes in sequences, their gradients' norms."""
        self.gradient.append((big * big_norm**2 - small * small_norm**2) / (big - small))
        self.noise.append((small_norm**2 - big_norm**2) / (1.0 / small - 1.0 / big))

    @property
    def sequences(self) -> float:
        """B_simple in sequences; not a number until something was measured, or where noise hides the gradient."""
        total = math.fsum(self.gradient)
        return math.fsum(self.noise) / total if total > 0 else math.nan

    @property
    def standard_error(self) -> float:
        """Standard error of `sequences`; not a number with fewer than two steps, or where noise hides the gradient."""
        if len(self.gradient) < 2 or math.isnan(self.sequences):
            return math.nan
        errors = np.array(self.noise) - self.sequences * np.array(self.gradient)
        return _of_mean(errors) / float(np.mean(self.gradient))

    @property
    def why_nothing(self) -> str:
        """Why the estimate means nothing; empty where it means something."""
        steps = len(self.gradient)
        if steps < 2:
            return f"measured at {steps} {'step' if steps == 1 else 'steps'}; its error needs two"
        if math.fsum(self.gradient) / steps <= CLEAR * _of_mean(np.array(self.gradient)):
            return f"the gradient is not seen above its noise in {steps} measured steps"
        if self.sequences <= 0:
            return f"below zero, so no noise is seen in {steps} measured steps"
        return ""


def _of_mean(values: np.ndarray) -> float:
    """The standard error of the mean of independent values."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))
