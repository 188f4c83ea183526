"""Shapes: what is refused, families' conventions, tables of models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner import models
from planner.base.errors import InputError
from planner.models import from_shape, load_model
from planner.models.possible import check

SHAPE: dict[str, Any] = {
    "layers": 4, "hidden": 64, "ffn": 256, "heads": 8, "kv_heads": 4, "vocab": 1000, "seq_len": 32,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_layers": 0}, "num_layers is 0"),
        ({"hidden": 1.5}, "hidden is 1.5"),
        ({"vocab": True}, "vocab is True"),
        ({"seq_len": 10**10}, "seq_len"),
        ({"num_kv_heads": 5}, "num_kv_heads 5"),
        ({"num_dense_layers": 99}, "num_dense_layers 99"),
        ({"ffn": 0}, "ffn is 0"),
        ({"num_dense_layers": 1}, "moe_ffn"),
        ({"gated": 1}, "gated is 1"),
        ({"kv_lora_rank": 8, "v_head_dim": 8, "qk_rope_head_dim": 64}, "qk_rope_head_dim 64"),
        ({"hidden": 10**9, "ffn": 10**9}, "1e18"),
    ],
)
def test_check(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        check(replace(load_model("gpt2"), **change))


@pytest.mark.parametrize(
    ("family", "positions", "flags"),
    [
        ("gpt", 32, {"dropout", "tied", "qkv_bias", "output_bias", "mlp_bias"}),
        ("llama", 0, {"gated", "rms_norm", "rotary"}),
        ("nemotron", 0, {"rotary"}),
    ],
)
def test_dense_families(family: str, positions: int, flags: set[str]) -> None:
    m = from_shape(family=family, **SHAPE)
    assert m.max_positions == positions
    assert {f for f, v in vars(m).items() if v is True} == flags
    assert (m.num_dense_layers, m.num_experts, m.ffn, m.head_dim) == (4, 0, 256, 8)


def test_moe_family() -> None:
    m = from_shape(family="moe", experts=8, top_k=2, **SHAPE)
    assert (m.num_dense_layers, m.num_experts, m.top_k, m.moe_ffn) == (0, 8, 2, 256)
    with pytest.raises(InputError, match="top_k"):
        from_shape(family="moe", experts=2, top_k=3, **SHAPE)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"family": "rnn"}, "rnn.*allowed: gpt"),
        ({"heads": 7}, "multiple of heads 7"),
        ({"heads": 0}, "num_heads is 0"),
        ({"hidden": -64}, "hidden is -64"),
    ],
)
def test_from_shape_faults(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        from_shape(**({"family": "gpt"} | SHAPE | change))


def test_stack_takes_models_by_index() -> None:
    table = models.stack([load_model("gpt2"), load_model("llama-7b")], np.array([1, 0, 1]))
    assert table.num_layers.tolist() == [32, 12, 32]
    assert table.gated.tolist() == [True, False, True]
    assert table.name.tolist() == ["llama-7b", "gpt2", "llama-7b"]
