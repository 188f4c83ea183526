"""FLOP by operation and by convention, beside the papers' formulas and a paper's measured utilization."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.base.errors import UnknownNameError
from planner.models import counts, from_shape, load_model, mix, model_names, with_seq_len
from planner.models.flops import causal_share, forward_flops, mfu_text, step_flops

CORES = ("attention_scores", "attention_values", "state_space")  # no product of weights

RUNS = Path(__file__).parents[2] / "measured_runs"
GPT = [n for n in model_names() if n.startswith(("gpt2", "gpt3", "megatron"))]


def rows(name: str) -> list[dict[str, str]]:
    return [r for r in csv.DictReader((RUNS / name).read_text(encoding="utf-8").splitlines()) if r["step_time_s"]]


def model_of(row: dict[str, str]) -> Any:
    sizes = {c: int(row[c]) for c in ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "seq_len")}
    return from_shape(family=row["family"], **sizes)


@pytest.mark.parametrize("name", GPT)
def test_megatron_is_narayanan_eq_3_and_korthikantis_without_recompute(name: str) -> None:
    m = load_model(name)
    B, s, layers, h, V = 1536, m.seq_len, m.num_layers, m.hidden, m.vocab
    eq3 = 96 * B * s * layers * h**2 * (1 + s / (6 * h) + V / (16 * layers * h))
    model_flop = 72 * B * s * layers * h**2 * (1 + s / (6 * h) + V / (12 * layers * h))
    assert step_flops(m, B, "megatron", recompute=True) == pytest.approx(eq3, rel=1e-12)
    assert step_flops(m, B, "megatron") == pytest.approx(model_flop, rel=1e-12)


def test_narayanan_table_1_throughput() -> None:
    # The times in the file come from the table's TFLOP/s by eq. 3; the table prints whole TFLOP/s.
    for row in rows("narayanan_2021_a100.csv"):
        flop = step_flops(model_of(row), int(row["global_batch"]), "megatron", recompute=True)
        rate = flop / float(row["step_time_s"]) / int(row["n_gpus"]) / 1e12
        assert rate == pytest.approx(float(row["tflops_per_gpu"]), rel=0.03), row["run"]


def test_palm_gives_hagemanns_utilization() -> None:
    """N holds embedding and head: without either one the ratio would be off by 1.5 to 10 %.

    The file's time and its utilization are averages over different steps, so single runs stray.
    """
    table = [r for r in rows("hagemann_llama_a100.csv") if r["mfu"]]
    flop = np.array([step_flops(model_of(r), int(r["global_batch"]), "palm") for r in table])
    given = np.array([[float(r[c]) for c in ("step_time_s", "n_gpus", "mfu")] for r in table])
    error = flop / (given[:, 0] * given[:, 1] * 312e12) / given[:, 2] - 1
    assert len(table) == 239
    assert abs(np.median(error)) < 2e-4
    assert np.mean(abs(error) < 1.2e-3) > 0.9
    assert np.max(abs(error)) < 0.02


def test_6nd_and_palm() -> None:
    m = load_model("llama-13b")
    n = 13_015_864_320
    assert step_flops(m, 2, "6nd") == pytest.approx(6 * n * 4096)
    assert step_flops(m, 2, "palm") == pytest.approx((6 * n + 12 * 40 * 5120 * 2048) * 4096)
    moe = load_model("mixtral-8x7b")
    assert step_flops(moe, 1, "6nd") == pytest.approx(6 * counts.active_params(moe) * 8192)


def test_unknown_convention() -> None:
    with pytest.raises(UnknownNameError, match="palm"):
        step_flops(load_model("gpt2"), 1, "plam")


@pytest.mark.parametrize("name", model_names())
def test_products_are_two_flop_a_weight_and_token(name: str) -> None:
    """Every matrix's FLOP is 2 x parameters x tokens, so biases, norms and tables are all that is left over."""
    m = replace(load_model(name), qkv_bias=False, output_bias=False, mlp_bias=False, qk_norm=False)
    m = replace(m, expert_bias=False, rms_norm=True, tied=False, max_positions=0, embedding_norm=False)
    flop = forward_flops(m)
    products = sum(f for op, f in flop.items() if op not in CORES)
    latents = (m.num_layers + m.num_mtp_layers) * (m.q_lora_rank + m.kv_lora_rank) if m.kv_lora_rank else 0
    # One module's weights that are used again count again, as ever so many modules.
    m = replace(m, mtp_shared=False)
    norms = (mix.norms(m) + 1 + 5 * m.num_mtp_layers) * counts.norm_params(m) + latents
    # A state-space's convolution, decays, skips and gated norm.
    inner, states = mix.ssm_channels(m)
    norms += m.num_ssm_layers * ((inner + states) * (m.ssm_conv + 1) + 3 * m.ssm_heads + inner)
    weights = counts.active_params(m) - norms - m.vocab * m.hidden * (1 - m.num_mtp_layers)  # a head a module
    assert products == pytest.approx(2.0 * weights * m.seq_len, rel=1e-12)


def test_causal_halves_attention_alone() -> None:
    m = load_model("deepseek-v3")
    whole, half = forward_flops(m), forward_flops(m, causal=True)
    for op, flop in whole.items():
        assert half[op] == (flop / 2 if op in ("attention_scores", "attention_values") else flop)


@pytest.mark.parametrize(("seq_len", "share"), [(2048, 0.97), (8192, 0.895), (1048576, 0.514)])
def test_causal_attention_is_half_of_what_palm_counts(seq_len, share):
    model = with_seq_len(load_model("llama3-8b"), seq_len)
    assert causal_share(model) == pytest.approx(share, abs=0.003)


def test_of_a_sliding_window_only_what_is_within_it_is_causal():
    model = with_seq_len(load_model("mistral-7b"), 131072)
    assert causal_share(model) < 0.7 * causal_share(replace(model, window=0, num_window_layers=0))


@pytest.mark.parametrize(
    ("name", "tokens_per_s", "tflops"), [("deepseek-v3", 4357, 1088), ("deepseek-v3-mtp", 2139, 557)]
)
def test_deepseek_v3_costs_what_nvidia_counts(name: str, tokens_per_s: float, tflops: float) -> None:
    """Tokens and FLOP of a GPU in NVIDIA's performance summary of NeMo 25.11, without and with the module."""
    m = load_model(name)
    a_token = 3.0 * sum(forward_flops(m, causal=True).values()) / m.seq_len
    assert a_token == pytest.approx(tflops * 1e12 / tokens_per_s, rel=0.005)


def test_mfu_with_whole_attention_is_left_out_where_windows_never_compute_it() -> None:
    assert mfu_text(0.5, with_seq_len(load_model("llama3-8b"), 8192)).endswith("(50.0% with whole attention)")
    share = float(causal_share(load_model("gemma3-27b")))
    assert mfu_text(1.03, load_model("gemma3-27b")) == f"causal MFU {1.03 * share:.1%}"
