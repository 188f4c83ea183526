"""A user's own TOML: defaults, faults, names of misspelt fields."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.base.errors import FileFormatError, InputError, UnknownNameError
from planner.models import load_model
from planner.models import x_family as x

GPT = 'family = "gpt"\nlayers = 12\nhidden = 768\nheads = 12\nvocab = 50257\nseq_len = 1024\n'
MOE = GPT.replace("gpt", "moe") + "experts = 8\ntop_k = 2\nmoe_ffn = 100\n"


def test_defaults_are_the_familys(write: Any) -> None:
    model = load_model(write("[model]\n" + GPT, "mine.toml"))
    assert model == replace(load_model("gpt2"), name="mine", norm_epsilon=0.0)
    assert load_model(write('[model]\nname = "small"\n' + GPT, "mine.toml")).name == "small"


def test_what_is_said_wins(write: Any) -> None:
    said = "gated = true\ntied = false\nkv_heads = 4\nhead_dim = 32\nmax_positions = 7\nffn = 5\nmlp_bias = false\n"
    m = load_model(write("[model]\n" + GPT + said, "mine.toml"))
    assert (m.gated, m.tied, m.num_kv_heads, m.head_dim, m.max_positions, m.ffn) == (True, False, 4, 32, 7, 5)
    assert (m.qkv_bias, m.output_bias, m.mlp_bias) == (True, True, False)
    assert load_model(write("[model]\n" + GPT + "rotary = true\n", "mine.toml")).max_positions == 0
    said = ("", "rotary = true\n", "dropout = false\n", "rotary = true\ndropout = true\n")
    drops = [load_model(write("[model]\n" + GPT + text, "mine.toml")).dropout for text in said]
    assert drops == [True, False, False, True]


def test_moe(write: Any) -> None:
    m = load_model(write("[model]\n" + MOE, "mine.toml"))
    assert (m.num_dense_layers, m.num_experts, m.top_k, m.moe_ffn) == (0, 8, 2, 100)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GPT, "one table"),
        ("[model]\n[other]\n", "one table"),
        ("[model]\n", "family is missing"),
        ("[model]\n" + GPT.replace("hidden", "hiden"), "unknown field hiden; did you mean hidden"),
        ("[model]\n" + GPT + "linear_bias = true\n", "unknown field linear_bias"),
        ("[model]\n" + GPT.replace("768", '"768"'), "hidden is '768'"),
        ("[model]\n" + GPT.replace("768", "768.0"), "hidden is 768.0"),
        ("[model]\n" + GPT.replace("= 12\nhidden", "= true\nhidden"), "layers is True"),
        ("[model]\n" + GPT.replace("768", "770"), "hidden is 770"),
        ("[model]\n" + GPT.replace("768", "-768"), "hidden is -768"),
        ("[model]\n" + GPT.replace('"gpt"', '"rnn"'), "family is 'rnn'"),
        ("[model]\n" + GPT + "kv_heads = 5\n", "heads 12 .* kv_heads 5"),
        ("[model]\n" + GPT + "kv_lora_rank = 5\n", "v_head_dim"),
        ("[model]\n" + GPT + "dense_layers = 13\n", "dense_layers 13"),
        ("[model]\n" + GPT + "dense_layers = 3\n", "sparse layers need"),
        ("[model]\n" + MOE.replace("top_k = 2", "top_k = 9"), "top_k 9"),
        ("[model]\n" + MOE + 'router = "tanh"\n', "router is 'tanh'; allowed: text of the form .softmax"),
        ("[model]\n" + MOE + 'expert_layers = "0110"\n', "expert_layers is '0110'; allowed: .* digits, 0 of them 0"),
        ("[model]\n" + GPT + 'rope_type = "yarn factor .."\n', "rope_type is 'yarn factor ..'; allowed: text"),
        ("model = 3\n", "model|file"),
        ("[model", "not valid TOML"),
    ],
)
def test_faults(text: str, says: str, write: Any) -> None:
    path = write(text, "mine.toml")
    with pytest.raises(FileFormatError, match=says) as caught:
        load_model(path)
    assert str(caught.value).startswith(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("alpha", [0, 1, 3, 161, 10_002])
def test_x_family_needs_an_even_alpha(alpha: int) -> None:
    with pytest.raises(InputError, match="even"):
        x(alpha)


def test_unknown_names_carry_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="llama-13b"):
        load_model("lama-13b")
