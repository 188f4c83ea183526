"""A model as Megatron-LM's arguments, and what of it has none."""

from __future__ import annotations

from planner.models import Transformer

Arguments = list[tuple[str, ...]]


def model_arguments(model: Transformer, *, dropout: bool, grouped: bool, dispatcher: str = "alltoall") -> Arguments:
    """The network's size and kind, one argument with its values a tuple.

    dropout: Megatron-LM's default of 0.1. grouped: experts' products together, which it has in bf16 only.
    dispatcher: alltoall, deepep or hybridep.
    """
    m = model
    out: Arguments = [
        ("--num-layers", str(m.num_layers)),
        ("--hidden-size", str(m.hidden)),
        ("--ffn-hidden-size", str(m.ffn or m.moe_ffn)),
        ("--num-attention-heads", str(m.num_heads)),
        ("--seq-length", str(m.seq_len)),
        ("--max-position-embeddings", str(max(m.seq_len, m.max_positions))),
        ("--normalization", "RMSNorm" if m.rms_norm else "LayerNorm"),
        ("--position-embedding-type", _positions(m)),
    ]
    if m.clamped:
        out += [("--quick-geglu",), ("--glu-linear-offset", "1.0"), ("--activation-func-clamp-value", "7.0")]
    elif m.gated:
        out.append(("--swiglu",))
    elif m.family == "nemotron":
        out.append(("--squared-relu",))
    if not (m.output_bias or m.mlp_bias or m.expert_bias):
        out.append(("--disable-bias-linear",))
        if m.qkv_bias:
            out.append(("--add-qkv-bias",))
    if not m.tied:
        out.append(("--untie-embeddings-and-output-weights",))
    if m.qk_norm:
        out.append(("--qk-layernorm",))
    if m.num_window_layers:
        out.append(("--window-size", f"{m.window},0"))
        every = _whole_every(m)
        out += [("--window-attn-skip-freq", str(every))] if every else []
    if m.num_mtp_layers:
        out.append(("--mtp-num-layers", str(m.num_mtp_layers)))
        out += [("--mtp-use-repeated-layer",)] if m.mtp_shared else []
    out += _attention(m)
    out += _experts(m, grouped, dispatcher)
    if not dropout:
        out += [("--attention-dropout", "0.0"), ("--hidden-dropout", "0.0")]
    return out


def model_notes(model: Transformer) -> list[str]:
    """What of the model Megatron-LM has no argument for."""
    m, out = model, []
    if not m.rotary and not m.max_positions:
        out.append("positions: Megatron-LM has no ALiBi; exported without position embeddings")
    if m.num_window_layers and _whole_every(m) is None:
        out.append(f"sliding windows in {m.num_window_layers} of {m.num_layers} layers: which of them planner doesn't "
                   "know; exported in all, give --window-attn-skip-freq a pattern of 1 and 0")  # fmt: skip
    if m.moe_latent:
        out.append("experts' latents: --moe-latent-size is newer than Megatron-Core 0.16.1")
    if m.num_mtp_layers and m.mtp_shared:
        out.append("a module used again: --mtp-use-repeated-layer is newer than Megatron-Core 0.16.1")
    if m.embedding_norm:
        out.append("norm behind the embedding: Megatron-LM has no argument for it; exported without")
    if m.clamped:
        out.append(
            "clamped gate: planner doesn't know where; exported as GPT-OSS's, a quick GELU at 7 with an offset of 1"
        )
    biases = {bool(m.qkv_bias), bool(m.output_bias)}
    biases |= {bool(m.mlp_bias)} if m.num_dense_layers else set()
    biases |= {bool(m.expert_bias)} if m.num_experts else set()
    if len(biases) == 2 and (m.output_bias or m.mlp_bias or m.expert_bias):
        out.append("biases of some linear layers: Megatron-LM has all, none, or those of queries, keys and values; "
                   "exported with all")  # fmt: skip
    return out


def _whole_every(m: Transformer) -> int | None:
    """n where every nth layer has whole attention and the others a sliding window, 0 for none; None: some other way."""
    whole = int(m.num_layers - m.num_window_layers)
    every = int(m.num_layers) // whole if whole else 0
    return every if not whole or (every > 1 and int(m.num_layers) // every == whole) else None


def _positions(m: Transformer) -> str:
    return "rope" if m.rotary else "learned_absolute" if m.max_positions else "none"


def _attention(m: Transformer) -> Arguments:
    if m.kv_lora_rank:
        query = [("--q-lora-rank", str(m.q_lora_rank))] if m.q_lora_rank else []
        return [
            ("--multi-latent-attention",),
            *query,
            ("--kv-lora-rank", str(m.kv_lora_rank)),
            ("--qk-head-dim", str(m.head_dim - m.qk_rope_head_dim)),
            ("--qk-pos-emb-head-dim", str(m.qk_rope_head_dim)),
            ("--v-head-dim", str(m.v_head_dim)),
        ]
    out: Arguments = [("--kv-channels", str(m.head_dim))]
    if m.num_kv_heads != m.num_heads:
        out += [("--group-query-attention",), ("--num-query-groups", str(m.num_kv_heads))]
    return out


def _experts(m: Transformer, grouped: bool, dispatcher: str) -> Arguments:
    if not m.num_experts:
        return []
    out: Arguments = [
        ("--num-experts", str(m.num_experts)),
        ("--moe-router-topk", str(m.top_k)),
        ("--moe-ffn-hidden-size", str(m.moe_ffn)),
        ("--moe-token-dispatcher-type", "alltoall" if dispatcher == "alltoall" else "flex"),
        *([("--moe-enable-deepep",)] if dispatcher == "deepep" else []),
        *([("--moe-flex-dispatcher-backend", dispatcher)] if dispatcher == "hybridep" else []),
        *([("--moe-grouped-gemm",)] if grouped else []),
    ]
    if m.moe_latent:
        out.append(("--moe-latent-size", str(m.moe_latent)))
    if m.num_shared_experts:
        out.append(("--moe-shared-expert-intermediate-size", str(m.num_shared_experts * m.moe_ffn)))
    if m.expert_groups:
        out += [("--moe-router-num-groups", str(m.expert_groups)), ("--moe-router-group-topk", str(m.top_k_groups))]
    if m.num_dense_layers:
        out.append(("--moe-layer-freq", f"([0]*{m.num_dense_layers}+[1]*{m.num_layers - m.num_dense_layers})"))
    return out
