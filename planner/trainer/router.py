"""The experts that a token goes to, the weights of their outputs, and the gradient by the router's logits.

A model's router says whether scores are a softmax or sigmoids, and whether the weights of the top k are these, or these
over their sum (Mixtral: Jiang et al. 2024, arXiv 2401.04088), and by what factor they are multiplied. Where experts are
in groups, only those of the best groups are candidates (DeepSeek-AI 2024, arXiv 2412.19437, section 2.1.2).

Shapes: n tokens, of b sequences; E experts, k of them a token's.
"""

from typing import Any

from planner.models import Transformer
from planner.trainer.arrays import Array
from planner.trainer.functions import sigmoid


def routed(xp: Any, m: Transformer, logits_nE: Array) -> tuple[Array, Array, Array]:
    """Scores (n, E), and of each token's experts their numbers and weights, (n, k), from the highest score on."""
    sigmoids, normalized, factor = _kind(m)
    scores = sigmoid(xp, logits_nE) if sigmoids else xp.exp(logits_nE - logits_nE.max(axis=-1, keepdims=True))
    scores = scores if sigmoids else scores / scores.sum(axis=-1, keepdims=True)
    chosen = xp.argsort(-_of_best_groups(xp, m, scores), axis=-1)[:, : m.top_k]
    gates = xp.take_along_axis(scores, chosen, axis=-1)
    return scores, chosen, factor * (gates / gates.sum(axis=-1, keepdims=True) if normalized else gates)


def router_gradient(
    xp: Any, m: Transformer, scores: Array, chosen_nk: Array, gates_nk: Array, dgates_nk: Array, balance_bE: Array
) -> Array:
    """The gradient by the logits, shape (n, E): through the weights, and of a loss that balances experts.

    balance_bE: what that loss takes of each score over their sum, of a sequence's tokens.
    """
    sigmoids, normalized, factor = _kind(m)
    dchosen = factor * dgates_nk
    if normalized:
        total = xp.take_along_axis(scores, chosen_nk, axis=-1).sum(axis=-1, keepdims=True)
        dchosen = (dchosen - (dgates_nk * gates_nk).sum(axis=-1, keepdims=True)) / total
    ds = xp.zeros_like(scores)
    xp.put_along_axis(ds, chosen_nk, dchosen, axis=-1)
    dp = xp.repeat(balance_bE, len(scores) // len(balance_bE), axis=0)
    total = scores.sum(axis=-1, keepdims=True)
    ds += (dp - (dp * scores).sum(axis=-1, keepdims=True) / total) / total
    return scores * ((1.0 - scores) * ds if sigmoids else ds - (ds * scores).sum(axis=-1, keepdims=True))


def _kind(m: Transformer) -> tuple[bool, bool, float]:
    """Whether scores are sigmoids, whether weights are over their sum, and their factor."""
    kind, *factor = m.router.split() or ["softmax"]
    return "sigmoid" in kind, "first" not in kind, float(factor[0]) if factor else 1.0


def _of_best_groups(xp: Any, m: Transformer, scores_nE: Array) -> Array:
    """The scores, 0 outside of the groups whose best ones, so many as a chosen group has on average, add up to most."""
    if not m.expert_groups:
        return scores_nE
    by_group = scores_nE.reshape(len(scores_nE), m.expert_groups, -1)
    best = xp.sort(by_group, axis=-1)[..., -max(m.top_k // m.top_k_groups, 1) :].sum(axis=-1)
    allowed = xp.zeros_like(best)
    xp.put_along_axis(allowed, xp.argsort(-best, axis=-1)[:, : m.top_k_groups], 1.0, axis=-1)
    return (by_group * allowed[..., None]).reshape(scores_nE.shape)
