"""Encoders before a language model: the vision part of a Hugging Face config.json, or any other model."""

from pathlib import Path
from typing import Any

from planner.base.files import read_json
from planner.models import config_file, load_model, with_seq_len
from planner.models.description import from_description
from planner.models.hub_config import Config
from planner.models.transformer import Transformer

KEYS = {
    "layers": ("num_hidden_layers", "depth", "vt_num_hidden_layers"),
    "hidden": ("embed_dim", "hidden_size", "vt_hidden_size"),  # Qwen2-VL's hidden_size is its language model's
    "heads": ("num_attention_heads", "num_heads", "attention_heads", "vt_num_attention_heads"),
}
"""Names that vision configs give the fields of a `[model]` table."""
GATED = ("qwen2_5_vl", "pixtral")
"""Types whose MLP has three products."""
COLOURS = 3


def load_tower(name: str, tokens: int | None = None) -> Transformer:
    """The vision part of a config.json or its folder, where it has one, else the model that `load_model` takes.

    tokens: of one of its sequences, an image's patches; None is what the model, or the config's image size, says.

    Raises as `load_model`; FileFormatError if the vision part lacks a size, an image's where no tokens are given.
    """
    path = config_file(name)
    if path is not None and isinstance(read_json(path).get("vision_config"), dict):
        return from_vision_config(path, tokens)
    model = load_model(name, tokens)
    return model if tokens is None else with_seq_len(model, tokens)


def from_vision_config(path: Path, tokens: int | None = None) -> Transformer:
    """The tower of a config.json's `vision_config`; tokens as of `load_tower`, which it raises as.

    The patch embedding is a tied table with a row for each value of a patch: as many parameters, and one product. What
    joins the tower to the language model is not counted.
    """
    data = read_json(path)["vision_config"]
    c = Config({k: v[0] if k in ("image_size", "patch_size") and isinstance(v, list) and v else v
                for k, v in data.items()}, path)  # fmt: skip
    layers, hidden, heads = (c.first(*KEYS[name]) for name in KEYS)
    layers += c.size("num_global_layers", 0, least=0)  # Llama 3.2's
    side, learned = c.size("patch_size"), c.data.get("image_size") is not None
    if tokens is None:
        if not learned:
            raise c.fault("image_size", "pixels, or tokens of an image beside their number, such as =4x1024")
        tokens = (c.size("image_size") // side) ** 2
    described: dict[str, Any] = {
        "family": "gpt", "layers": layers, "hidden": hidden, "heads": heads, "seq_len": tokens,
        "vocab": COLOURS * side**2 * c.size("temporal_patch_size", 1), "gated": data.get("model_type") in GATED,
        "bidirectional": True, "dropout": False, "rotary": not learned, "max_positions": tokens * learned,
        "ffn": c.first("intermediate_size", "vt_intermediate_size") if "mlp_ratio" not in data
        else round(c.number("mlp_ratio") * hidden),
    }  # fmt: skip
    if (whole := c.layer_numbers("fullatt_block_indexes", layers)) is not None:
        described |= {"window": (c.size("window_size") // side) ** 2, "window_layers": layers - len(whole)}
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return from_description(described, path, f"{name or path.stem}-vision")
