"""Every law on one training: losses, critical batches, and compute-optimal fronts."""

from typing import Any

from planner.models import Transformer
from planner.scaling.batch import compute_optimal
from planner.scaling.laws import ComputeOptimal, read_laws
from planner.scaling.loss import compute_optimal_tokens, least_loss
from planner.training_time.goal import Goal, goal


def compare_laws(model: Transformer, tokens: float | None = None) -> dict[str, Any]:
    """Each law's answers on a model trained on so many tokens, or on the compute-optimal ones (docs/json.md).

    Raises InputError for tokens out of range.
    """
    laws = read_laws()
    batches = {name: goal(model, tokens=tokens, batch_law=name) for name in laws.critical_batch}
    first = next(iter(batches.values()))
    return {
        "model": model.name, "seq_len": int(model.seq_len), "tokens": first.target.tokens,
        "tokens_origin": first.origin,
        "loss": {name: _loss(goal(model, tokens=tokens, loss_law=name)) for name in laws.loss},
        "critical_batch": {name: _batch(aim, model.seq_len) for name, aim in batches.items()},
        "compute_optimal": {name: _front(law, first.target.compute_flop) for name, law in laws.compute_optimal.items()},
    }  # fmt: skip


def _loss(aim: Goal) -> dict[str, Any]:
    """Loss after the tokens, what unlimited data would reach, and the tokens that make the best of the compute."""
    law, size = aim.loss_law, aim.target.size(aim.loss_law)
    optimal = float(compute_optimal_tokens(law, size)) if law.form == "sum-of-powers" else None  # else it has none
    least = float(least_loss(law, size))
    return {"loss_nats": aim.target.loss, "least_loss_nats": least, "compute_optimal_tokens": optimal}


def _batch(aim: Goal, seq_len: int) -> dict[str, Any]:
    law = aim.batch_law
    return {
        "tokens": aim.critical, "sequences": aim.critical / seq_len, "overhead_there": law.overhead,
        "scale_tokens": aim.scale, "extrapolated": any(w.startswith(law.name) for w in aim.warnings),
    }  # fmt: skip


def _front(law: ComputeOptimal, flop: float) -> dict[str, float]:
    """The best use of 6 N D FLOP by a compute-optimal front: parameters, batch in tokens, steps at that batch."""
    return {"compute_flop": flop} | {key: float(value) for key, value in compute_optimal(law, flop).items()}
