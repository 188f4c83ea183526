"""A model from a Hugging Face `config.json`, a plain local file: one table of key names a model type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from planner.errors import FileFormatError, shown
from planner.files import read_json
from planner.models.description import from_description
from planner.models.hybrid import LETTERS
from planner.models.transformer import LARGEST, Transformer

__all__ = ["MODEL_TYPES", "from_config"]

ATTENTION = ("full_attention", "sliding_attention")
"""Kinds of layers in `layer_types`; others, such as linear attention, are not modelled."""


class Config:
    """A config's fields, with one-line faults; null counts as absent unless a reader says otherwise."""

    def __init__(self, data: dict[str, Any], path: Path) -> None:
        self.data, self.path = data, path

    def fault(self, key: str, allowed: str) -> FileFormatError:
        """The error for a field that is missing or has a value that isn't allowed."""
        state = f"is {shown(self.data[key])}" if key in self.data else "is missing"
        return FileFormatError(f"{self.path}: field {key} {state}; allowed: {allowed}")

    def size(self, key: str, default: int | None = None, *, least: int = 1, absent: int | None = None) -> int:
        """A whole number; `default` where the key is null or absent, `absent` where it is absent."""
        value = self.data.get(key)
        if key not in self.data and absent is not None:
            return absent
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            raise self.fault(key, f"a whole number from {least} to 1e9")
        return value

    def first(self, *keys: str) -> int:
        """The size under the first of these keys that is there."""
        return self.size(next((k for k in keys if self.data.get(k) is not None), keys[0]))

    def flag(self, key: str, default: bool) -> bool:
        """True or false, or the default where the key is absent or null."""
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fault(key, "true or false")
        return value

    def require(self, key: str, wanted: bool) -> None:
        """Refuse a variant of the architecture that a Transformer can't describe."""
        if self.flag(key, wanted) != wanted:
            raise self.fault(key, f"{str(wanted).lower()}; the other isn't supported")


def _gpt2(c: Config) -> dict[str, Any]:
    hidden = c.size("n_embd")
    return {
        "family": "gpt", "layers": c.size("n_layer"), "hidden": hidden, "heads": c.size("n_head"),
        "ffn": c.size("n_inner", 4 * hidden), "vocab": c.size("vocab_size"), "seq_len": c.size("n_positions"),
        "tied": c.flag("tie_word_embeddings", True),
    }  # fmt: skip


def _common(c: Config, family: str, *, kv_absent: int | None = None) -> dict[str, Any]:
    heads = c.size("num_attention_heads")
    out = {
        "family": family, "layers": c.size("num_hidden_layers"), "hidden": c.size("hidden_size"),
        "heads": heads, "kv_heads": c.size("num_key_value_heads", heads, absent=kv_absent),
        "vocab": c.size("vocab_size"),
        "seq_len": c.size("max_position_embeddings"), "tied": c.flag("tie_word_embeddings", False),
    }  # fmt: skip
    if c.data.get("head_dim") is not None:
        out["head_dim"] = c.size("head_dim")
    return out


def _windows(c: Config, layers: int, window: int) -> dict[str, Any]:
    """A sliding window in so many layers, or in those that `layer_types` lists so; none where it is 0."""
    kinds, every = c.data.get("layer_types"), c.size("num_hidden_layers")
    if kinds is not None:
        known = isinstance(kinds, list) and all(kind in ATTENTION for kind in kinds)
        if not known or len(kinds) != every:
            raise c.fault("layer_types", f"a list of {' or '.join(ATTENTION)}, one for each of the {every} layers")
    layers = layers if kinds is None else kinds.count("sliding_attention")
    return {"window": window, "window_layers": layers} if window and layers else {}


def _biases(c: Config) -> dict[str, Any]:
    bias = c.flag("attention_bias", False)
    return {"qkv_bias": bias, "output_bias": bias}


def _gpt_neox(c: Config) -> dict[str, Any]:
    bias = c.flag("attention_bias", True)
    return _common(c, "gpt") | {
        "ffn": c.size("intermediate_size"), "rotary": True, "max_positions": 0, "qkv_bias": bias,
        "output_bias": bias,
    }  # fmt: skip


def _llama(c: Config) -> dict[str, Any]:
    common = _common(c, "llama") | _biases(c)
    return common | {"ffn": c.size("intermediate_size"), "mlp_bias": c.flag("mlp_bias", False)}


def _mistral(c: Config) -> dict[str, Any]:
    common = _common(c, "llama", kv_absent=8)
    window = c.size("sliding_window", 0, absent=4096)
    return common | {"ffn": c.size("intermediate_size")} | _windows(c, common["layers"], window)


def _late_windows(c: Config) -> dict[str, Any]:
    """Qwen's sliding windows, off unless asked for: in the layers from `max_window_layers` on."""
    if not c.flag("use_sliding_window", False):
        return {}
    layers = c.size("num_hidden_layers")
    first = c.size("max_window_layers", 28, least=0)
    return _windows(c, max(layers - first, 0), c.size("sliding_window", 4096))


def _qwen2(c: Config) -> dict[str, Any]:
    return _common(c, "llama") | {"ffn": c.size("intermediate_size"), "qkv_bias": True} | _late_windows(c)


def _qwen3(c: Config) -> dict[str, Any]:
    common = _common(c, "llama") | _biases(c) | _late_windows(c)
    return common | {"ffn": c.size("intermediate_size"), "qk_norm": True, "head_dim": c.size("head_dim", 128)}


def _mixtral(c: Config) -> dict[str, Any]:
    common = _common(c, "moe", kv_absent=8)
    return common | _windows(c, common["layers"], c.size("sliding_window", 0)) | {
        "moe_ffn": c.size("intermediate_size"), "experts": c.size("num_local_experts", 8),
        "top_k": c.size("num_experts_per_tok", 2),
    }  # fmt: skip


def _qwen3_moe(c: Config) -> dict[str, Any]:
    layers, experts = c.size("num_hidden_layers"), c.size("num_experts", least=0)
    step = c.size("decoder_sparse_step", 1)
    only = c.data.get("mlp_only_layers")
    if only is not None and not (isinstance(only, list) and all(type(i) is int and 0 <= i < layers for i in only)):
        raise c.fault("mlp_only_layers", f"a list of layer numbers from 0 to {layers - 1}")
    sparse = layers // step if experts else 0
    sparse -= sum(1 for i in set(only or []) if (i + 1) % step == 0) if experts else 0
    return _common(c, "moe") | _biases(c) | _late_windows(c) | {
        "ffn": c.size("intermediate_size"), "moe_ffn": c.size("moe_intermediate_size"),
        "dense_layers": layers - sparse, "experts": experts, "top_k": c.size("num_experts_per_tok"),
        "qk_norm": True,
    }  # fmt: skip


def _gpt_oss(c: Config) -> dict[str, Any]:
    bias, common = c.flag("attention_bias", True), _common(c, "moe", kv_absent=8)
    # Every other layer from the first, unless layer_types says which.
    windows = _windows(c, (common["layers"] + 1) // 2, c.size("sliding_window", 0, absent=128))
    return common | windows | {
        "qkv_bias": bias, "output_bias": bias, "head_dim": c.size("head_dim", 64),
        "moe_ffn": c.size("intermediate_size"), "experts": c.size("num_local_experts", 128),
        "top_k": c.size("num_experts_per_tok", 4),
    }  # fmt: skip


def _groups(c: Config) -> dict[str, Any]:
    """Routing limited to some groups of experts; all of them is no limit."""
    groups, chosen = c.size("n_group", 1, absent=8), c.size("topk_group", 1, absent=4)
    return {"expert_groups": groups, "top_k_groups": chosen} if groups > chosen else {}


def _deepseek_v3(c: Config) -> dict[str, Any]:
    c.require("attention_bias", False)
    if c.size("moe_layer_freq", 1) != 1:
        raise c.fault("moe_layer_freq", "1; others aren't supported")
    layers, rope = c.size("num_hidden_layers"), c.size("qk_rope_head_dim")
    return _common(c, "moe") | {
        "kv_heads": c.size("num_attention_heads"), "head_dim": c.size("qk_nope_head_dim") + rope,
        "ffn": c.size("intermediate_size"), "moe_ffn": c.size("moe_intermediate_size"),
        "dense_layers": min(c.size("first_k_dense_replace", 0, least=0, absent=3), layers),
        "experts": c.size("n_routed_experts"), "top_k": c.size("num_experts_per_tok"),
        "shared_experts": c.size("n_shared_experts", 0, least=0, absent=1), **_groups(c),
        "q_lora_rank": c.size("q_lora_rank", 0, absent=1536), "kv_lora_rank": c.size("kv_lora_rank"),
        "qk_rope_head_dim": rope, "v_head_dim": c.size("v_head_dim"),
        "mtp_layers": c.size("num_nextn_predict_layers", 0, least=0),
    }  # fmt: skip


def _bloom(c: Config) -> dict[str, Any]:
    return {
        "family": "gpt", "layers": c.first("n_layer", "num_hidden_layers"),
        "hidden": c.first("hidden_size", "n_embed"), "heads": c.first("n_head", "num_attention_heads"),
        "vocab": c.size("vocab_size"), "seq_len": c.size("seq_length", 2048), "max_positions": 0,
        "embedding_norm": True, "tied": c.flag("tie_word_embeddings", True),
    }  # fmt: skip


def _opt(c: Config) -> dict[str, Any]:
    hidden, positions = c.size("hidden_size"), c.size("max_position_embeddings")
    if c.size("word_embed_proj_dim", hidden) != hidden:
        raise c.fault("word_embed_proj_dim", f"hidden_size, which is {hidden}; others aren't supported")
    for key in ("do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine"):
        c.require(key, True)
    # Two rows of OPT's position table stand before position 0.
    return _common(c, "gpt") | {
        "ffn": c.size("ffn_dim"), "max_positions": positions + 2, "tied": c.flag("tie_word_embeddings", True),
    }  # fmt: skip


def _nemotron_h(c: Config) -> dict[str, Any]:
    pattern = c.data.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or not pattern or set(pattern) - set(LETTERS):
        raise c.fault("hybrid_override_pattern", f"one letter a layer, of {' '.join(LETTERS)}")
    if c.data.get("moe_latent_size") is not None:
        raise c.fault("moe_latent_size", "null; experts behind a latent aren't supported")
    common = _common(c, "hybrid") | _biases(c)
    if common.pop("layers") != len(pattern):
        raise c.fault("num_hidden_layers", f"{len(pattern)}, the letters of hybrid_override_pattern")
    if c.data.get("attention_head_dim") is not None:
        common["head_dim"] = c.size("attention_head_dim")
    out = common | {
        "pattern": pattern, "ffn": c.size("intermediate_size"), "mlp_bias": c.flag("mlp_bias", False),
        "ssm_heads": c.size("mamba_num_heads"), "ssm_head_dim": c.size("mamba_head_dim"),
        "ssm_groups": c.size("n_groups"), "ssm_state": c.size("ssm_state_size"), "ssm_conv": c.size("conv_kernel", 4),
    }  # fmt: skip
    if "E" in pattern:
        moe_ffn, shared = c.size("moe_intermediate_size"), c.size("moe_shared_expert_intermediate_size", 0, least=0)
        out |= {
            "moe_ffn": moe_ffn, "experts": c.size("n_routed_experts"), "top_k": c.size("num_experts_per_tok"),
            "shared_experts": -(-shared // moe_ffn),
        }  # fmt: skip
    return out


MODEL_TYPES: dict[str, Callable[[Config], dict[str, Any]]] = {
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gpt_oss": _gpt_oss,
    "deepseek_v3": _deepseek_v3,
    "kimi_k2": _deepseek_v3,
    "bloom": _bloom,
    "opt": _opt,
    "nemotron_h": _nemotron_h,
}


def from_config(path: Path) -> Transformer:
    """The model of a `config.json`; a multimodal file's language model is under `text_config`.

    The sequence length is the largest that the model takes: give `--seq-len` for another.

    Raises:
        FileFormatError: not JSON, an unknown model type, a missing or wrong field.
    """
    data = _language_model(path)
    config = Config(data, path)
    kind = data.get("model_type")
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        raise config.fault("model_type", ", ".join(MODEL_TYPES))
    described = MODEL_TYPES[kind](config)
    if "head_dim" not in described and described["hidden"] % described["heads"]:
        hidden = next(k for k in ("hidden_size", "n_embd", "n_embed") if data.get(k) is not None)
        raise config.fault(hidden, f"a multiple of the {described['heads']} attention heads")
    name = path.resolve().parent.name if path.name == "config.json" else ""
    return from_description(described, path, name or path.stem)


def _language_model(path: Path) -> dict[str, Any]:
    data = read_json(path)
    if isinstance(data.get("text_config"), dict):
        tied = {"tie_word_embeddings": data["tie_word_embeddings"]} if "tie_word_embeddings" in data else {}
        return {**tied, **data["text_config"]}
    return data
