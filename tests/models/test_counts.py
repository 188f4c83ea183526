"""Parameter counts beside published ones; sums of parts; tables equal to single models."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.models import counts, flops, load_model, model_names

PUBLISHED = list(
    csv.DictReader(Path(__file__).with_name("published_params.csv").read_text(encoding="utf-8").splitlines())
)

# Narayanan et al. 2021, arXiv 2104.04473, Table 1, in billions to one decimal; the last one of Korthikanti et al. 2022.
ROUNDED = {
    "megatron-1.7b": 1.7,
    "megatron-3.6b": 3.6,
    "megatron-7.5b": 7.5,
    "megatron-18b": 18.4,
    "megatron-39b": 39.1,
    "megatron-76b": 76.1,
    "megatron-145b": 145.6,
    "megatron-310b": 310.1,
    "megatron-530b": 529.6,
    "megatron-1t": 1008.0,
    "megatron-22b": 22.1,
}


# In billions, in all and active a token, as their papers and model cards round them (cited in presets.toml).
CARDS = {
    "mixtral-8x22b": (141, 39),
    "grok-1": (314, None),
    "llama4-scout": (109, 17),  # with its vision encoder
    "llama4-maverick": (400, 17),
    "qwen3-8b": (8.2, None),
    "qwen3-14b": (14.8, None),
    "qwen3-32b": (32.8, None),
    "qwen3-30b-a3b": (30.5, 3.3),
    "qwen3-235b-a22b": (235, 22),
    "gpt-oss-20b": (20.9, 3.6),
    "gpt-oss-120b": (116.8, 5.1),
    "kimi-k2": (1040, 32),
    "mamba2-780m": (0.78, None),
    "qwen2-57b-a14b": (57.4, 14.2),
    "gemma2-2b": (2.61, None),
    "gemma2-9b": (9.24, None),
    "gemma2-27b": (27.2, None),
    "gemma3-1b": (1.0, None),
    "gemma3-4b": (3.88, None),
    "gemma3-12b": (11.77, None),
    "gemma3-27b": (27.0, None),
    "olmo2-32b": (32.2, None),
    "smollm3-3b": (3.08, None),
    "apertus-8b": (8.05, None),
    "apertus-70b": (70.6, None),
    "olmo2-7b": (7.3, None),
    "olmo2-13b": (13.7, None),
    "olmoe-1b-7b": (6.9, 1.3),
    "glm-4.5-air": (106, None),
    "glm-4.5": (355, None),
    "nemotron4-15b": (15.6, None),
    "nemotron4-340b": (341, None),
    "opt-66b": (65.7, None),
    "mamba2-2.7b": (2.7, None),
}


@pytest.mark.parametrize("row", PUBLISHED, ids=[r["model"] for r in PUBLISHED])
def test_total_is_the_published_one(row: dict[str, str]) -> None:
    assert int(counts.total_params(load_model(row["model"]))) == int(row["params"]), row["source"]


@pytest.mark.parametrize(("name", "billions"), ROUNDED.items())
def test_total_rounds_to_the_papers(name: str, billions: float) -> None:
    assert counts.total_params(load_model(name)) / 1e9 == pytest.approx(billions, abs=0.075)


@pytest.mark.parametrize(("name", "total", "active"), [(name, *sizes) for name, sizes in CARDS.items()])
def test_totals_of_model_cards(name: str, total: float, active: float | None) -> None:
    model = load_model(name)
    assert counts.total_params(model) / 1e9 == pytest.approx(total, rel=0.015)
    if active is not None:
        # Cards differ in whether a token's embedding counts: 0.6 billion in gpt-oss.
        embedding = model.vocab * model.hidden / 1e9
        assert active - 1.1 * embedding <= counts.active_params(model) / 1e9 <= active * 1.02 + 1.1 * embedding


def test_every_preset_loads_and_its_name_is_near_its_size() -> None:
    for name in model_names():
        model = load_model(name)
        assert model.name == name
        size = name.rsplit("-", 1)[-1]
        unit = {"m": 1e6, "b": 1e9, "t": 1e12}.get(size[-1])
        if unit and size[:-1].replace(".", "").isdecimal() and name != "qwen2-0.5b":
            # LLaMA's 30B has 32.5; MPT's names are round.
            assert counts.total_params(model) == pytest.approx(float(size[:-1]) * unit, rel=0.32), name


def test_biases_of_experts_and_router() -> None:
    """The checkpoint of gpt-oss-20b has 20,914,757,184, a learned sink for each of 24 x 64 heads among them."""
    assert counts.total_params(load_model("gpt-oss-20b")) == 20_914_757_184 - 24 * 64


def test_active_params_published() -> None:
    # Mixtral 12.9B (arXiv 2401.04088), DeepSeek-V3 37B (arXiv 2412.19437).
    assert counts.active_params(load_model("mixtral-8x7b")) / 1e9 == pytest.approx(12.9, abs=0.05)
    assert counts.active_params(load_model("deepseek-v3")) / 1e9 == pytest.approx(37.0, abs=0.6)


def test_x_160_of_lamy_poirier() -> None:
    # arXiv 2106.02679, Table 5.1: 1.26 trillion parameters, embeddings left out.
    model = load_model("x-160")
    assert counts.layers_params(model) == pytest.approx(12 * 160**5, rel=1e-4)
    assert (model.num_heads, model.head_dim, model.hidden, model.seq_len) == (80, 320, 25600, 2560)


@pytest.mark.parametrize("name", model_names())
def test_total_is_the_sum_of_its_parts(name: str) -> None:
    m = load_model(name)
    attention = m.num_layers - m.num_ssm_layers - m.num_mlp_only_layers
    sparse = m.num_layers - m.num_dense_layers - m.num_mixer_only_layers
    experts = counts.router_params(m) + m.num_experts * counts.expert_params(m) + counts.shared_expert_params(m)
    experts = experts + counts.latent_params(m)
    mixers = attention * counts.attention_params(m) + m.num_ssm_layers * counts.ssm_params(m)
    mlps = m.num_dense_layers * counts.mlp_params(m) + sparse * experts
    shared = m.num_layers if m.parallel_block and not m.parallel_norms else 0
    norms = (attention + m.num_ssm_layers + m.num_dense_layers + sparse - shared) * counts.norm_params(m)
    outside = counts.embedding_params(m) + counts.norm_params(m) + counts.head_params(m)
    assert counts.total_params(m) == mixers + mlps + norms + outside + counts.mtp_params(m)
    assert (m.num_mtp_layers > 0) == (counts.mtp_params(m) > 0)
    assert sparse or counts.active_params(m) == counts.total_params(m)


@pytest.mark.parametrize(
    ("name", "tensors", "routers"),
    [("nemotron-3-super-120b-a12b-mtp", 123_611_033_088, 41), ("nemotron-3.5-lightning-30b-a3b", 32_913_266_240, 24)],
)
def test_checkpoints_with_routers_balancing_terms(name: str, tensors: int, routers: int) -> None:
    """All elements of the checkpoints (NVIDIA-NeMo/Megatron-Bridge, examples/model_verification_cards).

    Among them a number that balances each expert, in every router, which no gradient trains and we don't count.
    """
    m = load_model(name)
    assert counts.total_params(m) + routers * m.num_experts == tensors


def test_latents_of_experts_by_hand() -> None:
    """Nemotron 3 Super's layer with experts: routed ones of two matrices on 1,024 channels, one shared on 4,096."""
    m = load_model("nemotron-3-super-120b-a12b")
    assert counts.expert_params(m) == 2 * 1024 * 2688
    assert counts.shared_expert_params(m) == 2 * 4096 * 5376
    assert counts.latent_params(m) == 2 * 4096 * 1024
    unused = 40 * (512 - 22) * 2 * 1024 * 2688
    assert counts.active_params(m) == counts.total_params(m) - unused


def test_one_module_used_twice_has_its_weights_once() -> None:
    twice = load_model("nemotron-3-super-120b-a12b-mtp")
    assert (twice.num_mtp_layers, int(twice.num_mtp_modules)) == (2, 1)
    one, two = (replace(twice, num_mtp_layers=n, mtp_shared=False) for n in (1, 2))
    assert counts.total_params(twice) == counts.total_params(one) < counts.total_params(two)
    assert counts.active_params(twice) == counts.active_params(one)
    for convention in ("palm", "6nd", "megatron"):
        assert flops.step_flops(twice, 1, convention) == pytest.approx(flops.step_flops(two, 1, convention), rel=1e-12)


def test_bloom_norm_and_tied_head() -> None:
    bloom = load_model("bloom-176b")
    assert counts.embedding_params(bloom) == 250880 * 14336 + 2 * 14336
    assert counts.head_params(bloom) == 0
    assert counts.head_params(load_model("llama-7b")) == 32000 * 4096
    assert isinstance(counts.total_params(bloom), (int, np.integer))


def test_a_module_of_multi_token_prediction():
    """DeepSeek-V3's: a layer with experts, a product of twice the width, norms of state, embedding and output."""
    m = load_model("deepseek-v3-mtp")
    experts = 256 * 3 * 7168 * 2048 + 3 * 7168 * 2048 + 7168 * 256
    down, up = 7168 * (1536 + 512 + 64) + 1536 + 512, 1536 * 128 * 192 + 512 * 128 * (128 + 128)
    module = experts + down + up + 128 * 128 * 7168 + 2 * 7168**2 + 5 * 7168
    assert counts.mtp_params(m) == module
    assert counts.total_params(m) - counts.total_params(load_model("deepseek-v3")) == module
    # 11.5 billion parameters besides embedding and head, says the checkpoint's README_WEIGHTS.md.
    assert module == pytest.approx(11.5e9, rel=0.02)
    met = counts.active_params(m) - counts.active_params(load_model("deepseek-v3"))
    assert met == module - (256 - 8) * 3 * 7168 * 2048
    assert counts.mtp_params(replace(m, num_mtp_layers=3)) == 3 * module
