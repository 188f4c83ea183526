"""Work of the slices of a sequence under causal attention (Seq1F1B, Sun et al. 2024, arXiv 2406.03488, section 3.4)."""

from dataclasses import replace
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.base.errors import InputError
from planner.models import Transformer
from planner.models.flops import forward_flops
from planner.models.mix import window_share


def work_until(model: Transformer, end: Any) -> Array:
    """Forward FLOP of a sequence's tokens up to a place in it; arrays broadcast.

    A token costs all products but attention's, the vocabulary's counted twice as Seq1F1B's solver does, and for every
    token before it (of a sliding window those within it) the scores, the values and 3 FLOP of softmax a head.
    """
    s = model.seq_len
    flops = forward_flops(replace(model, num_window_layers=0, window=0))
    attention = flops["attention_scores"] + flops["attention_values"]
    per_token = (sum(flops.values()) - attention + flops["head"]) / s
    per_pair = attention / s**2 + 3.0 * model.num_attention_layers * model.num_heads
    return np.asarray(per_token * np.asarray(end, dtype=np.float64) + per_pair * causal_pairs(model, end))


def causal_pairs(model: Transformer, end: Any) -> Array:
    """Number of pairs of a query and a key before it, among the first `end` tokens of a sequence."""
    tokens = np.asarray(end, dtype=np.float64)
    beyond = np.maximum(tokens - model.window, 0.0)
    return np.asarray((tokens * tokens - window_share(model) * beyond * beyond) / 2.0)


def equal_work_slices(model: Transformer, k: int, multiple: int) -> list[int]:
    """k slices of about equal work, as Seq1F1B's solver cuts them.

    From the last one on each has the most tokens, a multiple of `multiple`, whose work is at most a k-th of the
    sequence's; the first takes what is left.

    Raises InputError if the sequence is too short for it.
    """
    seq_len = int(model.seq_len)
    each = float(work_until(model, seq_len)) / k
    out, end = [], seq_len
    for _ in range(k - 1):
        sizes = np.arange(0, end, multiple)
        work = float(work_until(model, end)) - work_until(model, end - sizes)
        out.append(int(sizes[np.searchsorted(work, each * (1.0 + 1e-12), side="right") - 1]))
        end -= out[-1]
    out.append(end)
    if min(out) < 1 or end % multiple:
        raise InputError(f"sequence_slices is {k}; the {seq_len} tokens are too few, or no multiple of {multiple}")
    return out[::-1]


def even_slices(seq_len: int, k: int) -> list[int]:
    """k slices of the same number of tokens. Raises InputError if k does not divide the sequence."""
    if k < 1 or seq_len % k:
        raise InputError(f"sequence_slices is {k}; allowed: a divisor of the sequence length {seq_len}")
    return [seq_len // k] * k
