"""Work of the slices of a sequence under causal attention (Seq1F1B, Sun et al. 2024, arXiv 2406.03488, section 3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.base.errors import InputError
from planner.models import Transformer
from planner.models.flops import forward_flops
from planner.models.mix import window_share


def slice_shares(model: Transformer, slices: Sequence[int]) -> NDArray[np.float64]:
    """Each slice's share of a sequence's forward FLOP, shape (k,), summing to 1.

    A token costs all products but attention's, the vocabulary's counted twice as Seq1F1B's solver does, and for every
    token before it (of a sliding window those within it) the scores, the values and 3 FLOP of softmax a head.
    """
    s = model.seq_len
    flops = forward_flops(replace(model, num_window_layers=0, window=0))
    attention = flops["attention_scores"] + flops["attention_values"]
    per_token = (sum(flops.values()) - attention + flops["head"]) / s
    per_pair = attention / s**2 + 3.0 * model.num_attention_layers * model.num_heads
    end = np.cumsum(np.asarray(slices, dtype=np.float64))
    beyond = np.maximum(end - model.window, 0.0)
    pairs = (end * end - window_share(model) * beyond * beyond) / 2.0  # of a query and a key, up to a slice's end
    work = per_token * np.asarray(slices) + per_pair * np.diff(pairs, prepend=0.0)
    return np.asarray(work / work.sum())


def even_slices(seq_len: int, k: int) -> list[int]:
    """k slices of the same number of tokens.

    Raises:
        InputError: k does not divide the sequence.
    """
    if k < 1 or seq_len % k:
        raise InputError(f"sequence_slices is {k}; allowed: a divisor of the sequence length {seq_len}")
    return [seq_len // k] * k
