"""A model from a Hugging Face `config.json`, a plain local file: one table of key names a model type."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from planner.base.errors import FileFormatError
from planner.base.files import read_json
from planner.models import hub_mixtures
from planner.models.description import from_description
from planner.models.hub_config import (
    KEYS,
    Config,
    bias_fields,
    common_fields,
    late_window_fields,
    rotary_share,
    window_fields,
)
from planner.models.transformer import Transformer


def _gpt2(c: Config) -> dict[str, Any]:
    hidden = c.size("n_embd")
    return {
        "family": "gpt", "layers": c.size("n_layer"), "hidden": hidden, "heads": c.size("n_head"),
        "ffn": c.size("n_inner", 4 * hidden), "vocab": c.size("vocab_size"), "seq_len": c.size("n_positions"),
        "tied": c.flag("tie_word_embeddings", True),
    }  # fmt: skip


def _llama(c: Config) -> dict[str, Any]:
    common = common_fields(c, "llama") | bias_fields(c)
    return common | {"ffn": c.size("intermediate_size"), "mlp_bias": c.flag("mlp_bias", False)}


def _windowed(c: Config, window: int, kv_absent: int | None = None) -> dict[str, Any]:
    """A sliding window in every layer, 0 for none."""
    common = common_fields(c, "llama", kv_absent=kv_absent)
    return common | {"ffn": c.size("intermediate_size")} | window_fields(c, common["layers"], window)


def _qwen(c: Config) -> dict[str, Any]:
    return common_fields(c, "llama") | {"ffn": c.size("intermediate_size")} | late_window_fields(c)


def _qwen2(c: Config) -> dict[str, Any]:
    return _qwen(c) | {"qkv_bias": True}


def _qwen3(c: Config) -> dict[str, Any]:
    return _qwen(c) | bias_fields(c) | {"qk_norm": True, "head_dim": c.size("head_dim", 128)}


def _gemma(c: Config) -> dict[str, Any]:
    """GeGLU is counted as SwiGLU; embedding and head are one table unless said otherwise."""
    tied = {"tied": c.flag("tie_word_embeddings", True), "head_dim": c.size("head_dim", 256)}
    return common_fields(c, "llama") | bias_fields(c) | {"ffn": c.size("intermediate_size")} | tied


def _gemma3(c: Config) -> dict[str, Any]:
    """Gemma 2's norms, a window in all but every sixth layer; a file leaves out what Transformers' default says."""
    usual = {
        "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
        "num_key_value_heads": 4, "vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window": 4096,
        "rope_theta": 1e6, "rms_norm_eps": 1e-6,
    }  # fmt: skip
    c = c.filled(usual)
    return (
        _gemma(c) | c.positions_and_norms() | {"qk_norm": True} | _all_but_every(c, c.size("sliding_window_pattern", 6))
    )


def _all_but_every(c: Config, pattern: int) -> dict[str, Any]:
    """A sliding window in all layers but one of every `pattern`."""
    layers = c.size("num_hidden_layers")
    return window_fields(c, layers - layers // pattern, c.size("sliding_window", 0, absent=4096))


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
    return common_fields(c, "gpt") | {
        "ffn": c.size("ffn_dim"), "max_positions": positions + 2, "tied": c.flag("tie_word_embeddings", True),
    }  # fmt: skip


def _starcoder2(c: Config) -> dict[str, Any]:
    bias = c.flag("use_bias", True)
    return _windowed(c, c.size("sliding_window", 0)) | {
        "family": "gpt", "rotary": True, "max_positions": 0, "tied": c.flag("tie_word_embeddings", True),
        "qkv_bias": bias, "output_bias": bias, "mlp_bias": bias,
    }  # fmt: skip


def _glm4(c: Config) -> dict[str, Any]:
    """Rotary positions of half of a head's channels; two norms more a layer aren't counted."""
    c = c.filled({"head_dim": 128, "partial_rotary_factor": 0.5})
    return _llama(c) | c.positions_and_norms() | {"output_bias": False}


def _gpt_neox(c: Config) -> dict[str, Any]:
    beside = c.flag("use_parallel_residual", True)
    return common_fields(c, "gpt") | bias_fields(c, True) | {
        "ffn": c.size("intermediate_size"), "rotary": True, "max_positions": 0, "parallel_block": beside,
        "parallel_norms": beside,
    }  # fmt: skip


def _gptj(c: Config) -> dict[str, Any]:
    """The head's bias isn't counted. Rotary positions have base 10,000."""
    return _gpt2(c) | {
        "tied": c.flag("tie_word_embeddings", False), "qkv_bias": False, "output_bias": False, "rotary": True,
        "max_positions": 0, "rotary_base": 10000, "rope_scaling": 1,
        "rotary_percent": rotary_share(c, c.size("n_embd") / c.size("n_head"), 64), "parallel_block": True,
    }  # fmt: skip


def _falcon(c: Config) -> dict[str, Any]:
    """From 40B on, `new_decoder_architecture`, keys have heads of their own, and attention and MLP a norm each."""
    hidden, heads = c.size("hidden_size"), c.first("num_attention_heads", "n_head")
    new, bias, alibi = (c.flag(key, False) for key in ("new_decoder_architecture", "bias", "alibi"))
    many = new or not c.flag("multi_query", True)
    return {
        "family": "gpt", "layers": c.first("num_hidden_layers", "n_layer"), "hidden": hidden, "heads": heads,
        "kv_heads": c.size(c.name_of("kv_heads"), heads) if many else 1, "ffn": c.size("ffn_hidden_size", 4 * hidden),
        "vocab": c.size("vocab_size"), "seq_len": c.size("max_position_embeddings", 2048), "max_positions": 0,
        "rotary": not alibi, "qkv_bias": bias, "output_bias": bias, "mlp_bias": bias,
        "tied": c.flag("tie_word_embeddings", True), "parallel_block": new or c.flag("parallel_attn", True),
        "parallel_norms": new and c.size("num_ln_in_parallel_attn", 2) == 2,
    }  # fmt: skip


def _cohere(c: Config) -> dict[str, Any]:
    """A norm without bias is counted as an RMSNorm, those of queries and keys as others'."""
    return common_fields(c, "llama") | bias_fields(c) | {
        "ffn": c.size("intermediate_size"), "tied": c.flag("tie_word_embeddings", True),
        "qk_norm": c.flag("use_qk_norm", False), "parallel_block": True,
    }  # fmt: skip


def _phi(c: Config) -> dict[str, Any]:
    """The head's bias isn't counted."""
    return common_fields(c, "gpt") | {
        "ffn": c.size("intermediate_size", 4 * c.size("hidden_size")), "rotary": True, "max_positions": 0,
        "qk_norm": c.flag("qk_layernorm", False), "parallel_block": True,
    }  # fmt: skip


MODEL_TYPES: dict[str, Callable[[Config], dict[str, Any]]] = {
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gptj": _gptj,
    "falcon": _falcon,
    "phi": _phi,
    "cohere": _cohere,
    "cohere2": lambda c: _cohere(c) | _all_but_every(c, c.size("sliding_window_pattern", 4)),
    "llama": _llama,
    "granite": _llama,
    "mistral": lambda c: _windowed(c, c.size("sliding_window", 0, absent=4096), 8),
    "mixtral": hub_mixtures.mixtral,
    "minimax_m2": hub_mixtures.minimax,
    "qwen2": _qwen2,
    # The language model of those that see, in a file of its own or beside the rest.
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), _qwen2),
    "qwen2_moe": hub_mixtures.qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_vl_text": _qwen3,
    "qwen3_moe": hub_mixtures.qwen3_moe,
    "gpt_oss": hub_mixtures.gpt_oss,
    "llama4_text": hub_mixtures.llama4,
    "deepseek_v2": hub_mixtures.deepseek_v2,
    "deepseek_v3": hub_mixtures.deepseek_v3,
    "kimi_k2": hub_mixtures.deepseek_v3,
    "glm4_moe": hub_mixtures.glm4_moe,
    "gemma": _gemma,
    # Every other layer from the first has a window; two norms more a layer, and caps on scores, aren't counted.
    "gemma2": lambda c: _gemma(c) | window_fields(
        c, (c.size("num_hidden_layers") + 1) // 2, c.size("sliding_window", 0, absent=4096)
    ),
    "gemma3_text": _gemma3,
    "phi3": lambda c: _windowed(c, c.size("sliding_window", 0)),
    # Norms over queries and keys whole, and after a block instead of before it, are counted as others are.
    "olmo2": lambda c: _llama(c) | {"qk_norm": True},
    "olmo3": lambda c: _llama(c) | {"qk_norm": True} | _all_but_every(c, 4),
    # Every fourth layer has no rotary positions, which isn't counted.
    "smollm3": lambda c: _llama(c) | {"tied": c.flag("tie_word_embeddings", True)},
    "seed_oss": lambda c: _llama(c) | {
        "qkv_bias": c.flag("attention_bias", True), "output_bias": c.flag("attention_out_bias", False)
    },
    # xIELU, an MLP without a gate, has two parameters a layer, which aren't counted.
    "apertus": lambda c: _llama(c) | {"qk_norm": True, "gated": False},
    "olmoe": hub_mixtures.olmoe,
    "starcoder2": _starcoder2,
    "glm4": _glm4,
    "bloom": _bloom,
    "opt": _opt,
    "nemotron_h": hub_mixtures.nemotron_h,
    "granitemoehybrid": hub_mixtures.granite_hybrid,
}  # fmt: skip
NOT_MODELLED = {
    "qwen3_next": "linear attention", "minimax_m1": "linear attention", "minimax": "linear attention",
    "kimi_linear": "linear attention", "deepseek_v32": "sparse attention", "jamba": "Mamba-1 layers",
    "falcon_h1": "attention and a state-space side by side in a layer",
}  # fmt: skip
"""Types of which no description in a TOML file is true."""


def from_config(path: Path, seq_len: int | None = None) -> Transformer:
    """The model of a `config.json`; a multimodal file's language model is under `text_config`.

    The sequence length is the largest that the model takes, or `seq_len` where the file states none.

    Raises FileFormatError if it is not JSON, of an unknown model type, or a field is missing or wrong.
    """
    data = _language_model(path)
    if seq_len and all(data.get(key) is None for key in KEYS["seq_len"]):
        data |= dict.fromkeys(KEYS["max_positions"], seq_len)
    config = Config(data, path)
    kind = data.get("model_type")
    if isinstance(kind, str) and kind in NOT_MODELLED:
        raise config.fault("model_type", f"a model without {NOT_MODELLED[kind]}, which planner doesn't model")
    if kind is None and {"shape", "cluster"} <= set(data):
        takers = "planner estimate, simulate, partition, export, compare, observe, train and place take it"
        raise FileFormatError(f"{path}: is a plan; allowed: a model ({takers})")
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        plain = [name for name in MODEL_TYPES if "_vl" not in name]
        raise config.fault("model_type", f"{', '.join(plain)}; or describe its sizes in a TOML file")
    described = config.positions_and_norms() | MODEL_TYPES[kind](config) | {"model_type": kind}
    config.check_unread()
    if "head_dim" not in described and described["hidden"] % described["heads"]:
        heads, hidden = (config.name_of(field) for field in ("heads", "hidden"))
        raise config.fault(heads, f"a divisor of {hidden} {described['hidden']}, or a head_dim")
    name = path.resolve().parent.name if path.name == "config.json" else ""
    return from_description(described, path, name or path.stem, {field: config.name_of(field) for field in KEYS})


def _language_model(path: Path) -> dict[str, Any]:
    data = read_json(path)
    key = "llm_config" if "llm_config" in data else "text_config"  # the first is InternVL's
    if not isinstance(data.get(key), dict | None):
        raise Config(data, path).fault(key, "a table, the language model's config")
    if isinstance(data.get(key), dict):
        tied = {"tie_word_embeddings": data["tie_word_embeddings"]} if "tie_word_embeddings" in data else {}
        return {**tied, **data[key]}
    return data
