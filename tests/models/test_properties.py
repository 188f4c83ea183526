"""Invariants over random shapes, and hostile files that must end in a PlannerError."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.base.errors import PlannerError
from planner.models import Transformer, counts, from_shape, load_model, model_names, stack
from planner.models.flops import CONVENTIONS, forward_flops, step_flops
from tests.models.configs import CONFIGS

COUNTS = [f for name, f in vars(counts).items() if name[0] != "_" and getattr(f, "__module__", "") == counts.__name__]


@st.composite
def models(draw: st.DrawFn) -> Transformer:
    family = draw(st.sampled_from(["gpt", "llama", "nemotron", "moe"]))
    kv_heads, group, head = draw(st.integers(1, 16)), draw(st.integers(1, 8)), draw(st.integers(1, 256))
    experts = draw(st.integers(1, 256)) if family == "moe" else 0
    return from_shape(
        family=family,
        layers=draw(st.integers(1, 200)),
        hidden=kv_heads * group * head,
        ffn=draw(st.integers(1, 100_000)),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        vocab=draw(st.integers(1, 300_000)),
        seq_len=draw(st.integers(1, 1_000_000)),
        experts=experts,
        top_k=draw(st.integers(1, experts)) if experts else 0,
    )


@given(models())
def test_counts_are_positive_and_grow_with_layers(m: Transformer) -> None:
    deeper = replace(m, num_layers=m.num_layers + 1, num_dense_layers=m.num_dense_layers + (m.num_experts == 0))
    assert 0 < counts.active_params(m) <= counts.total_params(m)
    layer = counts.layers_params(m) // m.num_layers
    assert counts.total_params(deeper) - counts.total_params(m) == layer > 0
    assert step_flops(deeper, 8, "palm") > step_flops(m, 8, "palm") > step_flops(m, 8, "6nd") > 0
    assert step_flops(m, 8, "megatron", recompute=True) > step_flops(m, 8, "megatron")


@given(st.lists(models(), min_size=1, max_size=4), st.data())
@settings(max_examples=40)
def test_a_table_equals_its_models(some: list[Transformer], data: st.DataObject) -> None:
    index = data.draw(st.lists(st.integers(0, len(some) - 1), min_size=1, max_size=6))
    same(some, index)


def test_a_table_of_all_presets_equals_them() -> None:
    presets = [load_model(n) for n in model_names()]
    same(presets, list(range(len(presets))))


def same(some: list[Transformer], index: list[int]) -> None:
    table, singles = stack(some, np.array(index)), [some[i] for i in index]
    for count in COUNTS:
        np.testing.assert_array_equal(count(table), [count(m) for m in singles])
    for causal in (False, True):
        for op, flop in forward_flops(table, causal=causal).items():
            np.testing.assert_array_equal(flop, [forward_flops(m, causal=causal)[op] for m in singles])
    batch = np.arange(1, len(index) + 1)
    recompute = batch % 2 == 0
    for convention in CONVENTIONS:
        expected = [
            step_flops(m, int(b), convention, recompute=bool(r))
            for m, b, r in zip(singles, batch, recompute, strict=True)
        ]
        np.testing.assert_allclose(step_flops(table, batch, convention, recompute=recompute), expected, rtol=1e-14)


WILD = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def outcome(name: str) -> tuple[Transformer | None, str]:
    try:
        return load_model(name), ""
    except PlannerError as error:
        return None, str(error)


def attempt(text: str, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8")
        m, message = outcome(str(path))
    if m is None:
        assert "\n" not in message
        assert str(path) in message
        assert message.encode("utf-8")
        return
    assert 0 < counts.active_params(m) <= counts.total_params(m) < 2**62
    assert np.isfinite(step_flops(m, 10**9, "megatron"))


@pytest.mark.parametrize("model_type", CONFIGS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_hostile_configs(model_type: str, data: st.DataObject) -> None:
    config: dict[str, Any] = dict(CONFIGS[model_type])
    keys = [*config, "head_dim", "attention_bias", "mlp_bias", "text_config", "tie_word_embeddings", "n_inner"]
    for key in data.draw(st.lists(st.sampled_from(keys), min_size=1, max_size=3)):
        if data.draw(st.booleans()):
            config.pop(key, None)
        else:
            config[key] = data.draw(WILD | st.integers(0, 10**9) | st.sampled_from([0, 1, 10**9]))
    text = json.dumps(config)
    attempt(text[: data.draw(st.integers(0, len(text)))] if data.draw(st.booleans()) else text, "config.json")


@given(st.text(max_size=200) | st.binary(max_size=60).map(lambda b: b.decode("latin-1")))
@settings(deadline=None)
def test_hostile_text(text: str) -> None:
    clean = text.encode("utf-8", "replace").decode("utf-8")
    attempt(clean, "config.json")
    attempt("[model]\n" + clean, "mine.toml")


@given(st.text(max_size=30))
@settings(deadline=None)
def test_hostile_names(name: str) -> None:
    assert "\n" not in outcome(name)[1]
