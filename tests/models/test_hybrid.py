"""Hybrids of state-space, attention and MLP layers: patterns, counts, and what a plain model and its halves share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.base.errors import FileFormatError, InputError
from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Layouts, Precision, Recompute
from planner.models import Transformer, counts, from_shape, load_model, mix
from planner.models.flops import forward_flops
from planner.models.from_shape import from_pattern, usual
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.legality import first_broken

CLUSTER, FRAMEWORK = load_cluster("dgx-h100"), load_framework("megatron-core")
HYBRID = '[model]\nfamily = "hybrid"\npattern = "M-M*-"\nhidden = 512\nheads = 8\nvocab = 1000\nseq_len = 256\n'


@pytest.mark.parametrize(
    ("name", "billions"),
    # As their papers and model cards name them (arXiv 2504.03624, 2508.14444, 2512.20848).
    [
        ("nemotron-h-8b", 8),
        ("nemotron-h-47b", 47),
        ("nemotron-h-56b", 56),
        ("nemotron-nano-9b-v2", 9),
        ("nemotron-3-nano-30b-a3b", 31.6),
    ],
)
def test_published_sizes(name: str, billions: float) -> None:
    assert counts.total_params(load_model(name)) / 1e9 == pytest.approx(billions, rel=0.015)


def test_parameters_that_a_token_meets() -> None:
    """Nemotron 3 Nano (arXiv 2512.20848): 3.6 billion, 3.2 without the embedding."""
    m = load_model("nemotron-3-nano-30b-a3b")
    assert counts.active_params(m) / 1e9 == pytest.approx(3.6, abs=0.05)
    assert (counts.active_params(m) - counts.embedding_params(m)) / 1e9 == pytest.approx(3.2, abs=0.05)


def test_a_mamba_mixer_by_hand() -> None:
    m = load_model("nemotron-h-8b")
    # 128 heads of 64 channels, 8 groups of 128 states: 8,192 channels beside 2,048 numbers of B and C.
    product_in, product_out = 4096 * (2 * 8192 + 2048 + 128), 8192 * 4096
    convolution, heads, norm = (8192 + 2048) * 5, 3 * 128, 8192
    assert counts.ssm_params(m) == product_in + product_out + convolution + heads + norm


@pytest.mark.parametrize(
    ("name", "shares"),
    [("nemotron-h-56b", (10, 54, 54)), ("nemotron-h-8b", (4, 24, 24)), ("llama-7b", (32, 0, 32))],
)
def test_layers_of_each_kind(name: str, shares: tuple[int, int, int]) -> None:
    m = load_model(name)
    assert (m.num_attention_layers, m.num_ssm_layers, m.num_dense_layers) == shares
    assert mix.blocks(m) == sum(shares)
    assert mix.sparse_layers(m) == 0


@given(st.text("M*-E", min_size=1, max_size=40))
def test_every_letter_is_a_layer_of_one_block(pattern: str) -> None:
    kinds = from_pattern(pattern)
    m = replace(load_model("mixtral-8x7b"), **kinds)
    assert mix.blocks(m) == len(pattern) == m.num_layers
    assert m.num_attention_layers == pattern.count("*")
    assert mix.sparse_layers(m) == pattern.count("E")


@given(st.integers(1, 200), st.integers(1, 300))
def test_usual_shares_fill_every_layer(layers: int, width: int) -> None:
    kinds = usual(layers, 64 * width)
    mixers = kinds["num_mixer_only_layers"]
    assert mixers + kinds["num_mlp_only_layers"] == layers
    assert 0 <= mixers - kinds["num_ssm_layers"] <= 0.08 * layers + 0.5
    m = from_shape(
        family="hybrid", layers=layers, hidden=64 * width, ffn=256, heads=1, kv_heads=1, vocab=100, seq_len=64
    )
    assert counts.total_params(m) > 0


@pytest.mark.parametrize("pattern", ["", "M-X", "m", "M -"])
def test_bad_patterns(pattern: str) -> None:
    with pytest.raises(InputError, match=r"pattern is .*allowed: one letter a layer"):
        from_pattern(pattern)


def halved(m: Transformer) -> Transformer:
    """The same network with a mixer or an MLP a layer."""
    return replace(m, num_layers=2 * m.num_layers, num_mixer_only_layers=m.num_layers, num_mlp_only_layers=m.num_layers)


def layouts(**choices: Any) -> Layouts:
    usual = {"global_batch": 64, "micro_batch": 2, "dp": 8, "zero": 1}
    return Layouts.of(**usual | {"attention": Attention.FLASH3, "precision": Precision.BF16} | choices)


@pytest.mark.parametrize("name", ["llama3-8b", "gpt3-6.7b", "mixtral-8x7b", "deepseek-v3"])
@pytest.mark.parametrize("mode", list(Recompute))
@pytest.mark.parametrize("tp", [1, 4])
def test_layers_of_one_block_are_a_plain_models_halves(name: str, mode: Recompute, tp: int) -> None:
    """Splitting each layer into its mixer and its MLP changes no parameter, no FLOP, and no second."""
    m = load_model(name)
    two = halved(m)
    assert counts.total_params(two) == counts.total_params(m)
    assert counts.active_params(two) == counts.active_params(m)
    assert forward_flops(two) == pytest.approx(forward_flops(m))
    x = layouts(tp=tp, dp=8 // tp, recompute=mode)
    whole, parts = (estimate(Setup(shape, CLUSTER, FRAMEWORK), x) for shape in (m, two))
    np.testing.assert_allclose(parts.step_time_s, whole.step_time_s, rtol=1e-12)
    if mode == Recompute.NONE:
        # Recomputation keeps one input a layer, of which there are now two, and works on half as much at once.
        np.testing.assert_allclose(parts.memory_bytes, whole.memory_bytes, rtol=1e-12)


def test_state_spaces_cost_what_their_sizes_say() -> None:
    """More state, heads or layers of it: never faster, never smaller."""
    m = load_model("nemotron-h-8b")
    x = layouts(dp=8)
    base = estimate(Setup(m, CLUSTER, FRAMEWORK), x)
    for change in ({"ssm_state": 256}, {"ssm_heads": 256}, {"ssm_groups": 16, "ssm_heads": 256}):
        more = estimate(Setup(replace(m, **change), CLUSTER, FRAMEWORK), x)
        assert more.step_time_s[0] > base.step_time_s[0]
        assert more.memory_bytes[0] > base.memory_bytes[0]


def test_sequence_length_costs_a_state_space_linearly() -> None:
    """Twice the tokens take a state-space twice the time; attention takes more."""
    pure = replace(
        load_model("nemotron-h-8b"), num_layers=24, num_mixer_only_layers=24, num_mlp_only_layers=0, num_dense_layers=0
    )
    x = layouts(dp=8, micro_batch=1)
    short, long = (estimate(Setup(replace(pure, seq_len=s), CLUSTER, FRAMEWORK), x).time for s in (65_536, 131_072))
    assert long.pointwise_s[0] / short.pointwise_s[0] == pytest.approx(2.0, rel=0.01)  # and launches
    assert long.attention_s[0] == short.attention_s[0] == 0.0


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"tp": 16, "dp": 1}, "state-space"),
        ({"cp": 2, "dp": 4}, "context parallelism"),
        ({"tp": 8, "dp": 1}, ""),
    ],
)
def test_rules(choices: dict[str, int], says: str) -> None:
    text = first_broken(load_model("nemotron-h-8b"), CLUSTER, layouts(**choices))[0]
    assert (says in text) if says else not text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HYBRID.replace('pattern = "M-M*-"\n', ""), "field pattern is missing"),
        (HYBRID + "layers = 5\n", "field layers is 5; allowed: none"),
        (HYBRID.replace("M-M*-", "M-M?-"), "field pattern is 'M-M.-'"),
        (HYBRID + "ssm_groups = 7\n", "ssm_heads a multiple of ssm_groups"),
        (HYBRID + "ssm_head_dim = 48\n", "ssm_heads is missing"),
        (HYBRID.replace("M-M*-", "MEM*-"), "sparse layers need"),
        (HYBRID.replace('"hybrid"', '"gpt"'), "field pattern is 'M-M.-'; allowed: none, but for the hybrid family"),
    ],
)
def test_faults_of_a_description(text: str, says: str, write: Any) -> None:
    with pytest.raises(FileFormatError, match=says) as caught:
        load_model(write(text, "mine.toml"))
    assert "\n" not in str(caught.value)


def test_a_description(write: Any) -> None:
    m = load_model(write(HYBRID, "mine.toml"))
    assert (m.num_layers, m.num_ssm_layers, m.num_dense_layers, m.ffn) == (5, 2, 2, 2048)
    assert (m.ssm_heads, m.ssm_head_dim, m.ssm_groups, m.ssm_state, m.ssm_conv) == (16, 64, 8, 128, 4)
    assert (m.gated, m.rms_norm, m.rotary, m.tied) == (False, True, False, False)
