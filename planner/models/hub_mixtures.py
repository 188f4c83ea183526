"""Mixtures of experts and hybrids by Hugging Face's model types: what their config.json calls which size."""

from collections.abc import Callable
from typing import Any

from planner.models.description import LARGEST_OF
from planner.models.from_shape import LETTERS
from planner.models.hub_config import (
    Config,
    bias_fields,
    common_fields,
    late_window_fields,
    rotary_share,
    window_fields,
)

KINDS = dict(zip(("mamba", "attention", "mlp", "moe"), LETTERS, strict=True))
"""Layers of `layers_block_type`, by their letters in a pattern."""


def _router(c: Config, score: str, scale: float = 1.0, *, sums: bool = True) -> dict[str, Any]:
    """How an expert's weight comes of its score; what a file leaves out is Transformers' default, given here."""
    score = c.data.get("scoring_func") or score
    if score not in ("softmax", "sigmoid"):
        raise c.fault("scoring_func", "softmax or sigmoid")
    scale = c.real("router_scale") if c.data.get("routed_scaling_factor") is not None else scale
    first = "" if c.flag("norm_topk_prob", sums) else "-first"
    return {"router": f"{score}{first}" + (f" {scale:g}" if scale != 1 else "")}


def _layers(layers: int, sparse: Callable[[int], bool]) -> dict[str, Any]:
    """Layers without experts by their number from 0: how many, and the whole where they aren't the first."""
    each = "".join(str(int(sparse(i))) for i in range(min(layers, LARGEST_OF["layers"] + 1)))
    return {"dense_layers": each.count("0"), "expert_layers": "" if "10" not in each else each}


def mixtral(c: Config) -> dict[str, Any]:
    """Experts in every layer."""
    common = common_fields(c, "moe", kv_absent=8) | _router(c, "softmax")
    return common | window_fields(c, common["layers"], c.size("sliding_window", 0)) | {
        "moe_ffn": c.size("intermediate_size"), "experts": c.size("num_local_experts", 8),
        "top_k": c.size("num_experts_per_tok", 2),
    }  # fmt: skip


def minimax(c: Config) -> dict[str, Any]:
    """MiniMax-M2: Mixtral's fields, norms over queries and keys, rotary positions of some of a head's channels."""
    out = mixtral(c) | _router(c, "sigmoid") | {"qk_norm": c.flag("use_qk_norm", True)}
    return out | (
        {"rotary_percent": rotary_share(c, out.get("head_dim", out["hidden"] / out["heads"]))}
        if c.data.get("rotary_dim")
        else {}
    )


def _qwen_moe(c: Config) -> dict[str, Any]:
    """Fields of all Qwen mixtures: experts in every `decoder_sparse_step`th layer, but for those listed."""
    layers, experts = c.size("num_hidden_layers"), c.size("num_experts", least=0)
    step = c.size("decoder_sparse_step", 1)
    only = c.layer_numbers("mlp_only_layers", layers) or ()
    sparse = _layers(layers, lambda i: experts > 0 and (i + 1) % step == 0 and i not in only)
    return common_fields(c, "moe") | late_window_fields(c) | _router(c, "softmax", sums=False) | sparse | {
        "ffn": c.size("intermediate_size"), "moe_ffn": c.size("moe_intermediate_size"), "experts": experts,
        "top_k": c.size("num_experts_per_tok"),
    }  # fmt: skip


def qwen2_moe(c: Config) -> dict[str, Any]:
    """Experts that all tokens share, as one wide expert; its gate of one column isn't counted."""
    out = _qwen_moe(c)
    shared = c.size("shared_expert_intermediate_size", 0, least=0)
    return out | {"qkv_bias": True, "shared_experts": shared / out["moe_ffn"]}


def qwen3_moe(c: Config) -> dict[str, Any]:
    """Norms over query and key heads."""
    return _qwen_moe(c) | bias_fields(c) | {"qk_norm": True}


def llama4(c: Config) -> dict[str, Any]:
    """Experts in every `interleave_moe_layer_step`th layer or those listed, one shared; chunked attention is whole."""
    common = common_fields(c, "moe", kv_absent=8)
    layers = common["layers"]
    kinds = c.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind not in ("chunked_attention", "full_attention") for kind in kinds):
        raise c.fault("layer_types", "a list of chunked_attention or full_attention")
    listed, step = c.layer_numbers("moe_layers", layers), c.size("interleave_moe_layer_step", 1)
    sparse = _layers(layers, lambda i: (i + 1) % step == 0 if listed is None else i in listed)
    return common | bias_fields(c) | sparse | _router(c, "sigmoid", sums=False) | {
        "ffn": c.size("intermediate_size_mlp", 16384), "moe_ffn": c.size("intermediate_size"), "shared_experts": 1,
        "experts": c.size("num_local_experts", 16), "top_k": c.size("num_experts_per_tok", 1),
        "qk_l2_norm": c.flag("use_qk_norm", True), "chunk": c.size("attention_chunk_size", 0, absent=8192),
    }  # fmt: skip


def gpt_oss(c: Config) -> dict[str, Any]:
    """Every other layer has a window; attention's learned sinks, one a head, aren't counted."""
    common = common_fields(c, "moe", kv_absent=8) | bias_fields(c, True)
    # Every other layer from the first, unless layer_types says which.
    windows = window_fields(c, (common["layers"] + 1) // 2, c.size("sliding_window", 0, absent=128))
    return common | windows | _router(c, "softmax") | {
        "expert_bias": True, "clamped": True, "head_dim": c.size("head_dim", 64),
        "moe_ffn": c.size("intermediate_size"), "experts": c.size("num_local_experts", 128),
        "top_k": c.size("num_experts_per_tok", 4),
    }  # fmt: skip


def _shared_and_routed(c: Config, dense: int) -> dict[str, Any]:
    """DeepSeek's MLPs: dense ones first, then experts, some shared by all tokens; multi-token prediction.

    Routing may be limited to some groups of experts, V3's 4 of 8 where the file doesn't say; all of them is no limit.
    """
    groups, chosen = c.size("n_group", 1, absent=8), c.size("topk_group", 1, absent=4)
    limited = {"expert_groups": groups, "top_k_groups": chosen} if groups > chosen else {}
    return limited | {
        "ffn": c.size("intermediate_size"), "moe_ffn": c.size("moe_intermediate_size"),
        "dense_layers": min(c.size("first_k_dense_replace", 0, least=0, absent=dense), c.size("num_hidden_layers")),
        "experts": c.size("n_routed_experts"), "top_k": c.size("num_experts_per_tok"),
        "shared_experts": c.size("n_shared_experts", 0, least=0, absent=1),
        "mtp_layers": c.size("num_nextn_predict_layers", 0, least=0),
    }  # fmt: skip


def deepseek_v2(c: Config) -> dict[str, Any]:
    """V3's fields, but routing is limited to groups only where `topk_method` says so."""
    limited = c.data.get("topk_method", "greedy") == "group_limited_greedy"
    free = {} if limited else {"expert_groups": 0, "top_k_groups": 0}
    return deepseek_v3(c) | _router(c, "softmax", sums=False) | free


def deepseek_v3(c: Config) -> dict[str, Any]:
    """Latent attention, shared experts, routing limited to groups, modules of multi-token prediction."""
    c.require("attention_bias", False)
    rope = c.size("qk_rope_head_dim")
    return common_fields(c, "moe") | _shared_and_routed(c, 3) | _router(c, "sigmoid", 2.5) | {
        "kv_heads": c.size("num_attention_heads"), "head_dim": c.size("qk_nope_head_dim") + rope,
        "q_lora_rank": c.size("q_lora_rank", 0, absent=1536), "kv_lora_rank": c.size("kv_lora_rank"),
        "qk_rope_head_dim": rope, "v_head_dim": c.size("v_head_dim"),
    }  # fmt: skip


def glm4_moe(c: Config) -> dict[str, Any]:
    """GLM-4.5: DeepSeek-V3's experts behind grouped-query attention."""
    c = c.filled({"n_group": 1, "topk_group": 1})
    own = {"qkv_bias": c.flag("attention_bias", False), "qk_norm": c.flag("use_qk_norm", False)}
    return common_fields(c, "moe") | _shared_and_routed(c, 1) | _router(c, "sigmoid") | own


def olmoe(c: Config) -> dict[str, Any]:
    """Norms over queries and keys whole are counted by head."""
    return common_fields(c, "moe") | bias_fields(c) | _router(c, "softmax", sums=False) | {
        "moe_ffn": c.size("intermediate_size"), "experts": c.size("num_experts", 64),
        "top_k": c.size("num_experts_per_tok", 8), "qk_norm": True,
    }  # fmt: skip


def _pattern(c: Config) -> str:
    """One letter a layer, as such or from a list of kinds."""
    pattern, kinds = c.data.get("hybrid_override_pattern"), c.data.get("layers_block_type")
    if pattern is None and kinds is not None:
        if (
            not isinstance(kinds, list)
            or not kinds
            or not all(isinstance(kind, str) and kind in KINDS for kind in kinds)
        ):
            raise c.fault("layers_block_type", f"a list of {', '.join(KINDS)}, one a layer")
        return "".join(KINDS[kind] for kind in kinds)
    if not isinstance(pattern, str) or not pattern or set(pattern) - set(LETTERS):
        raise c.fault("hybrid_override_pattern", f"one letter a layer, of {' '.join(LETTERS)}")
    return pattern


def nemotron_h(c: Config) -> dict[str, Any]:
    """A pattern of state-spaces, attention, MLPs and experts; multi-token prediction by attention and an MLP."""
    pattern = _pattern(c)
    c.read.add("n_routed_experts")  # files without experts may say some
    modules = c.size("num_nextn_predict_layers", 0, least=0)
    last = "E" if "E" in pattern else "-"
    for key, allowed in (
        ("mtp_hybrid_override_pattern", f"*{last}"),
        ("mtp_layers_block_type", [kind for kind, letter in KINDS.items() if letter in f"*{last}"]),
    ):
        if modules and c.data.get(key, allowed) != allowed:
            raise c.fault(key, f"{allowed}; others aren't supported")
    common = common_fields(c, "hybrid") | bias_fields(c)
    if common.pop("layers") != len(pattern):
        raise c.fault("num_hidden_layers", f"{len(pattern)}, the letters of hybrid_override_pattern")
    if c.data.get("attention_head_dim") is not None:
        common["head_dim"] = c.size("attention_head_dim")
    out = common | {
        "pattern": pattern, "ffn": c.size("intermediate_size"), "mlp_bias": c.flag("mlp_bias", False),
        "ssm_heads": c.size("mamba_num_heads"), "ssm_head_dim": c.size("mamba_head_dim"),
        "ssm_groups": c.size("n_groups"), "ssm_state": c.size("ssm_state_size"), "ssm_conv": c.size("conv_kernel", 4),
        "mtp_layers": modules,
    }  # fmt: skip
    if "E" in pattern:
        moe_ffn, shared = c.size("moe_intermediate_size"), c.size("moe_shared_expert_intermediate_size", 0, least=0)
        out |= {
            "moe_ffn": moe_ffn, "experts": c.size("n_routed_experts"), "top_k": c.size("num_experts_per_tok"),
            "shared_experts": shared / moe_ffn, "moe_latent": c.size("moe_latent_size", 0),
        }  # fmt: skip
    return out


def granite_hybrid(c: Config) -> dict[str, Any]:
    """Granite 4: in each layer a state-space or attention, then experts beside one that all tokens share."""
    kinds, experts = c.get("layer_types"), c.size("num_local_experts", least=0)
    if not isinstance(kinds, list) or any(kind not in ("mamba", "attention") for kind in kinds):
        raise c.fault("layer_types", "a list of mamba or attention, one a layer")
    common = common_fields(c, "hybrid") | bias_fields(c)
    if common.pop("layers") != len(kinds):
        raise c.fault("num_hidden_layers", f"{len(kinds)}, the entries of layer_types")
    heads, width = c.size("mamba_n_heads", 128), c.size("intermediate_size")
    shared = c.size("shared_intermediate_size", least=0)
    sparse = {"experts": experts, "top_k": c.size("num_experts_per_tok"), "moe_ffn": width,
              "shared_experts": shared / width} | _router(c, "softmax") if experts else {}  # fmt: skip
    return common | sparse | {
        "pattern": "".join(KINDS[kind] + ("E" if experts else "-") for kind in kinds), "gated": True,
        "ffn": shared or width, "rotary": c.data.get("position_embedding_type") == "rope",
        "ssm_heads": heads, "ssm_head_dim": c.size("mamba_expand", 2) * common["hidden"] // heads,
        "ssm_groups": c.size("mamba_n_groups", 1), "ssm_state": c.size("mamba_d_state", 256),
        "ssm_conv": c.size("mamba_d_conv", 4),
    }  # fmt: skip
