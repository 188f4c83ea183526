"""The shape of a transformer: numbers for one model, or arrays of shape (n,) for one model a layout."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """A transformer; every formula on it broadcasts: a field is a number or an array (n,).

    ffn: inner size of a dense layer's MLP; gated: three matrices (SwiGLU) instead of two.
    num_experts, top_k, num_shared_experts, moe_ffn: of the sparse layers, 0 where there are none; shared experts count
    by a routed one's width, so 2.5 may be. A token's experts lie in top_k_groups of expert_groups equal groups
    (DeepSeek-V3's node-limited routing), 0: anywhere.
    moe_latent > 0: experts, but those shared, work on latents of so many channels, between two products that all of
    them share (LatentMoE: Elango et al. 2026, arXiv 2601.18089; Nemotron 3 Super).
    num_dense_layers: layers with the dense MLP, all of them in a dense model.
    max_positions: rows of a learned position table, 0 for rotary and ALiBi.
    dropout: its recipe drops 0.1 of attention's scores and of each block's output, as GPT-2's and GPT-3's do.
    qkv_bias, output_bias, mlp_bias: biases in the query, key and value products, in attention's output
    product, in a dense layer's MLP. expert_bias: in the router and in both products of every expert (GPT-OSS).
    clamped: a gated MLP's two inner halves are clamped before they meet (GPT-OSS).
    rms_norm: norms without bias; qk_norm: RMSNorm over each query and key head; embedding_norm: BLOOM's.
    parallel_block: a layer's attention and MLP take the same input and are added to it at once, x + attention(norm x) +
    mlp(norm x), from one norm (GPT-J, PaLM), or where parallel_norms from a norm each (GPT-NeoX, Falcon 40B).
    kv_lora_rank > 0: multi-head latent attention (DeepSeek-V2), where head_dim is the query's and key's whole
    head and v_head_dim the value's; q_lora_rank 0: queries straight from the hidden state.
    num_ssm_layers: layers that mix tokens by a Mamba-2 state-space instead of attention (Dao and Gu 2024,
    arXiv 2405.21060), of ssm_heads heads of ssm_head_dim channels in ssm_groups groups, ssm_state numbers of state a
    channel, a causal convolution over ssm_conv tokens. A hybrid's layer (Nemotron-H) is a mixer or an MLP alone:
    num_mixer_only_layers have no MLP, num_mlp_only_layers neither attention nor state-space.
    num_window_layers: attention layers in which a token attends to the last `window` tokens alone, itself among them.
    chunk: most layers attend to a token's own chunk of so many tokens alone (Llama 4), which is counted as whole
    attention; 0 for none. bidirectional: a token attends to all others, or to all in its window, as an encoder's does.
    num_mtp_layers: modules of multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2), each a layer of the
    model's last kind behind a projection of the last hidden state and the next token's embedding, which predicts one
    token further with the model's own embedding and head. A hybrid's has attention and an MLP (Nemotron 3's "*E").
    mtp_shared: all of them are one module's weights, used again and again (Nemotron 3).
    The rest is no seconds and no bytes, but another model; 0 or empty where nobody said. rotary_base, rotary_percent
    (of a head's channels), rope_scaling (LLaMA 3.1's factor, 1 for none), norm_epsilon; qk_l2_norm: queries and keys to
    length 1 (Llama 4). rope_type: another scaling in Hugging Face's words, as "yarn factor 40". router: how the
    router's scores weigh experts: "softmax" or "sigmoid", which sum to 1 over those chosen, but not with "-first", and
    what they are multiplied by, as "sigmoid 2.5". expert_layers: 1 for each layer with experts and 0 for each dense
    one, where the dense ones aren't the first. model_type: of a config.json.
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
    dropout: Any = False
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
    parallel_block: Any = False
    parallel_norms: Any = False
    bidirectional: Any = False
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
    chunk: Any = 0
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
    rotary_base: Any = 0
    rope_scaling: Any = 0
    rotary_percent: Any = 0.0
    norm_epsilon: Any = 0.0
    qk_l2_norm: Any = False
    rope_type: Any = ""
    router: Any = ""
    expert_layers: Any = ""
    model_type: Any = ""

    @property
    def shared_ffn(self) -> Any:
        """Inner size of a sparse layer's shared experts together."""
        return np.rint(np.asarray(self.num_shared_experts) * self.moe_ffn).astype(np.int64)

    @property
    def value_channels(self) -> Any:
        """Channels of a head's values; its queries and keys have `head_dim`."""
        return np.where(np.asarray(self.kv_lora_rank) > 0, self.v_head_dim, self.head_dim)

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
        """Whether fine recomputation has something to repeat: experts or latent attention."""
        return (np.asarray(self.num_experts) > 0) | (np.asarray(self.kv_lora_rank) > 0)


def stack(models: Sequence[Transformer], index: Any) -> Transformer:
    """One table from many models: each field becomes an array, `field[i]` that of `models[index[i]]`."""
    columns = {f.name: np.array([getattr(m, f.name) for m in models])[index] for f in fields(Transformer)}
    return Transformer(**columns)
