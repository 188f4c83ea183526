"""MFU in words: with what it would be of causal attention, where that makes a difference."""

from __future__ import annotations

from planner.models import Transformer, flops

VISIBLE = 0.9
"""Share of the counted FLOP that a causal model has, under which it is said: whole attention may pass 100 %."""


def mfu_text(mfu: float, model: Transformer) -> str:
    """MFU; of long sequences that with causal attention first, then by PaLM's convention, which counts it whole."""
    share = float(flops.causal_share(model))
    if share >= VISIBLE:
        return f"MFU {mfu:.1%}"
    return f"causal MFU {mfu * share:.1%} ({mfu:.1%} with whole attention)"
