"""A training's goal: tokens or loss, the laws that join them, and the critical batch."""

from dataclasses import dataclass, replace

from planner.base.errors import InputError, UnknownNameError
from planner.choices.choice import real
from planner.models import Transformer
from planner.scaling import batch
from planner.scaling.batch import BATCH_RULES, TrainingTarget
from planner.scaling.laws import CriticalBatchLaw, LossLaw, get_critical_batch_law, get_loss_law
from planner.scaling.loss import compute_optimal_tokens, loss_at, tokens_for_loss

OPTIMAL_TOKENS = "besiroglu-2024"
"""The loss law whose compute-optimal tokens are trained on where neither tokens nor a loss is given."""
MOST_TOKENS = 1e18


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A target with its laws.

    target: the fewest tokens, at small batches, and the loss they reach; critical: the batch that the law calls
    critical, tokens; scale: McCandlish et al.'s B_c, tokens; rule: overhead or cap.
    origin: where the tokens come from, for a person; exact: they are processed as they are, whatever the batch, for no
    loss asks for them; warnings: what is extrapolated.
    """

    target: TrainingTarget
    critical: float
    scale: float
    rule: str
    loss_law: LossLaw
    batch_law: CriticalBatchLaw
    origin: str
    exact: bool
    warnings: tuple[str, ...]


def _critical_batch(law: CriticalBatchLaw, x: float) -> tuple[float, float]:
    """The law's critical batch and McCandlish et al.'s B_c, in tokens; raises InputError if it is no number above 0."""
    critical, scale = float(batch.critical_batch_tokens(law, x)), float(batch.batch_scale_tokens(law, x))
    if not 0.0 < scale < float("inf"):
        raise InputError(
            f"critical_batch_law {law.name} gives a critical batch of {critical:g} tokens; allowed: above 0"
        )
    return critical, scale


def goal(
    model: Transformer,
    *,
    tokens: float | None = None,
    loss: float | None = None,
    loss_law: str = "besiroglu-2024",
    batch_law: str = "zhang-2024",
    rule: str = "overhead",
    critical_batch: float | None = None,
) -> Goal:
    """The goal of a training: tokens, or a loss in nats per token, or the tokens that make the best of the compute.

    tokens are those that batches far under the critical one need. critical_batch: tokens, instead of the law's, taken
    as McCandlish et al.'s B_c.

    Raises InputError if both are given, one is out of range, or no data reaches the loss; UnknownNameError for an
    unknown law or rule.
    """
    if rule not in BATCH_RULES:
        raise UnknownNameError("batch rule", rule, BATCH_RULES)
    losses, batches = get_loss_law(loss_law), get_critical_batch_law(batch_law)
    if tokens is not None and loss is not None:
        raise InputError("tokens and loss are both given; allowed: one of them")
    for name, value, low, high in (
        ("tokens", tokens, 1.0, MOST_TOKENS), ("loss", loss, 1e-3, 100.0),
        ("critical_batch", critical_batch, 1.0, MOST_TOKENS),
    ):  # fmt: skip
        if value is not None:
            real(name, value, least=low, most=high)
    everything, inner = batch.sizes(model)
    size = everything if losses.parameters == "all" else inner
    if loss is not None:
        origin = f"a loss of {loss:g} nats per token by {losses.name}"
        needed = float(tokens_for_loss(losses, size, loss))
        tokens = real(f"what a loss of {loss:g} needs, tokens,", needed, least=1.0, most=MOST_TOKENS)
    elif tokens is not None:
        origin = "given"
    else:
        tokens = float(compute_optimal_tokens(get_loss_law(OPTIMAL_TOKENS), everything))
        origin = f"compute-optimal by {OPTIMAL_TOKENS}"
    reached = float(loss_at(losses, size, tokens))
    target = TrainingTarget(parameters=everything, non_embedding=inner, tokens=tokens, loss=reached)
    x = target.variable(batches)
    given = critical_batch is not None
    critical, scale = (critical_batch,) * 2 if critical_batch is not None else _critical_batch(batches, x)
    warnings = [s for s in batch.extrapolations(target, losses, batches) if not (given and batches.name in s)]
    if model.num_experts:
        warnings.append("the laws were fitted to dense models; here N is what one token meets of the experts")
    return Goal(
        target=target,
        critical=critical,
        scale=scale,
        rule=rule,
        loss_law=losses,
        batch_law=replace(batches, name="given", source="--critical-batch", overhead=1.0) if given else batches,
        origin=origin,
        exact=loss is None,
        warnings=tuple(warnings),
    )
