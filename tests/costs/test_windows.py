"""Sliding windows: the scores that flash kernels compute, by hand; never slower than whole attention."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.base.errors import InputError
from planner.costs.kernels.attention import computed_share, key_block
from planner.hardware import load_accelerator, load_cluster, load_framework
from planner.layouts import Attention, Layouts
from planner.models import load_model
from planner.models.flops import forward_flops
from planner.models.possible import check
from planner.setup import Setup
from planner.step.estimate import estimate

CPU = load_accelerator("cpu-generic").efficiency
PLAIN = replace(load_model("llama3-8b"), seq_len=1024)


def windowed(layers, window, **more):
    return replace(PLAIN, num_window_layers=layers, window=window, **more)


def test_share_of_the_scores():
    """Of 1,024 tokens: half and half a block of 128; a band of 256 a quarter less its corner, and a block."""
    assert float(computed_share(PLAIN, 0.0)) == 0.5 + 64 / 1024
    band = 0.25 * (1 - 0.125) + 128 / 1024
    assert float(computed_share(windowed(32, 256), 0.0)) == pytest.approx(band)
    assert float(computed_share(windowed(8, 256), 0.0)) == pytest.approx(0.75 * (0.5 + 64 / 1024) + 0.25 * band)
    # A block of 512 keys or of all: the whole of 256 tokens, three quarters of 1,024.
    assert float(computed_share(replace(PLAIN, seq_len=256), 0.0, key_block(CPU, 256))) == 1.0
    assert float(computed_share(PLAIN, 0.0, key_block(CPU, 1024))) == 0.75
    # Rows of few keys are slower, an edge's block counted: here by a third.
    assert float(computed_share(windowed(32, 256), 128.0)) == pytest.approx((1 + 128 / (256 + 128)) * band)


@given(st.integers(0, 32), st.integers(1, 2048), st.integers(0, 600))
def test_a_window_never_computes_more(layers, window, half):
    model = windowed(layers, window if layers else 0)
    assert 0 < computed_share(model, half) <= computed_share(PLAIN, half)
    if window >= 1024 or not layers:
        assert computed_share(model, half) == computed_share(PLAIN, half)


def test_flop():
    """A token attends to 256 of 1,024 keys in a quarter of the layers; causally to 224 and 512 on average."""
    every, some = forward_flops(PLAIN), forward_flops(windowed(8, 256))
    assert some["attention_scores"] / every["attention_scores"] == pytest.approx((0.75 * 1024 + 0.25 * 256) / 1024)
    every, some = forward_flops(PLAIN, causal=True), forward_flops(windowed(8, 256), causal=True)
    assert some["attention_values"] / every["attention_values"] == pytest.approx((0.75 * 512 + 0.25 * 224) / 512)
    assert some["mlp"] == every["mlp"]


def test_only_flash_kernels_save_by_a_window():
    cluster, framework = load_cluster("dgx-h100"), load_framework("megatron-core")
    table = Layouts.of(dp=8, global_batch=64, zero=1, attention=[Attention.FLASH3, Attention.FUSED])
    whole, some = (
        estimate(Setup(replace(m, seq_len=8192), cluster, framework), table) for m in (PLAIN, windowed(32, 512))
    )
    assert some.time.attention_s[0] < 0.4 * whole.time.attention_s[0]
    assert some.time.attention_s[1] == whole.time.attention_s[1]
    assert np.array_equal(some.memory_bytes, whole.memory_bytes)


@pytest.mark.parametrize(("layers", "window"), [(33, 128), (3, 0), (0, 128)])
def test_a_window_needs_its_layers(layers, window):
    with pytest.raises(InputError, match="num_window_layers"):
        check(windowed(layers, window))


def test_mistral_and_gpt_oss():
    assert (load_model("mistral-7b").num_window_layers, load_model("mistral-7b").window) == (32, 4096)
    assert (load_model("gpt-oss-120b").num_window_layers, load_model("gpt-oss-120b").window) == (18, 128)
