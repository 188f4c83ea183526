"""The critical batch, and what a batch costs: steps and samples along it. Array-first.

McCandlish et al. 2018, arXiv 1812.06162: (S / S_min - 1)(E / E_min - 1) = 1, that is S = S_min (1 + B_c / B) and
E = E_min (1 + B / B_c) with B_c = E_min / S_min. A law whose critical batch allows an overhead of o, by its own
definition, has B_c = B / o.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.models import Transformer, counts
from planner.scaling.laws import ComputeOptimal, CriticalBatchLaw, LossLaw

BATCH_RULES = ("overhead", "cap")
"""overhead: any batch, at the cost of McCandlish et al.'s samples; cap: at most the critical batch, at no cost."""


@dataclass(frozen=True, kw_only=True)
class TrainingTarget:
    """A training's target: a model's size, the fewest tokens for its loss, and that loss in nats per token. Floats."""

    parameters: float
    non_embedding: float
    tokens: float
    loss: float

    def size(self, law: LossLaw) -> float:
        """The parameters that a loss law counts."""
        return self.parameters if law.parameters == "all" else self.non_embedding

    @property
    def compute_flop(self) -> float:
        """6 N D (Kaplan et al. 2020), N without embeddings."""
        return 6.0 * self.non_embedding * self.tokens

    def variable(self, law: CriticalBatchLaw) -> float:
        """The quantity that a law of the critical batch takes."""
        values = {"loss": self.loss, "parameters": self.parameters, "tokens": self.tokens, "compute": self.compute_flop}
        return values[law.variable]


def sizes(model: Transformer) -> tuple[float, float]:
    """Parameters that a token meets, all and without embeddings and head."""
    total = float(counts.active_params(model))
    return total, total - float(counts.embedding_params(model)) - float(counts.head_params(model))


def critical_batch_tokens(law: CriticalBatchLaw, x: Any) -> Array:
    """The critical batch as the law's paper defines it, tokens; x: the law's variable, in nats, tokens or FLOP."""
    return np.asarray(law.coefficient * (np.asarray(x, dtype=np.float64) / law.unit) ** law.exponent)


def batch_scale_tokens(law: CriticalBatchLaw, x: Any) -> Array:
    """McCandlish et al.'s B_c = E_min / S_min, tokens: where samples and steps are both twice their least."""
    return np.asarray(critical_batch_tokens(law, x) / law.overhead)


def samples_factor(batch: Any, scale: Any) -> Array:
    """E / E_min = 1 + B / B_c; batch and scale in the same unit."""
    return np.asarray(1.0 + np.asarray(batch, dtype=np.float64) / scale)


def compute_optimal(law: ComputeOptimal, compute_flop: Any) -> dict[str, Array]:
    """Parameters, batch in tokens and steps that make the best of a compute, along the law's front."""
    C = np.asarray(compute_flop, dtype=np.float64) / law.unit_flop
    return {
        "parameters": np.asarray(law.parameters_coefficient * C**law.parameters_exponent),
        "batch_tokens": np.asarray(law.batch_coefficient * C**law.batch_exponent),
        "steps": np.asarray(law.steps_coefficient * C**law.steps_exponent),
    }


def extrapolations(target: TrainingTarget, loss_law: LossLaw, batch_law: CriticalBatchLaw) -> list[str]:
    """A sentence for each quantity that lies outside the runs a law was fitted to."""
    checks = [
        (loss_law.name, "parameters", target.size(loss_law), loss_law.fitted_parameters),
        (loss_law.name, "tokens", target.tokens, loss_law.fitted_tokens),
        (batch_law.name, batch_law.variable, target.variable(batch_law), batch_law.fitted),
    ]
    return [
        f"{name} was fitted for {what} of {low:.3g} to {high:.3g}; {value:.3g} is an extrapolation"
        for name, what, value, (low, high) in checks
        if not low <= value <= high
    ]
