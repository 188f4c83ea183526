"""Attention to the last tokens alone: which layers have it, and plain training's gradients over ranks and slices."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from planner.layouts import Recompute
from planner.models import load_model
from planner.schedules import SCHEDULES
from planner.schedules.base import Pipeline
from planner.trainer.attention import ALL
from planner.trainer.block import window_of
from planner.trainer.scaled import scaled_model
from planner.trainer.task import Task
from tests.trainer.helpers import assert_same, data, gpt, llama, plain_rows, run
from tests.trainer.test_context_parallel import TOKENS, WAYS

WINDOWS = (1, 3, 7, 20)
MODELS = {
    "llama": replace(llama(4, kv_heads=4), seq_len=TOKENS, num_window_layers=3),
    "gpt": replace(gpt(4), seq_len=TOKENS, max_positions=TOKENS, num_window_layers=2),
    "side by side": replace(llama(4, kv_heads=4), seq_len=TOKENS, num_window_layers=4, parallel_block=True),
    "experts": replace(llama(4, kv_heads=4), seq_len=TOKENS, num_window_layers=2, num_experts=4, top_k=2, moe_ffn=12,
                       num_dense_layers=1),
}  # fmt: skip
OTHERS = [
    ("seq1f1b", Pipeline(p=2, m=4, k=4), {}),
    ("seq1f1b-zb", Pipeline(p=2, m=4, k=2), {"recompute": Recompute.SELECTIVE}),
    ("terapipe", Pipeline(p=2, m=2, k=4), {"bounds": (0, 14, 22, 28, 32), "tp": 2}),
    ("zb-h1", Pipeline(p=2, m=4), {"tp": 2, "sequence_parallel": True}),
    ("1f1b", Pipeline(p=2, m=4), {"cp": 2, "offload_layers": 1, "recompute": Recompute.SELECTIVE}),
    ("1f1b", Pipeline(p=1, m=2), {"cp": 2, "dp": 2, "zero": 3, "recompute": Recompute.FULL}),
]


@cache
def plain(name: str, window: int):
    model = replace(MODELS[name], window=window)
    return run(Task(model=model, rows=plain_rows(), micro_batches=1, dtype=np.float64), data(model))


def found(name: str, window: int, schedule: str, pipe: Pipeline, **choices):
    model, order = replace(MODELS[name], window=window), SCHEDULES[schedule].order(pipe)
    if pipe.k > 1:
        even = tuple(TOKENS * i // pipe.k for i in range(pipe.k + 1))
        choices = {"bounds": even} | choices
    task = Task(model=model, rows=order.rows(), micro_batches=pipe.m, dtype=np.float64, **choices)
    return run(task, data(model))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("way", [w for w in WAYS if "model" not in w], ids=str)
def test_gradients_are_those_of_plain_training(way, window):
    assert_same(found("llama", window, "1f1b", Pipeline(p=1, m=2), **way), plain("llama", window))


@pytest.mark.parametrize(
    ("name", "schedule", "pipe", "choices"),
    [
        *((name, *other) for name in ("llama", "gpt", "side by side") for other in OTHERS),
        ("experts", "1f1b", Pipeline(p=2, m=4), {"dp": 2, "cp": 2, "ep": 4}),
    ],
    ids=str,
)
def test_in_slices_and_beside_every_other_choice(name, schedule, pipe, choices):
    assert_same(found(name, 7, schedule, pipe, **choices), plain(name, 7))


def test_a_window_changes_what_is_trained():
    losses = [plain("llama", window).loss for window in (*WINDOWS, TOKENS)]
    assert len(set(losses)) == len(losses)
    whole = replace(MODELS["llama"], num_window_layers=0)
    assert losses[-1] == run(Task(model=whole, rows=plain_rows(), micro_batches=1, dtype=np.float64), data(whole)).loss


@pytest.mark.parametrize(
    ("layers", "windows", "whole"),
    [
        (6, 3, [1, 3, 5]),  # Gemma 2, GPT-OSS: the first layer of each pair
        (24, 20, [5, 11, 17, 23]),  # Gemma 3: all but every sixth
        (4, 4, []),  # Mistral 7B
        (4, 0, [0, 1, 2, 3]),
    ],
)
def test_which_layers_have_windows(layers, windows, whole):
    model = replace(llama(layers), window=2, num_window_layers=windows)
    of = [window_of(model, i) for i in range(layers)]
    assert [i for i, window in enumerate(of) if window == ALL] == whole
    assert {window for window in of if window != ALL} == ({2} if windows else set())


def test_a_small_model_keeps_the_windows_shares():
    """Of Gemma 2 half of the layers, of Mistral all; half of the 8,192 tokens of both."""
    gemma, mistral = (scaled_model(load_model(name), "small", 1, 2, 1) for name in ("gemma2-2b", "mistral-7b"))
    assert (gemma.num_window_layers, gemma.window, gemma.num_layers, gemma.seq_len) == (1, 64, 2, 128)
    assert (mistral.num_window_layers, mistral.window) == (2, 64)
