"""Layers of a hybrid of state-space, attention and MLP layers: a pattern of letters, or Nemotron-H's usual shares."""

from __future__ import annotations

from planner.base.errors import InputError, shown

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
