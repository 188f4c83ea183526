"""Cross-entropy over a vocabulary that tensor-parallel ranks share (Megatron-LM, Shoeybi et al. 2019, section 3).

Only three numbers a token are exchanged: the largest logit, the sum of exponentials, the target's logit.
Shapes: b sequences, s tokens, n = b s, v this rank's part of the vocabulary.
"""

from __future__ import annotations

from typing import Any

from planner.trainer.arrays import Array, wide
from planner.trainer.tensor_parallel import Region


def cross_entropy(
    xp: Any, logits_bsv: Array, targets_bs: Array, region: Region, weight: float, scale: float = 1.0
) -> tuple[Array, Array]:
    """The loss summed over tokens times `weight`, and its gradient by the logits, over them if wide.

    targets: vocabulary indices of the whole vocabulary, integers of shape (b, s). scale: of the gradient alone.
    """
    given, logits_bsv = logits_bsv.dtype, wide(logits_bsv)
    first = region.index * logits_bsv.shape[-1]
    logits_bsv -= region.max(logits_bsv.max(axis=-1))[..., None]
    local_bs = targets_bs - first
    mine_bs = (local_bs >= 0) & (local_bs < logits_bsv.shape[-1])
    rows_n, column_n = xp.arange(targets_bs.size), xp.where(mine_bs, local_bs, 0).ravel()
    picked_bs = logits_bsv.reshape(-1, logits_bsv.shape[-1])[rows_n, column_n].reshape(targets_bs.shape)
    target_bs = region.sum(picked_bs * mine_bs)
    p_bsv = xp.exp(logits_bsv, out=logits_bsv)
    total_bs = region.sum(p_bsv.sum(axis=-1))
    loss = (xp.log(total_bs) - target_bs).sum() * weight
    p_bsv /= total_bs[..., None]
    p_bsv.reshape(-1, p_bsv.shape[-1])[rows_n, column_n] -= mine_bs.ravel()
    p_bsv *= weight * scale
    return loss, p_bsv.astype(given, copy=False)
