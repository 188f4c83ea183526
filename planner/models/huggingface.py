"""A model from a Hugging Face `config.json`, read as a plain local file: one table of key names a model type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from planner.errors import FileFormatError
from planner.files import read_json
from planner.models.description import from_description
from planner.models.transformer import Transformer

__all__ = ["MODEL_TYPES", "from_config"]


class Config:
    """A config's fields, with one-line faults; null counts as absent, as in the Hugging Face readers."""

    def __init__(self, data: dict[str, Any], path: Path) -> None:
        self.data, self.path = data, path

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number, or the default where the key is absent or null."""
        value = self.data.get(key)
        if value is None:
            if default is None:
                raise FileFormatError(f"{self.path}: field {key} is missing; allowed: a whole number")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**9:
            raise FileFormatError(f"{self.path}: field {key} is {value!r}; allowed: a whole number from 0 to 1e9")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false, or the default where the key is absent or null."""
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise FileFormatError(f"{self.path}: field {key} is {value!r}; allowed: true or false")
        return value


def _gpt2(c: Config) -> dict[str, Any]:
    hidden = c.size("n_embd")
    return {
        "family": "gpt", "layers": c.size("n_layer"), "hidden": hidden, "heads": c.size("n_head"),
        "ffn": c.size("n_inner", 4 * hidden), "vocab": c.size("vocab_size"), "seq_len": c.size("n_positions"),
        "tied": c.flag("tie_word_embeddings", True),
    }  # fmt: skip


def _common(c: Config, family: str) -> dict[str, Any]:
    heads = c.size("num_attention_heads")
    out = {
        "family": family, "layers": c.size("num_hidden_layers"), "hidden": c.size("hidden_size"), "heads": heads,
        "kv_heads": c.size("num_key_value_heads", heads), "vocab": c.size("vocab_size"),
        "seq_len": c.size("max_position_embeddings"), "tied": c.flag("tie_word_embeddings", False),
    }  # fmt: skip
    if c.data.get("head_dim") is not None:
        out["head_dim"] = c.size("head_dim")
    return out


def _gpt_neox(c: Config) -> dict[str, Any]:
    bias = c.flag("attention_bias", True)
    return _common(c, "gpt") | {
        "ffn": c.size("intermediate_size"), "rotary": True, "max_positions": 0, "qkv_bias": bias,
    }  # fmt: skip


def _llama(c: Config) -> dict[str, Any]:
    bias = c.flag("attention_bias", False)
    if bias != c.flag("mlp_bias", False):
        raise FileFormatError(f"{c.path}: field mlp_bias must equal attention_bias; other mixtures are not supported")
    return _common(c, "llama") | {"ffn": c.size("intermediate_size"), "linear_bias": bias, "qkv_bias": bias}


def _mistral(c: Config) -> dict[str, Any]:
    return _common(c, "llama") | {
        "ffn": c.size("intermediate_size"), "kv_heads": c.size("num_key_value_heads", 8),
    }  # fmt: skip


def _qwen2(c: Config) -> dict[str, Any]:
    return _common(c, "llama") | {"ffn": c.size("intermediate_size"), "qkv_bias": True}


def _qwen3(c: Config) -> dict[str, Any]:
    return _common(c, "llama") | {
        "ffn": c.size("intermediate_size"), "qk_norm": True, "head_dim": c.size("head_dim", 128),
    }  # fmt: skip


def _mixtral(c: Config) -> dict[str, Any]:
    return _common(c, "moe") | {
        "kv_heads": c.size("num_key_value_heads", 8), "moe_ffn": c.size("intermediate_size"),
        "experts": c.size("num_local_experts", 8), "top_k": c.size("num_experts_per_tok", 2),
    }  # fmt: skip


def _qwen3_moe(c: Config) -> dict[str, Any]:
    layers = c.size("num_hidden_layers")
    step = max(c.size("decoder_sparse_step", 1), 1)
    only = c.data.get("mlp_only_layers") or []
    if not isinstance(only, list):
        raise FileFormatError(f"{c.path}: field mlp_only_layers is {only!r}; allowed: a list of layer numbers")
    dense = sum(1 for i in range(min(layers, 100_000)) if i in only or (i + 1) % step)
    return _common(c, "moe") | {
        "ffn": c.size("intermediate_size"), "moe_ffn": c.size("moe_intermediate_size"), "dense_layers": dense,
        "experts": c.size("num_experts"), "top_k": c.size("num_experts_per_tok"), "qk_norm": True,
    }  # fmt: skip


def _deepseek_v3(c: Config) -> dict[str, Any]:
    rope = c.size("qk_rope_head_dim")
    return _common(c, "moe") | {
        "kv_heads": c.size("num_attention_heads"), "head_dim": c.size("qk_nope_head_dim") + rope,
        "ffn": c.size("intermediate_size"), "moe_ffn": c.size("moe_intermediate_size"),
        "dense_layers": c.size("first_k_dense_replace", 0), "experts": c.size("n_routed_experts"),
        "shared_experts": c.size("n_shared_experts", 0), "top_k": c.size("num_experts_per_tok"),
        "q_lora_rank": c.size("q_lora_rank", 0), "kv_lora_rank": c.size("kv_lora_rank"),
        "qk_rope_head_dim": rope, "v_head_dim": c.size("v_head_dim"),
    }  # fmt: skip


def _bloom(c: Config) -> dict[str, Any]:
    hidden = c.size("hidden_size", c.size("n_embed", 0)) or c.size("hidden_size")
    return {
        "family": "gpt", "layers": c.size("n_layer", c.size("num_hidden_layers", 0)), "hidden": hidden,
        "heads": c.size("n_head", c.size("num_attention_heads", 0)), "vocab": c.size("vocab_size"),
        "seq_len": c.size("seq_length", 2048), "max_positions": 0, "embedding_norm": True,
        "tied": c.flag("tie_word_embeddings", True),
    }  # fmt: skip


MODEL_TYPES: dict[str, Callable[[Config], dict[str, Any]]] = {
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v3": _deepseek_v3,
    "bloom": _bloom,
}


def from_config(path: Path) -> Transformer:
    """The model of a `config.json`; a multimodal file's language model is under `text_config`.

    The sequence length is the largest that the model takes: give `--seq-len` for another.

    Raises:
        FileFormatError: not JSON, an unknown model type, a missing or wrong field.
    """
    data = read_json(path)
    if isinstance(data.get("text_config"), dict):
        data = data["text_config"]
    kind = data.get("model_type")
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        raise FileFormatError(f"{path}: field model_type is {kind!r}; allowed: {', '.join(MODEL_TYPES)}")
    name = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    return from_description(MODEL_TYPES[kind](Config(data, path)), path, name)
