"""Hugging Face configs as their repositories give them, cut to the fields that carry sizes, with known counts."""

from __future__ import annotations

from typing import Any


def hf(model_type: str, layers: int, hidden: int, heads: int, ffn: int, vocab: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": 2048,
        **more,
    }


GPT2 = {
    "model_type": "gpt2",
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "n_inner": None,
    "n_positions": 1024,
    "vocab_size": 50257,
}
BLOOM = {"model_type": "bloom", "n_layer": 24, "hidden_size": 1024, "n_head": 16, "vocab_size": 250880}
OPT = hf("opt", 12, 768, 12, 0, 50272, ffn_dim=3072, word_embed_proj_dim=768)
LLAMA = hf("llama", 32, 4096, 32, 11008, 32000, num_key_value_heads=None)
MISTRAL = hf("mistral", 32, 4096, 32, 14336, 32000, sliding_window=4096)
MIXTRAL = hf("mixtral", 32, 4096, 32, 14336, 32000, num_local_experts=8, num_experts_per_tok=2)
QWEN2 = hf("qwen2", 24, 896, 14, 4864, 151936, num_key_value_heads=2, tie_word_embeddings=True)
QWEN3 = hf("qwen3", 28, 1024, 16, 3072, 151936, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True)
QWEN3_MOE = hf(
    "qwen3_moe", 48, 2048, 32, 6144, 151936, num_key_value_heads=4, head_dim=128, num_experts=128,
    num_experts_per_tok=8, moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[],
)  # fmt: skip
DEEPSEEK_V3 = hf(
    "deepseek_v3", 61, 7168, 128, 18432, 129280, num_key_value_heads=128, moe_intermediate_size=2048,
    n_group=8, topk_group=4,
    first_k_dense_replace=3, n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8, q_lora_rank=1536,
    kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, num_nextn_predict_layers=1,
)  # fmt: skip
GPT_OSS = hf(
    "gpt_oss", 36, 2880, 64, 2880, 201088, num_key_value_heads=8, head_dim=64, attention_bias=True,
    num_local_experts=128, num_experts_per_tok=4, sliding_window=128,
)  # fmt: skip
LLAMA4 = hf(
    "llama4_text", 48, 5120, 40, 8192, 202048, num_key_value_heads=8, head_dim=128, num_local_experts=128,
    num_experts_per_tok=1, intermediate_size_mlp=16384, interleave_moe_layer_step=2,
)  # fmt: skip
KIMI_K2 = DEEPSEEK_V3 | {
    "n_group": 1, "topk_group": 1,
    "model_type": "kimi_k2", "num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 163840,
    "n_routed_experts": 384, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0,
}  # fmt: skip
NEMOTRON_H = hf(
    "nemotron_h", 52, 4096, 32, 21504, 131072, num_key_value_heads=8, attention_head_dim=128,
    hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", mamba_num_heads=128,
    mamba_head_dim=64, n_groups=8, ssm_state_size=128, conv_kernel=4,
)  # fmt: skip
GEMMA = hf("gemma", 28, 3072, 16, 24576, 256000, num_key_value_heads=16, head_dim=256)
GEMMA2 = hf("gemma2", 42, 3584, 16, 14336, 256000, num_key_value_heads=8, head_dim=256, sliding_window=4096)
# As google/gemma-3-4b's text_config: what Transformers' defaults say is left out.
GEMMA3 = {
    "model_type": "gemma3_text",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "sliding_window": 1024,
}
PHI3 = hf("phi3", 40, 5120, 40, 17920, 100352, num_key_value_heads=10, sliding_window=None)
GRANITE = hf("granite", 40, 4096, 32, 12800, 49155, num_key_value_heads=8)
OLMO2 = hf("olmo2", 32, 4096, 32, 11008, 100352)
OLMO3 = hf("olmo3", 64, 5120, 40, 27648, 100278, num_key_value_heads=8, sliding_window=4096)
SMOLLM3 = hf("smollm3", 36, 2048, 16, 11008, 128256, num_key_value_heads=4)
SEED_OSS = hf("seed_oss", 64, 5120, 80, 27648, 155136, num_key_value_heads=8, head_dim=128)
APERTUS = hf("apertus", 80, 8192, 64, 43008, 131072, num_key_value_heads=8)
MINIMAX_M2 = hf(
    "minimax_m2", 62, 3072, 48, 1536, 200064, num_key_value_heads=8, head_dim=128, num_local_experts=256,
    num_experts_per_tok=8,
)  # fmt: skip
OLMOE = hf("olmoe", 16, 2048, 16, 1024, 50304, num_experts=64, num_experts_per_tok=8)
QWEN2_MOE = hf(
    "qwen2_moe", 28, 3584, 28, 18944, 151936, num_key_value_heads=4, num_experts=64, num_experts_per_tok=8,
    moe_intermediate_size=2560, shared_expert_intermediate_size=20480, decoder_sparse_step=1,
)  # fmt: skip
DEEPSEEK_V2 = hf(
    "deepseek_v2", 60, 5120, 128, 12288, 102400, num_key_value_heads=128, moe_intermediate_size=1536, n_group=8,
    topk_group=3, topk_method="group_limited_greedy", first_k_dense_replace=1, n_routed_experts=160,
    n_shared_experts=2, num_experts_per_tok=6, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
    qk_rope_head_dim=64, v_head_dim=128,
)  # fmt: skip
GLM4_MOE = hf(
    "glm4_moe", 46, 4096, 96, 10944, 151552, num_key_value_heads=8, head_dim=128, attention_bias=True,
    use_qk_norm=False, first_k_dense_replace=1, n_routed_experts=128, n_shared_experts=1, num_experts_per_tok=8,
    moe_intermediate_size=1408, n_group=1, topk_group=1, num_nextn_predict_layers=0,
)  # fmt: skip
GPTJ = {
    "model_type": "gptj", "n_layer": 28, "n_embd": 4096, "n_head": 16, "n_inner": None, "n_positions": 2048,
    "vocab_size": 50400, "rotary_dim": 64,
}  # fmt: skip
FALCON = {
    "model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71,
    "vocab_size": 65024, "new_decoder_architecture": False, "multi_query": True, "parallel_attn": True, "bias": False,
    "alibi": False,
}  # fmt: skip
PHI = hf("phi", 32, 2560, 32, 10240, 51200, partial_rotary_factor=0.4)
COHERE = hf("cohere", 40, 8192, 64, 22528, 256000, num_key_value_heads=64)
COHERE2 = hf("cohere2", 32, 4096, 32, 14336, 256000, num_key_value_heads=8, sliding_window=4096)
PYTHIA = hf("gpt_neox", 6, 512, 8, 2048, 50304, use_parallel_residual=True)

STARCODER2 = hf("starcoder2", 30, 3072, 24, 12288, 49152, num_key_value_heads=2, sliding_window=4096)
GLM4 = hf("glm4", 40, 4096, 32, 13696, 151552, num_key_value_heads=2, attention_bias=True)
GRANITE4 = hf(
    "granitemoehybrid", 40, 4096, 32, 768, 100352, num_key_value_heads=8, num_local_experts=72, num_experts_per_tok=10,
    shared_intermediate_size=1536, mamba_n_heads=128, mamba_d_state=128, mamba_n_groups=1, tie_word_embeddings=True,
    layer_types=["attention" if i % 10 == 5 else "mamba" for i in range(40)],
)  # fmt: skip

ALL = (
    GPT2, BLOOM, OPT, LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3, QWEN3_MOE, GPT_OSS, LLAMA4, DEEPSEEK_V3, KIMI_K2, PYTHIA,
    GPTJ, FALCON, PHI, COHERE, COHERE2,
    NEMOTRON_H, GEMMA, GEMMA2, PHI3, GRANITE, OLMO2, OLMOE, QWEN2_MOE, DEEPSEEK_V2, GLM4_MOE,
    *(QWEN2 | {"model_type": f"qwen{version}_vl{text}"} for version in ("2", "2_5") for text in ("", "_text")),
    QWEN3 | {"model_type": "qwen3_vl_text"}, STARCODER2, GLM4, GRANITE4,
    GEMMA3, OLMO3, SMOLLM3, SEED_OSS, APERTUS, MINIMAX_M2,
)  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {str(c["model_type"]): c for c in ALL}
