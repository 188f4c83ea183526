"""MFU in words: with what it would be of causal attention, where that makes a difference."""

from __future__ import annotations

from planner.models import Transformer, flops

VISIBLE = 0.9
"""Share of the counted FLOP that a causal model has, under which it is said: whole attention may pass 100 %."""


def shown_mfu(model: Transformer) -> tuple[str, float]:
    """The name of the MFU that is shown first, and its share of that by PaLM's convention.

    PaLM's convention counts attention whole. For long sequences the MFU of causal attention is shown first.
    """
    share = float(flops.causal_share(model))
    return ("causal MFU", share) if share < VISIBLE else ("MFU", 1.0)


def mfu_text(mfu: float, model: Transformer) -> str:
    """The MFU that is shown first; after a causal one, that with whole attention."""
    name, share = shown_mfu(model)
    return f"{name} {mfu * share:.1%}" + (f" ({mfu:.1%} with whole attention)" if share < 1.0 else "")
