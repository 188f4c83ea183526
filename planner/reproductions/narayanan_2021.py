"""Narayanan et al. 2021: Megatron-LM on 3,072 A100s, and the time to train GPT-3 and a trillion parameters."""

from __future__ import annotations

import math
from typing import Any

from planner.base.units import DAY, TERA
from planner.layouts import Attention, Precision, Recompute
from planner.models import counts, load_model
from planner.models.flops import step_flops
from planner.reproductions.claims import THEIRS, Claim, Paper, near
from planner.reproductions.layouts import one
from planner.schedules import Pipeline, get_schedule

CLUSTER = "dgx-a100-80gb"


def _run(name: str, tokens: float, gpus: int, batch: int, rate: float, days: float, pp: int) -> list[Claim]:
    """Training days by the paper's estimate 8 T P / (n X), and by our step time of its layout."""
    model = load_model(name)
    P = float(counts.total_params(model))
    simple = 8.0 * tokens * P / (gpus * rate) / DAY
    step = one(
        model, CLUSTER, schedule="1f1b", tp=8, pp=pp, dp=gpus // (8 * pp), micro_batch=1, global_batch=batch, zero=0,
        recompute=Recompute.FULL, attention=Attention.FUSED, precision=Precision.FP16,
    )  # fmt: skip
    ours = math.ceil(tokens / (batch * model.seq_len)) * step.step_time_s / DAY
    flop = float(step_flops(model, batch, "megatron", recompute=True))
    what = f"{name}, {tokens / 1e9:.0f}B tokens on {gpus:,} A100"
    note = f"tp 8 pp {pp}, full recompute, {step.step_time_s:.1f} s a step"
    return [
        near(f"{what}, by 8 T P / (n X)", "days", "read", days, simple, within=0.1, basis=THEIRS),
        near(what, "days", "read", days, ours, within=0.1, note=note),
        near(
            f"{what}: rate a GPU, recomputed forward counted", "TFLOP/s", "read", rate / TERA,
            flop / (step.step_time_s * gpus) / TERA, within=0.15,
        ),
    ]  # fmt: skip


def _bubbles() -> list[Claim]:
    """The bubble over the ideal time, and its division by the virtual stages."""
    pipe = Pipeline(p=8, m=32, v=1)
    plain = float(get_schedule("1f1b").bubble_s(pipe, 1.0, 1.0, 1.0)) / (32 * 3.0)
    looped = float(get_schedule("interleaved").bubble_s(Pipeline(p=8, m=32, v=4), 1.0, 1.0, 1.0)) / (32 * 3.0)
    statement = "bubble over ideal time, p = 8, m = 32"
    return [
        near(f"{statement}: (p - 1)/m", "", "read", 7 / 32, plain, within=1e-9, basis=THEIRS),
        near(f"{statement}, v = 4: (p - 1)/(v m)", "", "read", 7 / 128, looped, within=1e-9, basis=THEIRS),
    ]


def _interleaving() -> Claim:
    """The gain of interleaving at a small batch: GPT-3 on 96 GPUs, batch 12."""
    model = load_model("gpt3-175b")
    same: dict[str, Any] = {
        "tp": 8, "pp": 12, "dp": 1, "micro_batch": 1, "global_batch": 12, "zero": 0, "recompute": Recompute.FULL,
        "attention": Attention.FUSED, "precision": Precision.FP16,
    }  # fmt: skip
    plain = one(model, CLUSTER, schedule="1f1b", **same).step_time_s
    looped = one(model, CLUSTER, schedule="interleaved", virtual_stages=2, **same).step_time_s
    return Claim(
        statement="interleaving gains over 10 %: GPT-3 on 96 A100, batch 12", unit="x", mark="read", theirs=1.10,
        ours=plain / looped, low=1.05, high=1.4, note="two virtual stages",
    )  # fmt: skip


def paper() -> Paper:
    """All claims."""
    return Paper(
        name="narayanan-2021",
        title="Efficient large-scale language model training on GPU clusters using Megatron-LM",
        source="Narayanan et al. 2021, arXiv 2104.04473",
        claims=(
            *_run("gpt3-175b", 300e9, 1024, 1536, 140 * TERA, 34.0, 8),
            *_run("megatron-1t", 450e9, 3072, 3072, 163 * TERA, 84.0, 64),
            *_bubbles(),
            _interleaving(),
        ),
    )
