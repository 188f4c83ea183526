"""What passes of this trainer cost on a machine: seconds linear in a few sizes, fitted to measured passes.

A pass of a layer does products, passes over hidden, inner and head elements, and attention over scores; each has a
rate of its own on a machine (`trainer_passes.py` measures them), and a pass has fixed seconds besides.

Letters: T tokens of a pass on one rank, h hidden, f inner, n query and g key heads, d head size, v vocabulary, t tp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.base.errors import InputError
from planner.models import Transformer
from planner.trainer.attention import BLOCK

PARTS = ("layer", "embedding", "head", "update")
FEATURES: dict[str, tuple[str, ...]] = {
    "layer": ("fixed", "product_gflop", "hidden_melements", "inner_melements", "head_melements", "score_melements"),
    "embedding": ("fixed", "hidden_melements"),
    "head": ("fixed", "product_gflop", "hidden_melements", "logit_melements"),
    "update": ("fixed", "parameter_melements"),
}


@dataclass(frozen=True, kw_only=True)
class PriceSizes:
    """What a pass works on: sequences b of so many tokens from position `start`, tensor parallelism t."""

    model: Transformer
    b: int
    tokens: int
    start: int = 0
    tp: int = 1
    sequence_parallel: bool = False


def score_elements(x: PriceSizes) -> float:
    """Scores that blocked causal attention computes: each block of queries against all keys up to its end."""
    stops = [*range(BLOCK, x.tokens, BLOCK), x.tokens]
    rows = np.diff([0, *stops])
    return float(x.b * x.model.num_heads / x.tp * (rows * (x.start + np.array(stops))).sum())


def features(part: str, x: PriceSizes, num_parameters: float = 0.0) -> list[float]:
    """The sizes that a part's seconds are linear in, in the order of `FEATURES`.

    Attention's products go with its scores: d is one of a few sizes, and exponentials weigh more.
    """
    m, T = x.model, x.b * x.tokens
    hidden = T * m.hidden / (x.tp if x.sequence_parallel else 1)
    if part == "layer":
        qkv = (m.num_heads + 2 * m.num_kv_heads) * m.head_dim
        columns = qkv + m.num_heads * m.head_dim + (3 if m.gated else 2) * m.ffn
        inner, heads = T * m.ffn / x.tp, T * qkv / x.tp
        flop = 2.0 * T * m.hidden * columns / x.tp
        return [1.0, flop / 1e9, hidden / 1e6, inner / 1e6, heads / 1e6, score_elements(x) / 1e6]
    if part == "embedding":
        return [1.0, hidden / 1e6]
    if part == "head":
        logits = T * m.vocab / x.tp
        return [1.0, 2.0 * logits * m.hidden / 1e9, hidden / 1e6, logits / 1e6]
    return [1.0, num_parameters / 1e6]


@dataclass(frozen=True, kw_only=True)
class PriceFit:
    """Seconds per unit of each feature, none negative; the relative error over the measured passes."""

    seconds: tuple[float, ...]
    median_error: float
    worst_error: float
    measured: int


def fit(rows: Sequence[Sequence[float]], measured_s: Sequence[float]) -> PriceFit:
    """Coefficients that aren't negative, of least relative errors.

    Errors count by their size beyond a few percent, not its square (iteratively reweighted least squares), so that one
    measurement which something disturbed doesn't bend the rest.
    """
    a = np.asarray(rows, dtype=np.float64) / np.asarray(measured_s)[:, None]
    weight = np.ones(len(a))
    for _ in range(20):
        seconds = _non_negative(a * weight[:, None], weight)
        error = np.abs(a @ seconds - 1.0)
        weight = 1.0 / np.sqrt(np.maximum(error, 0.03))
    return PriceFit(
        seconds=tuple(float(s) for s in seconds),
        median_error=float(np.median(error)),
        worst_error=float(error.max()),
        measured=len(error),
    )


def _non_negative(a: Any, y: Any) -> Any:
    """Least squares of a x = y with x >= 0 by coordinate descent, columns scaled to length one.

    Each turn sets one coefficient to its best value given the others, or to zero; the problem is convex, so turns end
    at its optimum.
    """
    length = np.linalg.norm(a, axis=0)
    unit = a / length
    gram, target = unit.T @ unit, unit.T @ y
    x = np.zeros(a.shape[1])
    for _ in range(20_000):
        before = x.copy()
        for j in range(len(x)):
            x[j] = max(x[j] + target[j] - gram[j] @ x, 0.0)
        if np.abs(x - before).max() < 1e-9 * x.max():
            break
    return x / length


def price_s(prices: Mapping[str, Any], key: str, row: Sequence[float]) -> float:
    """Seconds of a part by its fitted coefficients. Raises InputError if the prices lack that part."""
    if key not in prices:
        raise InputError(f"prices have no {key!r}; write them anew, with benchmarks/trainer_passes.py on as many ranks")
    return float(np.dot(prices[key], row))
