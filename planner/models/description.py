"""A model described by its sizes and family: the form of the presets and of a user's own TOML file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt

from planner.errors import FileFormatError, InputError
from planner.files import validate
from planner.models.transformer import FAMILIES, FLAGS, LARGEST, Transformer, check

__all__ = ["Description", "from_description"]

Size = StrictInt


class Description(BaseModel):
    """Fields of a `[model]` table; what is not said follows the family.

    ffn defaults to 4 hidden, kv_heads to heads, head_dim to hidden / heads, max_positions to seq_len for the
    gpt family (else 0), dense_layers to all layers (none for the moe family).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = None
    family: Literal["gpt", "llama", "nemotron", "moe"]
    layers: Size = Field(gt=0, le=100_000)
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
    qk_norm: StrictBool | None = None
    embedding_norm: StrictBool | None = None
    experts: Size = Field(default=0, ge=0, le=1_000_000)
    top_k: Size = Field(default=0, ge=0, le=LARGEST)
    shared_experts: Size = Field(default=0, ge=0, le=LARGEST)
    moe_ffn: Size = Field(default=0, ge=0, le=LARGEST)
    dense_layers: Size | None = Field(default=None, ge=0, le=LARGEST)
    q_lora_rank: Size = Field(default=0, ge=0, le=LARGEST)
    kv_lora_rank: Size = Field(default=0, ge=0, le=LARGEST)
    qk_rope_head_dim: Size = Field(default=0, ge=0, le=LARGEST)
    v_head_dim: Size = Field(default=0, ge=0, le=LARGEST)


def from_description(data: Any, path: Path | str, name: str) -> Transformer:
    """The model that a `[model]` table describes.

    Raises:
        FileFormatError: a field is missing, misspelt, of a wrong type, out of range, or contradicts another.
    """
    d = validate(Description, data, path)
    if d.head_dim is None and d.hidden % d.heads:
        raise FileFormatError(f"{path}: field hidden is {d.hidden}; allowed: a multiple of heads {d.heads}")
    sparse = d.family == "moe"
    chosen = dict(FAMILIES[d.family]) | {f: getattr(d, f) for f in FLAGS if getattr(d, f) is not None}
    positions = d.seq_len if d.family == "gpt" and not chosen.get("rotary") else 0
    model = Transformer(
        name=d.name or name,
        family=d.family,
        num_layers=d.layers,
        hidden=d.hidden,
        ffn=d.ffn if d.ffn is not None else (0 if sparse and not d.dense_layers else 4 * d.hidden),
        num_heads=d.heads,
        num_kv_heads=d.kv_heads if d.kv_heads is not None else d.heads,
        head_dim=d.head_dim if d.head_dim is not None else d.hidden // d.heads,
        vocab=d.vocab,
        seq_len=d.seq_len,
        max_positions=d.max_positions if d.max_positions is not None else positions,
        num_experts=d.experts,
        top_k=d.top_k,
        num_shared_experts=d.shared_experts,
        moe_ffn=d.moe_ffn,
        num_dense_layers=d.dense_layers if d.dense_layers is not None else (0 if sparse else d.layers),
        q_lora_rank=d.q_lora_rank,
        kv_lora_rank=d.kv_lora_rank,
        qk_rope_head_dim=d.qk_rope_head_dim,
        v_head_dim=d.v_head_dim,
        **chosen,
    )
    try:
        return check(replace(model, v_head_dim=model.v_head_dim if model.kv_lora_rank else 0))
    except InputError as error:
        raise FileFormatError(f"{path}: {error}") from None
