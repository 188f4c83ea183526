"""Towers by name and from the vision part of published config.json files (their fields, copied by hand)."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from planner.base.errors import FileFormatError
from planner.costs.kernels.attention import computed_share
from planner.models import counts, load_model
from planner.models.flops import causal_share, forward_flops
from planner.models.towers import load_tower

QWEN2_VL = {"depth": 32, "embed_dim": 1280, "hidden_size": 8192, "mlp_ratio": 4, "num_heads": 16, "patch_size": 14,
            "spatial_merge_size": 2, "temporal_patch_size": 2, "model_type": "qwen2_vl"}  # fmt: skip
QWEN25_VL = {"depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
             "out_hidden_size": 3584, "patch_size": 14, "window_size": 112, "temporal_patch_size": 2,
             "fullatt_block_indexes": [7, 15, 23, 31], "model_type": "qwen2_5_vl"}  # fmt: skip
GEMMA3 = {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "num_attention_heads": 16,
          "num_hidden_layers": 27, "patch_size": 14, "model_type": "siglip_vision_model"}  # fmt: skip
INTERN = {"hidden_size": 3200, "image_size": [448, 448], "intermediate_size": 12800, "num_attention_heads": 25,
          "num_hidden_layers": 45, "patch_size": [14, 14], "model_type": "internvl_vision"}  # fmt: skip
LLAMA32 = {"attention_heads": 16, "hidden_size": 1280, "image_size": 560, "intermediate_size": 5120,
           "num_global_layers": 8, "num_hidden_layers": 32, "patch_size": 14}  # fmt: skip
LLAMA4 = {"hidden_size": 1408, "image_size": 336, "intermediate_size": 5632, "num_attention_heads": 16,
          "num_hidden_layers": 34, "patch_size": 14, "model_type": "llama4_vision_model"}  # fmt: skip
KIMI = {"vt_hidden_size": 1152, "vt_intermediate_size": 4304, "vt_num_attention_heads": 16, "vt_num_hidden_layers": 27,
        "patch_size": 14, "text_hidden_size": 7168}  # fmt: skip


@pytest.fixture
def config(tmp_path):
    def write(vision, **beside):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"model_type": "seen", "vision_config": vision, **beside}))
        return str(path)

    return write


@pytest.mark.parametrize(
    ("vision", "tokens", "layers", "hidden", "ffn", "heads", "millions"),
    [
        (QWEN2_VL, None, 32, 1280, 5120, 16, 675 - 44.6),  # the paper's, less its merger of 5,120 to 8,192
        (QWEN25_VL, None, 32, 1280, 3420, 16, 632),
        (GEMMA3, 4096, 27, 1152, 4304, 16, 417),
        (INTERN, 1024, 45, 3200, 12800, 25, 5540),
        (LLAMA32, 1600, 40, 1280, 5120, 16, 790),
        (LLAMA4, 576, 34, 1408, 5632, 16, 810),
        (KIMI, None, 27, 1152, 4304, 16, 413),
    ],
)
def test_vision_parts_of_published_configs(config, vision, tokens, layers, hidden, ffn, heads, millions):
    path = config(vision)
    if tokens is None:
        with pytest.raises(FileFormatError, match="field image_size is missing; allowed: pixels, or tokens"):
            load_tower(path)
    tower = load_tower(path) if tokens else load_tower(path, 1024)
    assert (tower.num_layers, tower.hidden, tower.ffn, tower.num_heads) == (layers, hidden, ffn, heads)
    assert tower.seq_len == (tokens or 1024)
    assert tower.bidirectional
    assert not tower.dropout
    assert counts.total_params(tower) / 1e6 == pytest.approx(millions, rel=0.02)
    assert load_tower(path, 77).seq_len == 77


def test_windows_of_qwen25_vl(config):
    tower = load_tower(config(QWEN25_VL), 1024)
    assert (tower.window, tower.num_window_layers, tower.gated) == (64, 28, True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_heads": 0}, "field num_heads is 0; allowed: a whole number from 1"),
        ({"num_heads": 7}, "allowed: "),
        ({"depth": "many"}, "field depth is 'many'"),
        ({"patch_size": None}, "field patch_size is None"),
        ({"mlp_ratio": "four"}, "field mlp_ratio is 'four'; allowed: a number from 0"),
        ({"mlp_ratio": 0}, "ffn"),
        ({"embed_dim": []}, "field embed_dim is \\[\\]"),
        ({"fullatt_block_indexes": [40]}, "field fullatt_block_indexes"),
        ({"fullatt_block_indexes": [4]}, "field window_size is missing"),
        ({"fullatt_block_indexes": [4], "window_size": 7}, "window"),
        ({"temporal_patch_size": 1.5}, "field temporal_patch_size is 1.5"),
    ],
)
def test_a_wrong_field_is_named(config, change, said):
    with pytest.raises(FileFormatError, match=said) as caught:
        load_tower(config(QWEN2_VL | change), 1024)
    assert "\n" not in str(caught.value)


def test_what_has_no_vision_part_is_a_model_itself(config):
    assert load_tower("gpt2") == load_model("gpt2")
    assert load_tower("gpt2", 512).seq_len == 512
    assert load_tower("internvit-6b").bidirectional
    with pytest.raises(FileFormatError):
        load_tower(config(None))


def test_the_language_model_of_internvls_own_config(config):
    from tests.models.test_huggingface import LLAMA

    path = config(INTERN, llm_config=LLAMA)
    assert counts.total_params(load_model(path)) == 6_738_415_616
    assert load_tower(path).num_layers == 45


def test_bidirectional_attention_computes_the_whole_matrix():
    causal = replace(load_model("gpt2"), seq_len=4096)
    both = replace(causal, bidirectional=True)
    assert computed_share(both, 0.0) == 1.0
    assert computed_share(causal, 0.0) == pytest.approx(0.5 + 0.5 * 128 / 4096)
    assert causal_share(both) == 1.0 > causal_share(causal)
    for name in ("attention_scores", "attention_values"):
        assert forward_flops(both, causal=True)[name] == forward_flops(both)[name]
        assert forward_flops(both)[name] == 2 * forward_flops(causal, causal=True)[name]


def test_a_window_to_both_sides_is_computed_in_whole_blocks():
    model = replace(load_model("gpt2"), seq_len=4096, bidirectional=True, window=1024, num_window_layers=12)
    assert computed_share(model, 0.0) == pytest.approx(1024 / 4096)
    assert computed_share(replace(model, window=64), 0.0) == pytest.approx(128 / 4096)
    scores = np.asarray(forward_flops(model, causal=True)["attention_scores"])
    assert scores == forward_flops(replace(model, window=0, num_window_layers=0))["attention_scores"] / 4
