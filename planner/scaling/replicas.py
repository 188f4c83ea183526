"""What replicas that exchange seldom add to the loss, and the tokens that make up for it. Array-first."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.scaling.laws import LossLaw, ReplicaLaw
from planner.scaling.loss import least_loss, loss_at, tokens_for_loss


def loss_ratio(law: ReplicaLaw, N: Any, replicas: Any, every: Any) -> Array:
    """Loss of so many replicas over that of data parallelism at as many tokens, as the law has it; it may be below 1.

    One replica, or an exchange at every step, is data parallelism: 1.
    """
    N, M, H = (np.asarray(x, dtype=np.float64) for x in (N, replicas, every))
    growth = (np.log(np.maximum(H, 1.0)) / np.log(law.fitted_every)) ** law.every_exponent
    power = law.replicas_coefficient * N**law.replicas_exponent * growth
    ratio = law.coefficient * N**law.exponent * M**power
    return np.asarray(np.where((M > 1) & (H > 1), ratio, 1.0))


def tokens_ratio(law: LossLaw, N: Any, tokens: Any, ratio: Any) -> Array:
    """Tokens that reach with the worse loss what `tokens` reach without it, over these; infinite where none do.

    A ratio below 1 counts as 1: a gain beyond the sizes that a law was fitted to saves no tokens here.
    """
    worse = np.asarray(ratio, dtype=np.float64) > 1.0
    wanted = np.asarray(loss_at(law, N, tokens) / np.where(worse, ratio, 1.0))
    reached = wanted > least_loss(law, N)
    more = tokens_for_loss(law, N, np.where(reached, wanted, loss_at(law, N, tokens)))
    return np.asarray(np.where(reached, np.where(worse, np.maximum(more / tokens, 1.0), 1.0), np.inf))


def beyond_fit(law: ReplicaLaw, N: float, replicas: int, every: float) -> list[str]:
    """Where a question lies outside of the runs that a law was fitted to, a phrase each."""
    spans = {
        "parameters": (N, *law.fitted_parameters), "sites": (replicas, *law.fitted_replicas),
        "steps between exchanges": (every, law.fitted_every, law.fitted_every),
    }  # fmt: skip
    return [
        f"{law.name}: {x:.3g} {what}, fitted at " + (f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}")
        for what, (x, low, high) in spans.items()
        if not low <= x <= high
    ]
