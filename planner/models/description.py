"""A model described by its sizes and family: the form of the presets and of a user's own TOML file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt

from planner.base.errors import FileFormatError, InputError, shown
from planner.base.files import validate
from planner.models.from_shape import FAMILIES
from planner.models.hybrid import from_pattern
from planner.models.possible import FLAGS, LARGEST, check
from planner.models.transformer import Transformer

Size = StrictInt


class Description(BaseModel):
    """Fields of a `[model]` table; what is not said follows the family.

    ffn defaults to 4 hidden, kv_heads to heads, head_dim to hidden / heads, max_positions to seq_len for the
    gpt family (else 0), dropout to whether there are positions, dense_layers to all layers (none for the moe family).
    The hybrid family has a pattern, one letter a layer (M state-space, * attention, - MLP, E experts), instead of
    layers and dense_layers; ssm_heads default to those of twice the width. window_layers with a window default to all
    with attention.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = None
    family: Literal["gpt", "llama", "nemotron", "moe", "hybrid"]
    layers: Size | None = Field(default=None, gt=0, le=100_000)
    pattern: str | None = Field(default=None, max_length=100_000)
    hidden: Size = Field(gt=0, le=10_000_000)
    heads: Size = Field(gt=0, le=1_000_000)
    vocab: Size = Field(gt=0, le=100_000_000)
    seq_len: Size = Field(gt=0, le=1_000_000_000)
    ffn: Size | None = Field(default=None, gt=0, le=100_000_000)
    kv_heads: Size | None = Field(default=None, gt=0, le=LARGEST)
    head_dim: Size | None = Field(default=None, gt=0, le=1_000_000)
    max_positions: Size | None = Field(default=None, ge=0, le=LARGEST)
    gated: StrictBool | None = None
    rms_norm: StrictBool | None = None
    rotary: StrictBool | None = None
    tied: StrictBool | None = None
    qkv_bias: StrictBool | None = None
    output_bias: StrictBool | None = None
    mlp_bias: StrictBool | None = None
    expert_bias: StrictBool | None = None
    clamped: StrictBool | None = None
    qk_norm: StrictBool | None = None
    embedding_norm: StrictBool | None = None
    experts: Size = Field(default=0, ge=0, le=1_000_000)
    top_k: Size = Field(default=0, ge=0, le=LARGEST)
    shared_experts: Size = Field(default=0, ge=0, le=LARGEST)
    moe_ffn: Size = Field(default=0, ge=0, le=LARGEST)
    moe_latent: Size = Field(default=0, ge=0, le=LARGEST)
    expert_groups: Size = Field(default=0, ge=0, le=LARGEST)
    top_k_groups: Size = Field(default=0, ge=0, le=LARGEST)
    dense_layers: Size | None = Field(default=None, ge=0, le=LARGEST)
    q_lora_rank: Size = Field(default=0, ge=0, le=LARGEST)
    kv_lora_rank: Size = Field(default=0, ge=0, le=LARGEST)
    qk_rope_head_dim: Size = Field(default=0, ge=0, le=LARGEST)
    v_head_dim: Size = Field(default=0, ge=0, le=LARGEST)
    window: Size = Field(default=0, ge=0, le=LARGEST)
    window_layers: Size | None = Field(default=None, ge=0, le=LARGEST)
    ssm_heads: Size | None = Field(default=None, gt=0, le=LARGEST)
    ssm_head_dim: Size = Field(default=64, gt=0, le=LARGEST)
    ssm_groups: Size = Field(default=8, gt=0, le=LARGEST)
    ssm_state: Size = Field(default=128, gt=0, le=LARGEST)
    ssm_conv: Size = Field(default=4, gt=0, le=LARGEST)
    mtp_layers: Size = Field(default=0, ge=0, le=1000)
    dropout: StrictBool | None = None
    mtp_shared: StrictBool | None = None


def from_description(
    data: Any, path: Path | str, name: str, names: Mapping[str, str] = MappingProxyType({})
) -> Transformer:
    """The model that a `[model]` table describes. names: what the file calls a field, where it differs.

    Raises:
        FileFormatError: a field is missing, misspelt, of a wrong type, out of range, or contradicts another.
    """
    try:
        return _described(data, path, name)
    except FileFormatError as error:
        before, _, fault = str(error).partition(f"{path}: ")
        raise FileFormatError(f"{before}{path}: {_FIELD.sub(lambda m: _file_name(m[0], names), fault)}") from None


_FIELD = re.compile(r"(?<=field )\w+|(?<=multiple of )\w+|\b(?:[a-z]+_\w+|hidden|ffn|vocab)\b")
"""Fields in a message: behind "field", or what is no English word."""


def _file_name(field: str, names: Mapping[str, str]) -> str:
    """What a file calls a field of a `Transformer` or a `Description`."""
    short = field.removeprefix("num_")
    field = short if short in Description.model_fields else field
    return names.get(field, field)


def _described(data: Any, path: Path | str, name: str) -> Transformer:
    d = validate(Description, data, path)
    if d.head_dim is None and d.hidden % d.heads:
        raise FileFormatError(f"{path}: field hidden is {d.hidden}; allowed: a multiple of heads {d.heads}")
    layers = _layers(d, path)
    ssm = _state_space(d, path) if layers.get("num_ssm_layers") else {}
    sparse = d.family == "moe" or "E" in (d.pattern or "")
    chosen = dict(FAMILIES[d.family]) | {f: getattr(d, f) for f in FLAGS if getattr(d, f) is not None}
    positions = d.seq_len if d.family == "gpt" and not chosen.get("rotary") else 0
    positions = positions if d.max_positions is None else d.max_positions
    chosen = {"dropout": positions > 0} | chosen
    model = Transformer(
        name=d.name or name,
        family=d.family,
        hidden=d.hidden,
        ffn=d.ffn if d.ffn is not None else (0 if sparse and not layers["num_dense_layers"] else 4 * d.hidden),
        num_heads=d.heads,
        num_kv_heads=d.kv_heads if d.kv_heads is not None else d.heads,
        head_dim=d.head_dim if d.head_dim is not None else d.hidden // d.heads,
        vocab=d.vocab,
        seq_len=d.seq_len,
        max_positions=positions,
        num_experts=d.experts,
        top_k=d.top_k,
        num_shared_experts=d.shared_experts,
        moe_ffn=d.moe_ffn,
        moe_latent=d.moe_latent,
        expert_groups=d.expert_groups,
        top_k_groups=d.top_k_groups,
        q_lora_rank=d.q_lora_rank,
        kv_lora_rank=d.kv_lora_rank,
        qk_rope_head_dim=d.qk_rope_head_dim,
        v_head_dim=d.v_head_dim,
        num_mtp_layers=d.mtp_layers,
        **layers,
        **ssm,
        **chosen,
    )
    every = model.num_attention_layers if d.window else 0
    windows = {"window": d.window, "num_window_layers": every if d.window_layers is None else d.window_layers}
    try:
        return check(replace(model, v_head_dim=model.v_head_dim if model.kv_lora_rank else 0, **windows))
    except InputError as error:
        raise FileFormatError(f"{path}: {error}") from None


def _layers(d: Description, path: Path | str) -> dict[str, int]:
    """How many layers of each kind: from a hybrid's pattern, else all alike but for the dense ones."""
    if d.family == "hybrid":
        for name, value in (("layers", d.layers), ("dense_layers", d.dense_layers)):
            if value is not None:
                raise FileFormatError(
                    f"{path}: field {name} is {value}; allowed: none, the hybrid family has a pattern"
                )
        if d.pattern is None:
            raise FileFormatError(f"{path}: field pattern is missing; allowed: one letter a layer, such as M-M*-")
        try:
            return from_pattern(d.pattern)
        except InputError as error:
            raise FileFormatError(f"{path}: field {error}") from None
    if d.pattern is not None:
        raise FileFormatError(f"{path}: field pattern is {shown(d.pattern)}; allowed: none, but for the hybrid family")
    if d.layers is None:
        raise FileFormatError(f"{path}: field layers is missing; allowed: a whole number from 1 to 100000")
    dense = d.dense_layers if d.dense_layers is not None else (0 if d.family == "moe" else d.layers)
    return {"num_layers": d.layers, "num_dense_layers": dense}


def _state_space(d: Description, path: Path | str) -> dict[str, int]:
    """Sizes of the state-space layers."""
    heads = d.ssm_heads
    if heads is None:
        if 2 * d.hidden % d.ssm_head_dim:
            fault = f"{path}: field ssm_heads is missing, and twice hidden {d.hidden} isn't a multiple of ssm_head_dim"
            raise FileFormatError(f"{fault} {d.ssm_head_dim}")
        heads = 2 * d.hidden // d.ssm_head_dim
    return {
        "ssm_heads": heads, "ssm_head_dim": d.ssm_head_dim, "ssm_groups": d.ssm_groups, "ssm_state": d.ssm_state,
        "ssm_conv": d.ssm_conv,
    }  # fmt: skip
