"""A Hugging Face config.json's fields, and what most model types read alike."""

from pathlib import Path
from typing import Any

from planner.base.errors import FileFormatError, shown
from planner.models.possible import LARGEST

ATTENTION = ("full_attention", "sliding_attention")
"""Kinds of layers in `layer_types`; others, such as linear attention, are not modelled."""


KEYS = {
    "layers": ("num_hidden_layers", "n_layer"), "hidden": ("hidden_size", "n_embd", "n_embed"),
    "heads": ("num_attention_heads", "n_head"), "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim", "qk_nope_head_dim"), "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab": ("vocab_size",), "seq_len": ("max_position_embeddings", "n_positions", "seq_length"),
    "max_positions": ("max_position_embeddings", "n_positions"),
    "experts": ("num_local_experts", "n_routed_experts", "num_experts"), "top_k": ("num_experts_per_tok",),
    "moe_ffn": ("moe_intermediate_size", "intermediate_size"), "dense_layers": ("first_k_dense_replace",),
    "shared_experts": ("n_shared_experts", "shared_expert_intermediate_size"), "expert_groups": ("n_group",),
    "top_k_groups": ("topk_group",), "window": ("sliding_window",), "window_layers": ("layer_types",),
    "chunk": ("attention_chunk_size",),
    "mtp_layers": ("num_nextn_predict_layers",), "pattern": ("hybrid_override_pattern",),
    "ssm_heads": ("mamba_num_heads",), "ssm_head_dim": ("mamba_head_dim",), "ssm_groups": ("n_groups",),
    "ssm_state": ("ssm_state_size",), "ssm_conv": ("conv_kernel",), "rotary_base": ("rope_theta", "rotary_emb_base"),
    "router_scale": ("routed_scaling_factor",), "rotary_percent": ("partial_rotary_factor", "rotary_pct"),
    "rope_scaling": ("factor",),
    "norm_epsilon": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
}  # fmt: skip
"""Names that configs give the fields of a `[model]` table."""


_EXPERTS = (0, 1), "experts"
_LATENT = (0,), "latent attention"
UNREAD: dict[str, tuple[tuple[Any, ...], str]] = {
    "num_local_experts": _EXPERTS, "n_routed_experts": _EXPERTS, "num_experts": _EXPERTS,
    "moe_layer_freq": ((1,), "other pattern of experts"), "shared_intermediate_size": ((0,), "shared experts"),
    "kv_lora_rank": _LATENT, "q_lora_rank": _LATENT, "index_topk": ((0,), "sparse attention"),
    "attn_type_list": ((1,), "linear attention"), "layer_types": (ATTENTION, "other kind of layer"),
}  # fmt: skip
"""Keys that change the architecture: values that don't, and what others mean, refused where no reader looks at them."""


class Config:
    """A config's fields, with one-line faults; null counts as absent unless a reader says otherwise."""

    def __init__(self, data: dict[str, Any], path: Path, read: set[str] | None = None) -> None:
        self.data, self.path = data, path
        self.read: set[str] = set() if read is None else read

    def fault(self, key: str, allowed: str) -> FileFormatError:
        """The error for a field that is missing or has a value that isn't allowed."""
        state = f"is {shown(self.data[key])}" if key in self.data else "is missing"
        return FileFormatError(f"{self.path}: field {key} {state}; allowed: {allowed}")

    def get(self, key: str) -> Any:
        """A field as it stands, which counts as read: None where it is absent."""
        self.read.add(key)
        return self.data.get(key)

    def filled(self, usual: dict[str, Any]) -> "Config":
        """The same file with what it leaves out."""
        return Config(usual | self.data, self.path, self.read)

    def check_unread(self) -> None:
        """Refuse what changes the architecture and no reader has looked at."""
        for key, (neutral, what) in UNREAD.items():
            value = self.data.get(key)
            values = value if isinstance(value, list) else [] if value is None else [value]
            if key not in self.read and not all(one in neutral for one in values):
                kind = shown(self.data["model_type"])
                raise self.fault(key, f"{' or '.join(map(str, neutral))}; planner has no {what} in a {kind}")

    def name_of(self, field: str) -> str:
        """This file's name for a field of a `[model]` table."""
        return next((key for key in KEYS[field] if self.data.get(key) is not None), KEYS[field][0])

    def size(self, key: str, default: int | None = None, *, least: int = 1, absent: int | None = None) -> int:
        """A whole number; `default` where the key is null or absent, `absent` where it is absent."""
        value = self.get(key)
        if key not in self.data and absent is not None:
            return absent
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            unsaid = value is None and key in KEYS["seq_len"]
            raise self.fault(key, f"a whole number from {least} to 1e9" + ", or --seq-len" * unsaid)
        return value

    def real(self, field: str) -> float:
        """The number that this file has for a field of a `[model]` table, 0 where it has none."""
        return self.number(self.name_of(field))

    def number(self, key: str) -> float:
        """The number under a key, 0 where it is absent or null."""
        value = 0.0 if self.data.get(key) is None else self.data[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
            raise self.fault(key, "a number from 0 to 1e9")
        return float(value)

    def positions_and_norms(self) -> dict[str, Any]:
        """Rotary base, its scaling (LLaMA 3.1's as a factor, others in words) and the norms' epsilon, where said."""
        scaling = self.data.get("rope_parameters") or self.data.get("rope_scaling") or {}  # the first holds all of it
        if not isinstance(scaling, dict):
            raise self.fault(
                "rope_parameters" if self.data.get("rope_parameters") else "rope_scaling", "a table, or null"
            )
        if isinstance(scaling.get("full_attention"), dict):  # Gemma 3 has a table for each kind of layer
            scaling = scaling["full_attention"]
        every = Config({**self.data, **scaling}, self.path)
        out: dict[str, Any] = {name: every.real(name) for name in ("rotary_base", "rotary_percent", "norm_epsilon")}
        kind, factor = scaling.get("rope_type", scaling.get("type", "default")), every.real("rope_scaling")
        known = factor if kind == "llama3" else float(kind == "default")
        if kind not in ("default", "llama3", None):
            elsewhere = (*KEYS["rotary_base"], *KEYS["rotary_percent"])
            more = {k: v for k, v in scaling.items() if type(v) in (int, float) and k not in elsewhere}
            out["rope_type"] = " ".join([str(kind), *(f"{key} {value:g}" for key, value in sorted(more.items()))])
        return out | {
            "rotary_base": round(out["rotary_base"]),
            "rope_scaling": round(known) if out["rotary_base"] else 0,
        }

    def layer_numbers(self, key: str, layers: int) -> set[int] | None:
        """Numbers of some of so many layers, from 0; None where the key is absent or null."""
        listed = self.data.get(key)
        if listed is None:
            return None
        if not isinstance(listed, list) or not all(type(i) is int and 0 <= i < layers for i in listed):
            raise self.fault(key, f"a list of layer numbers from 0 to {layers - 1}")
        return set(listed)

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


def common_fields(c: Config, family: str, *, kv_absent: int | None = None) -> dict[str, Any]:
    """The sizes that most types name alike; kv_absent: key heads where the file does not say."""
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


def window_fields(c: Config, layers: int, window: int) -> dict[str, Any]:
    """A sliding window in so many layers, or in those that `layer_types` lists so; none where it is 0."""
    kinds, every = c.get("layer_types"), c.size("num_hidden_layers")
    if kinds is not None:
        known = isinstance(kinds, list) and all(kind in ATTENTION for kind in kinds)
        if not known or len(kinds) != every:
            raise c.fault("layer_types", f"a list of {' or '.join(ATTENTION)}, one for each of the {every} layers")
    layers = layers if kinds is None else kinds.count("sliding_attention")
    return {"window": window, "window_layers": layers} if window and layers else {}


def bias_fields(c: Config, default: bool = False) -> dict[str, Any]:
    """Biases of attention's products, by one flag."""
    bias = c.flag("attention_bias", default)
    return {"qkv_bias": bias, "output_bias": bias}


def late_window_fields(c: Config) -> dict[str, Any]:
    """Qwen's sliding windows, off unless asked for: in the layers from `max_window_layers` on."""
    if not c.flag("use_sliding_window", False):
        return {}
    layers = c.size("num_hidden_layers")
    first = c.size("max_window_layers", 28, least=0)
    return window_fields(c, max(layers - first, 0), c.size("sliding_window", 4096))


def rotary_share(c: Config, head_dim: float, default: int | None = None) -> float:
    """The share of a head's channels with rotary positions, where a file says their number."""
    share = c.size("rotary_dim", default) / head_dim
    if share > 1.0:
        raise c.fault("rotary_dim", f"up to {head_dim:g}, a head's channels")
    return share
