"""Cross-entropy over a vocabulary that ranks share (Megatron-LM, Shoeybi et al. 2019, section 3).

Only three numbers a token are exchanged: the largest logit, the sum of exponentials, the target's logit. Tensor ranks
exchange them at once; pipeline ranks that share a head do when all have theirs (`planner.trainer.shared_ends`).
Shapes: b sequences, s tokens, n = b s, v this rank's part of the vocabulary.
"""

from dataclasses import dataclass
from typing import Any

from planner.trainer.arrays import Array, wide
from planner.trainer.tensor_parallel import Region


@dataclass(frozen=True)
class Softmax:
    """A region's softmax over its part of the vocabulary.

    exp_bsv: exponentials of this rank's logits less the largest of the region's; told_3bs: that one, the sum of the
    exponentials and the target's logit, less the largest, or 0 where the target isn't in the region's part. column_n,
    mine_bs: the target's place on this rank, and where it has one. given: number format of the logits.
    """

    exp_bsv: Array
    told_3bs: Array
    column_n: Array
    mine_bs: Array
    given: Any


def softmax(xp: Any, logits_bsv: Array, targets_bs: Array, region: Region, first: int) -> Softmax:
    """The region's part of the softmax, over the logits if wide; first: this rank's first row of the vocabulary.

    targets: vocabulary indices of the whole vocabulary, integers of shape (b, s).
    """
    given, logits_bsv = logits_bsv.dtype, wide(logits_bsv)
    largest_bs = region.max(logits_bsv.max(axis=-1))
    logits_bsv -= largest_bs[..., None]
    local_bs = targets_bs - first
    mine_bs = (local_bs >= 0) & (local_bs < logits_bsv.shape[-1])
    rows_n, column_n = xp.arange(targets_bs.size), xp.where(mine_bs, local_bs, 0).ravel()
    picked_bs = logits_bsv.reshape(-1, logits_bsv.shape[-1])[rows_n, column_n].reshape(targets_bs.shape)
    target_bs = region.sum(picked_bs * mine_bs)
    exp_bsv = xp.exp(logits_bsv, out=logits_bsv)
    total_bs = region.sum(exp_bsv.sum(axis=-1))
    return Softmax(exp_bsv, xp.stack([largest_bs, total_bs, target_bs]), column_n, mine_bs, given)


def of_all(xp: Any, told: list[Array], here: int, targets_bs: Array, part: int) -> tuple[Array, Array]:
    """Each token's loss, and what the exponentials of region `here` are multiplied by to be probabilities.

    told: of every region, in order, each with so much, `part`, of the vocabulary.
    """
    largest_bs = told[0][0]
    for x in told[1:]:
        largest_bs = xp.maximum(largest_bs, x[0])
    total_bs, target_bs = xp.zeros_like(largest_bs), xp.zeros_like(largest_bs)
    for i, (own, total, target) in enumerate(told):
        total_bs += total * xp.exp(own - largest_bs)
        target_bs += xp.where(targets_bs // part == i, target + (own - largest_bs), 0.0)
    return xp.log(total_bs) - target_bs, xp.exp(told[here][0] - largest_bs) / total_bs


def logits_gradient(xp: Any, one: Softmax, factor_bs: Array, weight: float) -> Array:
    """Gradient of the weighted loss by this rank's logits, over the exponentials."""
    p_bsv = one.exp_bsv
    p_bsv *= factor_bs[..., None]
    p_bsv.reshape(-1, p_bsv.shape[-1])[xp.arange(one.column_n.size), one.column_n] -= one.mine_bs.ravel()
    p_bsv *= weight
    return p_bsv.astype(one.given, copy=False)


def cross_entropy(
    xp: Any, logits_bsv: Array, targets_bs: Array, region: Region, weight: float, scale: float = 1.0
) -> tuple[Array, Array]:
    """The loss summed over tokens times `weight`, and its gradient by the logits, over them if wide.

    targets: as `softmax` takes them. scale: of the gradient alone.
    """
    one = softmax(xp, logits_bsv, targets_bs, region, region.index * logits_bsv.shape[-1])
    _, total_bs, target_bs = one.told_3bs
    loss = (xp.log(total_bs) - target_bs).sum() * weight
    return loss, logits_gradient(xp, one, 1.0 / total_bs, weight * scale)
