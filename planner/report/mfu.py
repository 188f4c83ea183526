"""MFU in words: with what it would be of causal attention, where that makes a difference."""

from __future__ import annotations

from planner.models import Transformer, flops

VISIBLE = 0.9
"""Share of the counted FLOP that a causal model has, under which it is said: whole attention may pass 100 %."""


def mfu_text(mfu: float, model: Transformer) -> str:
    """MFU by PaLM's convention, which counts whole attention; of long sequences also with causal attention."""
    share = float(flops.causal_share(model))
    text = f"MFU {mfu:.1%}"
    return text if share >= VISIBLE else f"{text} ({mfu * share:.1%} with causal attention)"
