"""The shape of a transformer: numbers for one model, or arrays of shape (n,) for one model a layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from planner.base.errors import InputError, shown
from planner.models.hybrid import usual


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """A decoder-only transformer; every formula on it broadcasts: a field is a number or an array (n,).

    ffn: inner size of a dense layer's MLP; gated: three matrices (SwiGLU) instead of two.
    num_experts, top_k, num_shared_experts, moe_ffn: of the sparse layers, 0 where there are none; a token's experts
    lie in top_k_groups of expert_groups equal groups (DeepSeek-V3's node-limited routing), 0: anywhere.
    moe_latent > 0: experts, but those shared, work on latents of so many channels, between two products that all of
    them share (LatentMoE: Elango et al. 2026, arXiv 2601.18089; Nemotron 3 Super).
    num_dense_layers: layers with the dense MLP, all of them in a dense model.
    max_positions: rows of a learned position table, 0 for rotary and ALiBi.
    qkv_bias, output_bias, mlp_bias: biases in the query, key and value products, in attention's output
    product, in a dense layer's MLP. expert_bias: in the router and in both products of every expert (GPT-OSS).
    clamped: a gated MLP's two inner halves are clamped before they meet (GPT-OSS).
    rms_norm: norms without bias; qk_norm: RMSNorm over each query and key head; embedding_norm: BLOOM's.
    kv_lora_rank > 0: multi-head latent attention (DeepSeek-V2), where head_dim is the query's and key's whole
    head and v_head_dim the value's; q_lora_rank 0: queries straight from the hidden state.
    num_ssm_layers: layers that mix tokens by a Mamba-2 state-space instead of attention (Dao and Gu 2024,
    arXiv 2405.21060), of ssm_heads heads of ssm_head_dim channels in ssm_groups groups, ssm_state numbers of state a
    channel, a causal convolution over ssm_conv tokens. A hybrid's layer (Nemotron-H) is a mixer or an MLP alone:
    num_mixer_only_layers have no MLP, num_mlp_only_layers neither attention nor state-space.
    num_window_layers: attention layers in which a token attends to the last `window` tokens alone, itself among them.
    num_mtp_layers: modules of multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2), each a layer of the
    model's last kind behind a projection of the last hidden state and the next token's embedding, which predicts one
    token further with the model's own embedding and head. A hybrid's has attention and an MLP (Nemotron 3's "*E").
    mtp_shared: all of them are one module's weights, used again and again (Nemotron 3).
    """

    name: Any
    family: Any
    num_layers: Any
    hidden: Any
    ffn: Any
    num_heads: Any
    num_kv_heads: Any
    head_dim: Any
    vocab: Any
    seq_len: Any
    max_positions: Any = 0
    gated: Any = False
    rms_norm: Any = False
    rotary: Any = False
    tied: Any = False
    qkv_bias: Any = False
    output_bias: Any = False
    mlp_bias: Any = False
    expert_bias: Any = False
    clamped: Any = False
    qk_norm: Any = False
    embedding_norm: Any = False
    num_experts: Any = 0
    top_k: Any = 0
    num_shared_experts: Any = 0
    moe_ffn: Any = 0
    moe_latent: Any = 0
    expert_groups: Any = 0
    top_k_groups: Any = 0
    num_dense_layers: Any = 0
    q_lora_rank: Any = 0
    kv_lora_rank: Any = 0
    qk_rope_head_dim: Any = 0
    v_head_dim: Any = 0
    num_window_layers: Any = 0
    window: Any = 0
    num_ssm_layers: Any = 0
    num_mixer_only_layers: Any = 0
    num_mlp_only_layers: Any = 0
    ssm_heads: Any = 0
    ssm_head_dim: Any = 0
    ssm_groups: Any = 0
    ssm_state: Any = 0
    ssm_conv: Any = 0
    num_mtp_layers: Any = 0
    mtp_shared: Any = False

    @property
    def output_heads(self) -> Any:
        """Heads onto the vocabulary: the model's, and one for each module of multi-token prediction."""
        return 1 + self.num_mtp_layers

    @property
    def num_mtp_modules(self) -> Any:
        """Modules of multi-token prediction with weights of their own."""
        return np.where(self.mtp_shared, np.minimum(self.num_mtp_layers, 1), self.num_mtp_layers)

    @property
    def num_attention_layers(self) -> Any:
        """Layers that mix tokens by attention."""
        return self.num_layers - self.num_ssm_layers - self.num_mlp_only_layers

    @property
    def has_experts_or_latents(self) -> Any:
        """Where there is something that fine recomputation is for: experts or latent attention."""
        return (np.asarray(self.num_experts) > 0) | (np.asarray(self.kv_lora_rank) > 0)


POSITIVE = ("num_layers", "hidden", "num_heads", "num_kv_heads", "head_dim", "vocab", "seq_len")
NOT_NEGATIVE = (
    "ffn", "max_positions", "num_experts", "top_k", "num_shared_experts", "moe_ffn", "moe_latent", "expert_groups",
    "top_k_groups", "num_dense_layers",
    "q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "v_head_dim", "num_window_layers", "window", "num_ssm_layers",
    "num_mixer_only_layers", "num_mlp_only_layers", "ssm_heads", "ssm_head_dim", "ssm_groups", "ssm_state", "ssm_conv",
    "num_mtp_layers",
)  # fmt: skip
SSM_SIZES = ("ssm_heads", "ssm_head_dim", "ssm_groups", "ssm_state", "ssm_conv")
FLAGS = (
    "gated", "rms_norm", "rotary", "tied", "qkv_bias", "output_bias", "mlp_bias", "expert_bias", "clamped", "qk_norm",
    "embedding_norm", "mtp_shared",
)  # fmt: skip
LARGEST = 10**9
LONGEST_NAME = 200
MOST_PARAMS = 10**18


def check(model: Transformer) -> Transformer:
    """The same model if its shape is possible.

    Raises:
        InputError: a size is not a whole number in range, or sizes contradict each other; names the field.
    """
    m, who = model, f"model {model.name}"
    if not isinstance(m.name, str) or not m.name.isprintable() or not 1 <= len(m.name) <= LONGEST_NAME:
        raise InputError(f"model's name is {shown(m.name)}; allowed: 1 to {LONGEST_NAME} characters that print")
    for name in POSITIVE + NOT_NEGATIVE:
        value = getattr(m, name)
        least = 1 if name in POSITIVE else 0
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            raise InputError(f"{who}: {name} is {shown(value)}; allowed: a whole number from {least} to 1e9")
    for name in FLAGS:
        if not isinstance(getattr(m, name), bool):
            raise InputError(f"{who}: {name} is {getattr(m, name)!r}; allowed: true or false")
    if m.num_heads % m.num_kv_heads:
        raise InputError(f"{who}: num_heads {m.num_heads} isn't a multiple of num_kv_heads {m.num_kv_heads}")
    if m.num_dense_layers + m.num_mixer_only_layers > m.num_layers:
        raise InputError(
            f"{who}: num_dense_layers {m.num_dense_layers} and num_mixer_only_layers {m.num_mixer_only_layers} are "
            f"over num_layers {m.num_layers}"
        )
    if m.num_ssm_layers + m.num_mlp_only_layers > m.num_layers:
        raise InputError(
            f"{who}: num_ssm_layers {m.num_ssm_layers} and num_mlp_only_layers {m.num_mlp_only_layers} are over "
            f"num_layers {m.num_layers}"
        )
    if m.num_mixer_only_layers + m.num_mlp_only_layers > m.num_layers:
        raise InputError(
            f"{who}: num_mixer_only_layers {m.num_mixer_only_layers} and num_mlp_only_layers {m.num_mlp_only_layers} "
            f"are over num_layers {m.num_layers}"
        )
    if m.num_window_layers > m.num_attention_layers or bool(m.num_window_layers) != bool(m.window):
        raise InputError(
            f"{who}: num_window_layers {m.num_window_layers} and window {m.window}; allowed: both 0, or a window >= 1 "
            f"in 1 to {m.num_attention_layers} layers, those with attention"
        )
    if m.num_ssm_layers and (min(getattr(m, name) for name in SSM_SIZES) < 1 or m.ssm_heads % m.ssm_groups):
        got = ", ".join(f"{name} {getattr(m, name)}" for name in SSM_SIZES)
        raise InputError(
            f"{who}: state-space layers need every ssm size >= 1 and ssm_heads a multiple of ssm_groups; got {got}"
        )
    if m.num_mtp_layers and m.num_mixer_only_layers == m.num_layers:
        raise InputError(f"{who}: num_mtp_layers is {m.num_mtp_layers}; allowed: 0, for no layer has an MLP")
    if m.num_dense_layers and not m.ffn:
        raise InputError(f"{who}: ffn is 0; allowed: 1 or more, for there are dense layers")
    if m.num_dense_layers + m.num_mixer_only_layers < m.num_layers and not (m.moe_ffn and 0 < m.top_k <= m.num_experts):
        raise InputError(
            f"{who}: sparse layers need moe_ffn >= 1 and 1 <= top_k <= num_experts; "
            f"got moe_ffn {m.moe_ffn}, top_k {m.top_k}, num_experts {m.num_experts}"
        )
    for name, without, owner, has_owner in (
        ("expert_bias", False, "experts", m.num_experts),
        ("clamped", False, "gated MLPs", m.gated),
        ("moe_latent", 0, "experts", m.num_experts),
    ):
        if getattr(m, name) and not has_owner:
            raise InputError(f"{who}: {name} is {getattr(m, name)}; allowed: {without}, for there are no {owner}")
    if m.kv_lora_rank and not (m.v_head_dim and m.qk_rope_head_dim < m.head_dim):
        raise InputError(
            f"{who}: kv_lora_rank {m.kv_lora_rank} needs v_head_dim >= 1 and qk_rope_head_dim < head_dim; "
            f"got v_head_dim {m.v_head_dim}, qk_rope_head_dim {m.qk_rope_head_dim}, head_dim {m.head_dim}"
        )
    if m.expert_groups or m.top_k_groups:
        size = m.num_experts // max(m.expert_groups, 1)
        if (
            m.num_experts != size * m.expert_groups
            or not -(-m.top_k // max(size, 1)) <= m.top_k_groups < m.expert_groups
        ):
            raise InputError(
                f"{who}: expert_groups {m.expert_groups} and top_k_groups {m.top_k_groups}; allowed: both 0, or equal "
                f"groups of num_experts {m.num_experts}, fewer of which hold top_k {m.top_k}"
            )
    if _rough_params(m) > MOST_PARAMS:
        raise InputError(f"{who}: its sizes make over 1e18 parameters; allowed: fewer")
    return model


def _rough_params(m: Transformer) -> int:
    """An upper bound in Python's own integers, so that counts in int64 can't wrap."""
    heads = m.num_heads * (2 * m.head_dim + m.v_head_dim + 2)
    ranks = m.q_lora_rank + m.kv_lora_rank
    attention = (2 * m.hidden + ranks) * (heads + ranks + m.hidden)
    space = (m.hidden + m.ssm_conv + 4) * (4 * m.ssm_heads * m.ssm_head_dim + 4 * m.ssm_groups * m.ssm_state + 1)
    inner = m.ffn + m.moe_ffn * (m.num_experts + m.num_shared_experts) + m.num_experts
    layer = 2 * attention + space + 4 * (m.hidden + m.moe_latent + 1) * (inner + m.moe_latent + 2)
    outside = (2 * m.vocab + m.max_positions + 6) * m.hidden
    return int((m.num_layers + m.num_mtp_layers) * (layer + 2 * m.hidden * m.hidden) + outside)


def stack(models: Sequence[Transformer], index: Any) -> Transformer:
    """One table from many models: each field becomes an array, `field[i]` that of `models[index[i]]`."""
    columns = {f.name: np.array([getattr(m, f.name) for m in models])[index] for f in fields(Transformer)}
    return Transformer(**columns)


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
        model = replace(model, max_positions=seq_len)
    if sparse:
        model = replace(model, num_experts=experts, top_k=top_k, moe_ffn=ffn)
    return check(model)


def with_seq_len(model: Transformer, seq_len: int) -> Transformer:
    """The same model trained on another sequence length; a learned position table grows where it must."""
    positions = max(model.max_positions, seq_len) if model.max_positions else 0
    return check(replace(model, seq_len=seq_len, max_positions=positions))
