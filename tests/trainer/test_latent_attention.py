"""Multi-head latent attention over ranks and slices gives plain training's gradients; tensor ranks have heads."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from planner.base.errors import InputError
from planner.layouts import Recompute
from planner.models import load_model
from planner.schedules import SCHEDULES
from planner.schedules.base import Pipeline
from planner.trainer.scaled import scaled_model
from planner.trainer.task import Task, check_model
from tests.trainer.helpers import SEQUENCES, assert_same, data, llama, plain_rows, run
from tests.trainer.test_context_parallel import TOKENS, WAYS

LATENT = replace(llama(4, kv_heads=4), seq_len=TOKENS, kv_lora_rank=5, qk_rope_head_dim=2, v_head_dim=3)
MODELS = {
    "keys": LATENT,
    "queries too": replace(LATENT, q_lora_rank=6),
    "experts": replace(LATENT, q_lora_rank=6, num_experts=4, top_k=2, moe_ffn=12, num_dense_layers=1),
    "windows": replace(LATENT, window=7, num_window_layers=3),
}
OTHERS = [
    ("1f1b", Pipeline(p=1, m=2), {"tp": 2}),
    ("1f1b", Pipeline(p=1, m=2), {"tp": 4, "sequence_parallel": True, "recompute": Recompute.FULL}),
    ("zb-h1", Pipeline(p=2, m=4), {"tp": 2, "sequence_parallel": True, "recompute": Recompute.SELECTIVE}),
    ("seq1f1b", Pipeline(p=2, m=4, k=4), {"tp": 2}),
    ("1f1b", Pipeline(p=1, m=2), {"cp": 2, "tp": 2, "dp": 2, "zero": 3}),
    ("1f1b", Pipeline(p=2, m=4), {"cp": 2, "offload_layers": 1}),
]


@cache
def plain(name: str):
    task = Task(model=MODELS[name], rows=plain_rows(), micro_batches=1, dtype=np.float64)
    return run(task, data(MODELS[name]))


def found(name: str, schedule: str, pipe: Pipeline, **choices):
    rows = SCHEDULES[schedule].order(pipe).rows()
    if pipe.k > 1:
        choices |= {"bounds": tuple(TOKENS * i // pipe.k for i in range(pipe.k + 1))}
    task = Task(model=MODELS[name], rows=rows, micro_batches=pipe.m, dtype=np.float64, **choices)
    return run(task, data(MODELS[name]))


@pytest.mark.parametrize(("schedule", "pipe", "choices"), OTHERS, ids=str)
@pytest.mark.parametrize("name", ["keys", "queries too", "windows"])
def test_gradients_are_those_of_plain_training(name, schedule, pipe, choices):
    assert_same(found(name, schedule, pipe, **choices), plain(name))


@pytest.mark.parametrize("way", [w for w in WAYS if "model" not in w], ids=str)
def test_with_every_way_of_context_ranks(way):
    assert_same(found("queries too", "1f1b", Pipeline(p=1, m=2), **way), plain("queries too"))


def test_beside_experts():
    choices = {"dp": 2, "tp": 2, "cp": 2, "ep": 4, "sequence_parallel": True}
    assert_same(found("experts", "1f1b", Pipeline(p=2, m=4), **choices), plain("experts"))


def test_tensor_ranks_gather_latents_not_hidden_states():
    """Forward a gather of the latents into the region and a scatter of the sum out of it; backward each again, and the
    latents once more for the weights; of the MLP the same of hidden states."""
    sent = {}
    for layers in (1, 4):
        model = replace(MODELS["queries too"], num_layers=layers, num_dense_layers=layers)
        task = Task(model=model, rows=plain_rows(), micro_batches=1, dtype=np.float64, tp=2, sequence_parallel=True)
        traffic = run(task, data(model)).traffic[0]
        sent[layers] = sum(size for (group, kind), size in traffic.items() if group == "tp" and kind != "all_reduce")
    latents = 6 + 5 + 2  # of queries, of keys and values, and the key that positions turn
    width = latents + model.hidden + 2 * model.hidden  # the sum; the MLP's input and output
    again = latents + model.hidden  # inputs of both products
    tokens, half = SEQUENCES * TOKENS, 8 // 2  # of two ranks each sends half of 8 bytes
    assert sent[4] - sent[1] == 3 * tokens * half * (2 * width + again)


def test_side_by_side_is_refused_and_a_small_model_keeps_its_kind():
    with pytest.raises(InputError, match="latent attention side by side with the MLP"):
        check_model(replace(LATENT, parallel_block=True))
    small = scaled_model(load_model("deepseek-v2-lite"), "small", 2, 2, 1)
    assert (small.kv_lora_rank, small.q_lora_rank) == (32, 0)
    assert 0 < small.qk_rope_head_dim < small.head_dim
