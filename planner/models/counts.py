"""Parameter counts, exact. Every function broadcasts over the fields of a model or a table of models."""

from typing import Any

import numpy as np

from planner.models.mix import expert_width, norms, sparse_layers, sparse_modules, ssm_channels
from planner.models.transformer import Transformer


def _flag(value: Any) -> Any:
    return np.asarray(value) * 1


def norm_params(m: Transformer) -> Any:
    """Parameters of one norm over the hidden state: a weight, and a bias unless RMSNorm."""
    return m.hidden * (2 - _flag(m.rms_norm))


def qkv_params(m: Transformer) -> Any:
    """Parameters of the products from the hidden state to queries, keys and values, without biases.

    Multi-head latent attention has low-rank products down and up (DeepSeek-V2, arXiv 2405.04434, section 2.1).
    """
    a, kv, d, h = m.num_heads, m.num_kv_heads, m.head_dim, m.hidden
    rank_q, rank_kv, rope = np.asarray(m.q_lora_rank), np.asarray(m.kv_lora_rank), m.qk_rope_head_dim
    query = np.where(rank_q > 0, h * rank_q + rank_q * a * d, h * a * d)
    key_value = h * (rank_kv + rope) + rank_kv * a * (d - rope + m.v_head_dim)
    return np.where(rank_kv > 0, query + key_value, h * (a + 2 * kv) * d)


def attention_params(m: Transformer) -> Any:
    """Parameters of attention: its four products with biases, and norms of queries and keys, or of the latents."""
    a, kv, d, rank_kv = m.num_heads, m.num_kv_heads, m.head_dim, np.asarray(m.kv_lora_rank)
    more = _flag(m.qkv_bias) * (a + 2 * kv) * d + _flag(m.output_bias) * m.hidden + _flag(m.qk_norm) * 2 * d
    more = np.where(rank_kv > 0, m.q_lora_rank + rank_kv, more)
    return qkv_params(m) + a * m.value_channels * m.hidden + more


def _mlp(m: Transformer, width: Any, inner: Any, bias: Any) -> Any:
    """Parameters of one MLP of `width` channels, `inner` inside. bias: 1 where its products have biases, else 0."""
    matrices = 2 + _flag(m.gated)
    return matrices * width * inner + bias * ((matrices - 1) * inner + width)


def _experts(m: Transformer) -> Any:
    """Parameters that one sparse layer has instead of a dense MLP."""
    return m.num_experts * expert_params(m) + shared_expert_params(m) + router_params(m) + latent_params(m)


def mlp_params(m: Transformer) -> Any:
    """Parameters of a dense layer's MLP."""
    return _mlp(m, m.hidden, m.ffn, _flag(m.mlp_bias))


def head_in_layers(m: Transformer) -> Any:
    """The head's product in units of a layer's, as nanotron counts them to split layers over stages.

    A layer counts attention as four products of all heads, without groups, and the MLP (models/llama.py,
    get_block_compute_costs). nanotron has no count of experts; here a token's experts count where they are wider.
    """
    inner = np.maximum(m.ffn, np.asarray(m.top_k) * m.moe_ffn)
    layer = 4 * m.num_heads * m.head_dim * m.hidden + _mlp(m, m.hidden, inner, 0)
    return m.vocab * m.hidden / layer


def expert_params(m: Transformer) -> Any:
    """Parameters of one routed expert, which works on the hidden state or on a latent."""
    return _mlp(m, expert_width(m), m.moe_ffn, _flag(m.expert_bias))


def shared_expert_params(m: Transformer) -> Any:
    """Parameters of all shared experts of one sparse layer."""
    return _mlp(m, m.hidden, m.shared_ffn, 0)


def latent_params(m: Transformer) -> Any:
    """Parameters of one sparse layer's products down to its experts' latents and up from them, without biases."""
    return 2 * m.hidden * np.asarray(m.moe_latent)


def router_params(m: Transformer) -> Any:
    """Parameters of one sparse layer's router.

    DeepSeek-V3's balancing term for each expert isn't counted: no gradient trains it.
    """
    return (m.hidden + _flag(m.expert_bias)) * np.asarray(m.num_experts)


def ssm_params(m: Transformer) -> Any:
    """Parameters of a Mamba-2 mixer (Dao and Gu 2024, arXiv 2405.21060, section 7) as in Megatron-LM and mamba-ssm.

    One product to gate, channels, B, C and a step for each head; a causal convolution with bias over channels, B and C;
    step bias, decay and skip of each head; a gated RMSNorm; the product back.
    """
    inner, states = ssm_channels(m)
    heads = np.asarray(m.ssm_heads)
    products = m.hidden * (2 * inner + states + heads) + inner * m.hidden
    return products + (inner + states) * (np.asarray(m.ssm_conv) + 1) + 3 * heads + inner


def layers_params(m: Transformer) -> Any:
    """Parameters of all layers: their mixers and MLPs, and the norms before them."""
    mixers = m.num_attention_layers * attention_params(m) + m.num_ssm_layers * ssm_params(m)
    mlps = m.num_dense_layers * mlp_params(m) + sparse_layers(m) * _experts(m)
    return mixers + mlps + norms(m) * norm_params(m)


def mtp_projection_params(m: Transformer) -> Any:
    """Parameters of the multi-token prediction modules' products from hidden state and embedding to a hidden state."""
    return m.num_mtp_modules * 2 * m.hidden * m.hidden


def mtp_params(m: Transformer) -> Any:
    """Parameters of all multi-token prediction modules: projection, layer, and norms of state, embedding and output.

    Embedding and head are the model's own (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    """
    layer = attention_params(m) + np.where(sparse_layers(m) > 0, _experts(m), mlp_params(m))
    own = np.where(np.asarray(m.parallel_block) & ~np.asarray(m.parallel_norms), 4, 5) * norm_params(m)
    return mtp_projection_params(m) + m.num_mtp_modules * (layer + own)


def embedding_params(m: Transformer) -> Any:
    """Parameters of the token table, of learned positions and of BLOOM's norm after the embedding."""
    return (m.vocab + np.asarray(m.max_positions)) * m.hidden + _flag(m.embedding_norm) * norm_params(m)


def head_params(m: Transformer, tied: Any = None) -> Any:
    """Parameters of an untied output matrix; 0 where the head is the token table. tied: None, as the model says."""
    return (1 - _flag(m.tied if tied is None else tied)) * m.vocab * m.hidden


def total_params(m: Transformer) -> Any:
    """All parameters, those of the norm before the head among them; vocabulary unpadded."""
    return layers_params(m) + mtp_params(m) + embedding_params(m) + norm_params(m) + head_params(m)


def active_params(m: Transformer) -> Any:
    """Parameters that one token meets: top_k of the experts."""
    sparse = sparse_layers(m) + sparse_modules(m)
    unused = sparse * (m.num_experts - np.asarray(m.top_k)) * expert_params(m)
    return total_params(m) - unused
