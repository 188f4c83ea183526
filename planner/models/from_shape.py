"""A model from its sizes and its family's conventions, a hybrid's from its pattern; with another sequence length."""

from dataclasses import replace
from typing import Any

from planner.base.errors import InputError, shown
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

    A hybrid's state-space layers, which these sizes leave open, are as Nemotron-H's (`planner.models.from_shape`).

    Raises InputError for an unknown family, or an impossible shape.
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


# Letters as Megatron-LM's --hybrid-override-pattern and Hugging Face's hybrid_override_pattern have them.
STATE_SPACE, ATTENTION, MLP, EXPERTS = LETTERS = "M*-E"
# Blakeman et al. 2025, Nemotron-H (arXiv 2504.03624), section 2.1: 8 % of the layers are attention, the others half
# Mamba-2, half MLP; heads of 64 channels in 8 groups, expanded twice, a convolution over 4 tokens. State: 128 of its
# 8B, 256 of its 56B, which is 8,192 wide.
ATTENTION_SHARE = 0.08
WIDE = 8192


def from_pattern(pattern: str) -> dict[str, int]:
    """How many layers of each kind, as a Transformer's fields: M state-space, * attention, - MLP, E experts.

    Raises InputError for an empty pattern, or another letter.
    """
    if not pattern or set(pattern) - set(LETTERS):
        raise InputError(f"pattern is {shown(pattern)}; allowed: one letter a layer, of {' '.join(LETTERS)}")
    mixers = pattern.count(STATE_SPACE) + pattern.count(ATTENTION)
    return {
        "num_layers": len(pattern),
        "num_dense_layers": pattern.count(MLP),
        "num_ssm_layers": pattern.count(STATE_SPACE),
        "num_mixer_only_layers": mixers,
        "num_mlp_only_layers": len(pattern) - mixers,
    }


def usual(layers: int, hidden: int) -> dict[str, int]:
    """Counts and sizes where only `layers` and `hidden` are known, as Transformer's fields: Nemotron-H's."""
    attention = round(ATTENTION_SHARE * layers)
    mlp = (layers - attention) // 2
    return {
        "num_dense_layers": mlp,
        "num_ssm_layers": layers - attention - mlp,
        "num_mixer_only_layers": layers - mlp,
        "num_mlp_only_layers": mlp,
        "ssm_heads": max(2 * hidden // 64, 8) // 8 * 8,
        "ssm_head_dim": 64,
        "ssm_groups": 8,
        "ssm_state": 256 if hidden >= WIDE else 128,
        "ssm_conv": 4,
    }
