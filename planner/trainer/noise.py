"""The gradient noise scale B_simple = tr(Sigma) / |G|^2 (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1).

Two estimates of the gradient's squared norm, from batches of B_small and B_big sequences, give both parts unbiased:

    |G|^2     = (B_big |G_big|^2 - B_small |G_small|^2) / (B_big - B_small)
    tr(Sigma) = (|G_small|^2 - |G_big|^2) / (1 / B_small - 1 / B_big)

Each is noisy, so averages over steps are divided, not the parts of one step.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class NoiseScale:
    """Running sums of both parts over the steps that were measured."""

    gradient: float = 0.0
    noise: float = 0.0
    measured: int = 0

    def add(self, small: int, small_norm: float, big: int, big_norm: float) -> None:
        """One pair of batches: their sizes in sequences, their gradients' norms."""
        self.gradient += (big * big_norm**2 - small * small_norm**2) / (big - small)
        self.noise += (small_norm**2 - big_norm**2) / (1.0 / small - 1.0 / big)
        self.measured += 1

    @property
    def sequences(self) -> float:
        """B_simple in sequences; not a number until something was measured, or where noise hides the gradient."""
        return self.noise / self.gradient if self.gradient > 0 else float("nan")
