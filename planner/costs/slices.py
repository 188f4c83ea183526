"""Work of the slices of a sequence under causal attention (Seq1F1B, Sun et al. 2024, arXiv 2406.03488, section 3.4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError
from planner.models import Transformer

__all__ = ["even_slices", "slice_shares"]


def _work(model: Transformer) -> tuple[int, int]:
    """b and c: n tokens that end at token P cost n (P c - n c / 2 + b) forward FLOP.

    Through L layers and the vocabulary V, with a heads of d channels: c = L (4 d + 3) a (scores, values and softmax
    over what came before), b = L (8 h a d + 4 h ffn) + 4 h V (products linear in tokens; a gated MLP counts its third).
    """
    L, h, a, d = (int(x) for x in (model.num_layers, model.hidden, model.num_heads, model.head_dim))
    mlp = (6 if model.gated else 4) * h * int(model.ffn)
    return L * (8 * h * a * d + mlp) + 4 * h * int(model.vocab), L * (4 * d + 3) * a


def slice_shares(model: Transformer, slices: Sequence[int]) -> NDArray[np.float64]:
    """Each slice's share of a sequence's forward FLOP, shape (k,), summing to 1."""
    b, c = _work(model)
    n = np.asarray(slices, dtype=np.float64)
    work = n * (np.cumsum(n) * c - n * c / 2.0 + b)
    return np.asarray(work / work.sum())


def even_slices(seq_len: int, k: int) -> list[int]:
    """k slices of the same number of tokens.

    Raises:
        InputError: k does not divide the sequence.
    """
    if k < 1 or seq_len % k:
        raise InputError(f"sequence_slices is {k}; allowed: a divisor of the sequence length {seq_len}")
    return [seq_len // k] * k
