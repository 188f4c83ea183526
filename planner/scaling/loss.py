"""Loss from parameters and data, and back: how much data a target loss needs. Array-first, losses in nats per token.

Replicas that exchange seldom add to the loss, and tokens make up for it.
"""

from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.base.errors import InputError
from planner.scaling.laws import LossLaw, ReplicaLaw, get_critical_batch_law


def least_loss(law: LossLaw, N: Any) -> Array:
    """The loss that N parameters reach with unlimited data: E + A / N^alpha, or Kaplan's (N_c / N)^alpha.

    Of an exponent beyond numbers it is E, or Kaplan's inf under N_c.
    """
    A, a, N = law.parameters_coefficient, law.parameters_exponent, np.asarray(N, dtype=np.float64)
    with np.errstate(over="ignore"):
        return np.asarray(law.irreducible + ((A / N) ** a if law.form == "kaplan-steps" else A / N**a))


def _excess(law: LossLaw, N: Any, loss: Any) -> Array:
    """The data's term that a loss needs. Raises InputError if no amount of data reaches the loss."""
    least = least_loss(law, N)
    excess = np.asarray(loss, dtype=np.float64) - least
    if np.any(excess <= 0):
        i = np.unravel_index(np.argmin(excess), excess.shape)
        wanted, floor = np.broadcast_arrays(np.asarray(loss, dtype=np.float64), least)
        raise InputError(
            f"loss is {wanted[i]:.4g}; allowed: above {floor[i]:.4f}, which is what the model reaches with unlimited "
            f"data by {law.name}"
        )
    return np.asarray(excess)


def tokens_for_loss(law: LossLaw, N: Any, loss: Any) -> Array:
    """The fewest tokens that bring N parameters to a loss: those at batches far under the critical one; inf where a
    law's exponent is so small that they are beyond numbers.

    Kaplan's law gives steps S_min; then the tokens are S_min B_crit(L) (Kaplan et al. 2020, section 5.1).

    Raises InputError if no amount of data reaches the loss.
    """
    excess = _excess(law, N, loss)
    B, b = law.data_coefficient, law.data_exponent
    with np.errstate(over="ignore", divide="ignore"):
        if law.form == "kaplan-steps":
            crit = get_critical_batch_law("kaplan-2020")
            return np.asarray(B / excess ** (1.0 / b) * crit.coefficient * np.power(loss, crit.exponent))
        return np.asarray((B / excess) ** (1.0 / b))


def loss_at(law: LossLaw, N: Any, tokens: Any) -> Array:
    """The loss after `tokens` at small batches; Kaplan's form is inverted by bisection in log tokens.

    N, tokens: numbers or arrays that broadcast.
    """
    N, tokens = np.broadcast_arrays(np.asarray(N, dtype=np.float64), np.asarray(tokens, dtype=np.float64))
    least = least_loss(law, N)
    if law.form == "sum-of-powers":
        with np.errstate(over="ignore"):
            return np.asarray(least + law.data_coefficient / tokens**law.data_exponent)
    low, high = np.log(1e-9) + 0.0 * least, np.log(1e3) + 0.0 * least
    for _ in range(80):  # tokens_for_loss falls as the excess grows
        middle = 0.5 * (low + high)
        more = tokens_for_loss(law, N, least + np.exp(middle)) > tokens
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    return np.asarray(least + np.exp(high))


def compute_optimal_tokens(law: LossLaw, N: Any) -> Array:
    """Tokens D for which N parameters are the best use of 6 N D FLOP: alpha A / N^alpha = beta B / D^beta.

    Hoffmann et al. 2022, section 3.3, solved for D; laws of the form sum-of-powers only.

    Raises InputError for a law of another form.
    """
    if law.form != "sum-of-powers":
        raise InputError(f"loss law {law.name} has no optimal tokens; allowed: a sum of powers, such as besiroglu-2024")
    A, a, B, b = law.parameters_coefficient, law.parameters_exponent, law.data_coefficient, law.data_exponent
    return np.asarray((b * B / (a * A)) ** (1.0 / b) * np.power(np.asarray(N, dtype=np.float64), a / b))


def compute_optimal_size(law: LossLaw, compute_flop: Any) -> Array:
    """Parameters N that make the best of 6 N D FLOP with `compute_optimal_tokens` D, which go as a power of N.

    Raises InputError for a law of another form.
    """
    of_one = 6.0 * compute_optimal_tokens(law, 1.0)
    power = 1.0 + law.parameters_exponent / law.data_exponent
    return np.asarray((np.asarray(compute_flop, dtype=np.float64) / of_one) ** (1.0 / power))


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
    """The ways in which a question lies outside of the runs that a law was fitted to, a phrase each."""
    spans = {
        "parameters": (N, *law.fitted_parameters), "sites": (replicas, *law.fitted_replicas),
        "steps between exchanges": (every, law.fitted_every, law.fitted_every),
    }  # fmt: skip
    return [
        f"{law.name}: {x:.3g} {what}, fitted at " + (f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}")
        for what, (x, low, high) in spans.items()
        if not low <= x <= high
    ]
