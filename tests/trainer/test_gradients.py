"""Backward passes against finite differences in float64; the parts of a model against what they must equal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.base.errors import InputError
from planner.layouts import Recompute
from planner.models import counts
from planner.trainer.attention import ALL, attend, attend_gradient
from planner.trainer.optimizers import SGD
from planner.trainer.serial import run_serial
from planner.trainer.task import Task, check_task
from planner.trainer.worker import Worker
from tests.trainer.helpers import batch_of, data, gpt, llama, loud, plain_rows

MODELS = {
    "gpt": gpt(2),
    "gpt untied, grouped": gpt(2, kv_heads=1, tied=False),
    "llama": llama(2),
    "llama tied": llama(2, tied=True),
    "plain two-matrix rotary": replace(llama(2), gated=False, rms_norm=False, mlp_bias=True),
    "side by side": replace(gpt(2), parallel_block=True),
    "side by side, a norm each": replace(llama(2), parallel_block=True, parallel_norms=True),
    "latents": replace(llama(2, kv_heads=4), q_lora_rank=6, kv_lora_rank=5, qk_rope_head_dim=2, v_head_dim=3),
    "a latent of keys": replace(llama(2, kv_heads=4), kv_lora_rank=5, qk_rope_head_dim=2, v_head_dim=6),
    "a sliding window": replace(llama(2), window=3, num_window_layers=1),
    "gated with biases": replace(llama(2), qkv_bias=True, output_bias=True, mlp_bias=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_by_finite_differences(name):
    model = MODELS[name]
    task = Task(model=model, rows=plain_rows(), micro_batches=1, dtype=np.float64)
    tokens = data(model)[:4]
    rng = np.random.default_rng(1)

    def program(communicator):
        worker = loud(Worker(communicator, task, SGD()))
        batch = batch_of(task, 0, tokens)
        worker.gradients(batch)
        units = worker.store.units
        exact_of = {u.name: worker.store.gradients(u) for u in units.values()}  # each step makes new arrays
        for unit in units.values():
            analytic = exact_of[unit.name]
            for key, values in worker.store.parameters(unit).items():
                direction = rng.normal(size=values.shape)
                direction /= np.sqrt((direction**2).mean())
                start = values.copy()

                def loss(step, values=values, start=start, direction=direction):
                    values[...] = start + step * direction
                    return worker.gradients(batch)

                h = 5e-5  # fourth order: the error is of order h^4
                slope = (8 * (loss(h) - loss(-h)) - (loss(2 * h) - loss(-2 * h))) / (12 * h)
                values[...] = start
                exact = (analytic[key] * direction).sum()
                scale = np.linalg.norm(analytic[key]) * np.linalg.norm(direction)
                assert abs(slope - exact) < 1e-7 * scale, f"{unit.name}.{key}: {slope} against {exact}"

    run_serial(np, 1, program)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_that_the_planner_counts(name):
    model = MODELS[name]
    task = Task(model=model, rows=plain_rows(), micro_batches=1)
    held = run_serial(np, 1, lambda c: sum(u.num_elements(1) for u in Worker(c, task, SGD()).store.units.values()))
    assert held == [counts.total_params(model)]


@pytest.mark.parametrize("window", [1, 2, 5, 9, 12, ALL])
def test_blocked_attention_equals_the_whole_matrix_and_its_gradient(window):
    rng = np.random.default_rng(0)
    q = rng.normal(size=(2, 2, 3, 10, 4))
    k, v = rng.normal(size=(2, 2, 2, 12, 4))
    dout = rng.normal(size=q.shape)
    scores = np.einsum("bgrsd,bgtd->bgrst", q, k) / 2.0
    behind = np.arange(10)[:, None] + 2 - np.arange(12)[None, :]
    scores[..., (behind < 0) | (behind >= window)] = -np.inf
    p = np.exp(scores)
    p /= p.sum(axis=-1, keepdims=True)
    results = []
    for block in (3, 4, 100):
        out, log = attend(np, q, k, v, block, window)
        dk, dv = np.zeros_like(k), np.zeros_like(v)
        dq = attend_gradient(np, dout, q, k, v, out, log, dk, dv, block, window)
        results.append((out, dq, dk, dv))
        np.testing.assert_allclose(out, np.einsum("bgrst,bgtd->bgrsd", p, v), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(dv, np.einsum("bgrst,bgrsd->bgtd", p, dout), rtol=1e-12, atol=1e-13)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


def test_attention_memory_grows_with_tokens_not_their_square():
    import tracemalloc

    peaks = []
    for s in (512, 1024):
        q = np.zeros((1, 1, 1, s, 8), dtype=np.float32)
        tracemalloc.start()
        attend(np, q, q[:, :, 0], q[:, :, 0])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2.5 * peaks[0]


def test_recomputing_keeps_less():
    model = gpt(2)
    peaks = []
    for recompute in (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL):
        task = Task(model=model, rows=plain_rows(), micro_batches=1, recompute=recompute)

        def program(communicator, task=task):
            worker = Worker(communicator, task, SGD())
            worker.gradients(batch_of(task, 0, data(model)))
            return worker.executor.live.peak_bytes

        peaks += run_serial(np, 1, program)
    none, selective, full = peaks
    tokens = 16 * 8 * 4  # sequences, tokens, bytes of float32
    assert none - selective == 2 * tokens * (model.hidden + model.num_heads)  # attention's output and row sums
    assert full < selective / 2


def test_fine_recomputation_is_refused():
    task = Task(model=gpt(2), rows=plain_rows(), micro_batches=1, recompute=Recompute.FINE)
    with pytest.raises(InputError, match="recompute is fine; allowed: none, selective, full"):
        check_task(task)
