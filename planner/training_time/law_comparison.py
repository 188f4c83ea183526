"""Every law on one training: losses, critical batches, and compute-optimal fronts."""

from dataclasses import dataclass

from planner.models import Transformer
from planner.scaling.batch import compute_optimal
from planner.scaling.laws import get_compute_optimal, get_loss_law, read_laws
from planner.scaling.loss import compute_optimal_tokens, least_loss
from planner.training_time.goal import Goal, goal


@dataclass(frozen=True, kw_only=True)
class LossSays:
    """Loss after the tokens, what unlimited data would reach, and the tokens that make the best of the compute.

    In nats per token; optimal_tokens None for a law without an optimum.
    """

    goal: Goal
    least: float
    optimal_tokens: float | None


@dataclass(frozen=True, kw_only=True)
class FrontierSays:
    """The best use of 6 N D FLOP by a compute-optimal front: parameters, batch in tokens, steps at that batch."""

    name: str
    compute_flop: float
    parameters: float
    batch_tokens: float
    steps: float


@dataclass(frozen=True, kw_only=True)
class Laws:
    """All laws on one training; each of `batches` carries its own critical batch."""

    losses: tuple[LossSays, ...]
    batches: tuple[Goal, ...]
    fronts: tuple[FrontierSays, ...]


def compare_laws(model: Transformer, tokens: float | None = None) -> Laws:
    """Each law's answer on a model trained on so many tokens, or on the compute-optimal ones.

    Raises InputError for tokens out of range.
    """
    losses = []
    for name in read_laws().loss:
        law, aim = get_loss_law(name), goal(model, tokens=tokens, loss_law=name)
        size = aim.target.size(law)
        optimal = float(compute_optimal_tokens(law, size)) if law.form == "sum-of-powers" else None
        losses.append(LossSays(goal=aim, least=float(least_loss(law, size)), optimal_tokens=optimal))
    batches = tuple(goal(model, tokens=tokens, batch_law=name) for name in read_laws().critical_batch)
    fronts = []
    for name in read_laws().compute_optimal:
        flop = batches[0].target.compute_flop
        best = compute_optimal(get_compute_optimal(name), flop)
        fronts.append(FrontierSays(name=name, compute_flop=flop, **{k: float(v) for k, v in best.items()}))
    return Laws(losses=tuple(losses), batches=batches, fronts=tuple(fronts))
