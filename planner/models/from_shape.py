"""A model from its sizes and its family's conventions; the same model with another sequence length."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.base.errors import InputError
from planner.models.hybrid import usual
from planner.models.possible import check
from planner.models.transformer import Transformer

# What a family of the measured runs means, where only sizes are given.
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt": {"tied": True, "qkv_bias": True, "output_bias": True, "mlp_bias": True},
    "llama": {"gated": True, "rms_norm": True, "rotary": True},
    "nemotron": {"rotary": True},
    "moe": {"gated": True, "rms_norm": True, "rotary": True},
    "hybrid": {"rms_norm": True},
}


def from_shape(
    *,
    family: str,
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    seq_len: int,
    experts: int = 0,
    top_k: int = 0,
    name: str = "",
) -> Transformer:
    """A model from its sizes and its family's conventions: norms, positions, biases, gating, tying.

    A hybrid's state-space layers, which these sizes leave open, are as Nemotron-H's (`planner.models.hybrid`).

    Raises:
        InputError: an unknown family, or an impossible shape.
    """
    if family not in FAMILIES:
        raise InputError(f"family is {family!r}; allowed: {', '.join(FAMILIES)}")
    if heads > 0 and hidden % heads:
        raise InputError(f"model {name}: hidden {hidden} must be a multiple of heads {heads}")
    sparse = family == "moe"
    layers_of = usual(layers, hidden) if family == "hybrid" else {"num_dense_layers": 0 if sparse else layers}
    model = Transformer(
        name=name or f"{family}-{layers}x{hidden}",
        family=family,
        num_layers=layers,
        hidden=hidden,
        ffn=0 if sparse else ffn,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // max(heads, 1),
        vocab=vocab,
        seq_len=seq_len,
        **FAMILIES[family],
        **layers_of,
    )
    if family == "gpt":
        model = replace(model, max_positions=seq_len, dropout=True)
    if sparse:
        model = replace(model, num_experts=experts, top_k=top_k, moe_ffn=ffn)
    return check(model)


def with_seq_len(model: Transformer, seq_len: int) -> Transformer:
    """The same model trained on another sequence length; a learned position table grows where it must."""
    positions = max(model.max_positions, seq_len) if model.max_positions else 0
    return check(replace(model, seq_len=seq_len, max_positions=positions))
