"""FLOP of a model by operation, and the conventions by which papers count them. All broadcast over models."""

from collections.abc import Callable
from typing import Any

import numpy as np

from planner.base.errors import UnknownNameError
from planner.models.counts import active_params, expert_params, mtp_params, qkv_params
from planner.models.mix import expert_width, sparse_layers, sparse_modules, ssm_channels, window_share
from planner.models.transformer import Transformer

SSM_CHUNK = 128  # tokens of a chunk of a state-space's scan: Megatron-Core's and Nemotron-H's


def forward_flops(m: Transformer, *, causal: bool = False) -> dict[str, Any]:
    """FLOP of one sequence's forward pass by operation: two for each multiply-add.

    causal: count half of the attention scores, as flash kernels compute them, unless the model is bidirectional. Of a
    sliding window those within it.
    Multi-token prediction's layers, projections and heads are counted with the model's own.
    state_space: the products with chunks of SSM_CHUNK tokens (Dao and Gu 2024, arXiv 2405.21060, section 6), scores
    within a chunk, in and out of states.
    """
    further = np.asarray(m.num_mtp_layers)
    s, h, L = m.seq_len, m.hidden, m.num_attention_layers + further
    a, v_dim = m.num_heads, m.value_channels
    within = np.where(np.asarray(m.window) > 0, np.minimum(m.window, s), s)
    hidden = 0.5 * (causal & ~np.asarray(m.bidirectional))  # the share of all scores that a mask hides
    whole, band = (1.0 - hidden) * s, within * (1.0 - hidden * within / s)
    keys = whole + window_share(m) * (band - whole)
    matrices = 2 + np.asarray(m.gated) * 1
    modules = np.where(sparse_layers(m) > 0, further, 0)
    dense, sparse = m.num_dense_layers + further - modules, sparse_layers(m) + modules
    widths = expert_width(m) * m.top_k + h * np.asarray(m.num_shared_experts)
    inner, states = ssm_channels(m)
    scan = SSM_CHUNK * (states / 2 + inner) + 2 * inner * np.asarray(m.ssm_state)
    per_token = {
        "qkv": 2.0 * L * qkv_params(m),
        "attention_scores": 2.0 * L * keys * a * m.head_dim,
        "attention_values": 2.0 * L * keys * a * v_dim,
        "attention_output": 2.0 * L * a * v_dim * h,
        "state_space_products": 2.0 * m.num_ssm_layers * h * (3 * inner + states + np.asarray(m.ssm_heads)),
        "state_space": 2.0 * m.num_ssm_layers * (scan + (inner + states) * np.asarray(m.ssm_conv)),
        "mlp": 2.0 * dense * matrices * h * m.ffn,
        "router": 2.0 * sparse * h * np.asarray(m.num_experts),
        "experts": 2.0 * sparse * matrices * m.moe_ffn * widths,
        "expert_latents": 4.0 * sparse * h * np.asarray(m.moe_latent),
        "mtp_projection": 4.0 * further * h * h,
        "head": 2.0 * h * np.asarray(m.vocab) * m.output_heads,
    }
    return {name: flop * s for name, flop in per_token.items()}


def _megatron(m: Transformer, sequences: Any, recompute: Any) -> Any:
    layers = sum(flop for name, flop in forward_flops(m).items() if name != "head")
    head = forward_flops(m)["head"]
    return sequences * (np.where(recompute, 4.0, 3.0) * layers + 3.0 * head)


def _met(m: Transformer) -> Any:
    """Parameters that a token meets, the head's anew for every token it predicts."""
    again = m.num_mtp_layers - m.num_mtp_modules
    unused = sparse_modules(m) * (m.num_experts - np.asarray(m.top_k)) * expert_params(m)
    heads = np.asarray(m.num_mtp_layers) * m.hidden * np.asarray(m.vocab)
    return active_params(m) + again * (mtp_params(m) - unused) + heads


def _palm(m: Transformer, sequences: Any, recompute: Any) -> Any:
    n = _met(m)
    heads = m.head_dim + m.value_channels
    layers = m.num_attention_layers + np.asarray(m.num_mtp_layers)
    return (6.0 * n + 6.0 * layers * m.num_heads * heads * m.seq_len) * m.seq_len * sequences


def weight_gradient_flops(m: Transformer, sequences: Any) -> Any:
    """FLOP of a step's weight gradients: a third of what "palm" counts of the parameters."""
    return 2.0 * _met(m) * m.seq_len * np.asarray(sequences)


# megatron: every product of the model, whole attention, the recomputed forward counted where it is done
#   (with it Narayanan et al. 2021, eq. 3: 96 B s l h^2 (1 + s/6h + V/16lh); without it Korthikanti et al. 2022).
# palm: 6 N + 12 L H Q T a token (Chowdhery et al. 2022, arXiv 2204.02311, appendix B), N all parameters that
#   a token meets, embedding and head included, as Hagemann et al. 2023 count; 2 Q is the size of a query head
#   and a value head.
# 6nd: 6 N a token (Kaplan et al. 2020).
CONVENTIONS: dict[str, Callable[[Transformer, Any, Any], Any]] = {
    "megatron": _megatron, "palm": _palm, "6nd": lambda m, sequences, _: 6.0 * _met(m) * m.seq_len * sequences
}  # fmt: skip


def causal_share(m: Transformer) -> Any:
    """FLOP of a step by "palm" with the attention that causal kernels compute, over all that it counts.

    Half of the scores, and of a sliding window those within it; 1 for a short sequence, towards 1/2 for a long one.
    """
    whole = _palm(m, 1, False)
    n, forward = 6.0 * _met(m) * m.seq_len, forward_flops(m, causal=True)
    return (n + 3.0 * (forward["attention_scores"] + forward["attention_values"])) / whole


VISIBLE = 0.9995
"""Share of the counted FLOP that a causal model has, under which it is said: above, both MFU are written alike."""


def shown_mfu(m: Transformer) -> tuple[str, float]:
    """The name of the MFU that is shown first, and its share of that by PaLM's convention.

    PaLM's convention counts attention whole. The MFU of what causal attention computes is shown first.
    """
    share = float(causal_share(m))
    return ("causal MFU", share) if share < VISIBLE else ("MFU", 1.0)


def mfu_text(mfu: float, m: Transformer) -> str:
    """The MFU that is shown first; after a causal one, that with whole attention, which no sliding window computes."""
    name, share = shown_mfu(m)
    whole = share < 1.0 and not m.num_window_layers
    return f"{name} {mfu * share:.1%}" + (f" ({mfu:.1%} with whole attention)" if whole else "")


def step_flops(m: Transformer, sequences: Any, convention: str = "palm", *, recompute: Any = False) -> Any:
    """FLOP of a step of `sequences`, forward and backward, by the way of counting that `convention` names.

    sequences: global batch, a number or (n,); recompute: full activation recomputation, a flag or (n,),
    which only "megatron" counts.

    Raises UnknownNameError for an unknown convention.
    """
    if convention not in CONVENTIONS:
        raise UnknownNameError("FLOP convention", convention, CONVENTIONS)
    return CONVENTIONS[convention](m, sequences, recompute)
