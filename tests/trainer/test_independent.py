"""The loss curve of a few steps against another implementation: a plain forward pass, differentiated by autograd."""

from __future__ import annotations

import numpy as np
import pytest

from planner.schedules.base import Pipeline
from planner.trainer.optimizers import Adam
from planner.trainer.serial import run_serial
from planner.trainer.task import Task
from planner.trainer.worker import Worker
from tests.trainer.helpers import batch_of, data, gpt, llama, loud, plain_rows
from tests.trainer.mpi_towers import MODEL, PATCHES, SMALL, TOWER, TURNED, task_of, tower_of, worker_of

autograd = pytest.importorskip("autograd", reason="needs autograd: pip install autograd")
ag = pytest.importorskip("autograd.numpy")
pytestmark = pytest.mark.extra


def norm(p, name, x, rms):
    if not rms:
        x = x - ag.mean(x, axis=-1, keepdims=True)
    x = x / ag.sqrt(ag.mean(x**2, axis=-1, keepdims=True) + 1e-5) * p[f"{name}.gain"]
    return x if rms else x + p[f"{name}.shift"]


def turned(x, positions):
    """Rotary positions as complex numbers: the two halves are real and imaginary part."""
    half = x.shape[-1] // 2
    angle = positions[:, None] / 10000.0 ** (ag.arange(half) / half)
    re, im, c, s = x[..., :half], x[..., half:], ag.cos(angle), ag.sin(angle)
    return ag.concatenate([re * c - im * s, re * s + im * c], axis=-1)


def attention(model, p, x, masked=True):
    """Every head on its own, the whole score matrix, a mask of minus infinity's stand-in."""
    d, r = model.head_dim, model.num_heads // model.num_kv_heads
    s = x.shape[1]
    out = 0.0
    for g in range(model.num_kv_heads):
        w = p["qkv"][:, g]
        qkv = ag.dot(x, w) + (p["qkv.bias"][g] if model.qkv_bias else 0.0)
        k, v = qkv[..., r * d : (r + 1) * d], qkv[..., (r + 1) * d :]
        if model.rotary:
            k = turned(k, ag.arange(s))
        for h in range(r):
            q = qkv[..., h * d : (h + 1) * d]
            if model.rotary:
                q = turned(q, ag.arange(s))
            scores = ag.einsum("bsd,btd->bst", q, k) / d**0.5 + masked * ag.triu(ag.full((s, s), -1e9), 1)
            e = ag.exp(scores - ag.max(scores, axis=-1, keepdims=True))
            head = ag.einsum("bst,btd->bsd", e / ag.sum(e, axis=-1, keepdims=True), v)
            out = out + ag.dot(head, p["out"][g, h * d : (h + 1) * d])
    return out + (p["out.bias"] if model.output_bias else 0.0)


def mlp(model, p, x):
    bias, last = (p["up.bias"], p["down.bias"]) if model.mlp_bias else (0.0, 0.0)
    if model.gated:
        gate, up = ag.dot(x, p["up"][:, 0]), ag.dot(x, p["up"][:, 1])
        inner = gate / (1.0 + ag.exp(-gate)) * up
    else:
        x = ag.dot(x, p["up"]) + bias
        inner = 0.5 * x * (1.0 + ag.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    return ag.dot(inner, p["down"]) + last


def states(units, model, x, masked=True):
    if model.max_positions:
        x = x + units["positions"]["positions"][: x.shape[1]]
    for i in range(model.num_layers):
        p = units[f"layer{i}"]
        x = x + attention(model, p, norm(p, "norm1", x, model.rms_norm), masked)
        x = x + mlp(model, p, norm(p, "norm2", x, model.rms_norm))
    return norm(units["norm"], "norm", x, model.rms_norm)


def loss(units, model, tokens):
    return loss_of(units, model, units["tokens"]["tokens"][tokens[:, :-1]], tokens[:, 1:])


def loss_of(units, model, x, targets):
    table = units["tokens"]["tokens"] if model.tied else units["head"]["head"]
    logits = ag.dot(states(units, model, x), table.T)
    top = ag.max(logits, axis=-1, keepdims=True)
    log_p = logits - top - ag.log(ag.sum(ag.exp(logits - top), axis=-1, keepdims=True))
    one_hot = np.eye(model.vocab)[targets]
    return -ag.sum(log_p * one_hot) / targets.size


def towers_loss(both, model, tower, tokens, patches):
    """A tower's outputs in place of the first embeddings of each sequence."""
    units, of_tower = both
    images = states(of_tower, tower, of_tower["tokens"]["tokens"][patches], not tower.bidirectional)
    images = ag.dot(images, of_tower["projection"]["projection"])
    images = ag.reshape(images, (len(tokens), -1, model.hidden))
    words = units["tokens"]["tokens"][tokens[:, images.shape[1] : -1]]
    return loss_of(units, model, ag.concatenate([images, words], axis=1), tokens[:, 1:])


def parameters_of(worker):
    return {n: {k: v.copy() for k, v in worker.store.parameters(u).items()} for n, u in worker.store.units.items()}


def adamw(w, g, m, v, t):
    """Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019, algorithm 2, on matrices only."""
    m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g**2
    step = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-8)
    return m, v, step


@pytest.mark.parametrize("model", [gpt(2), gpt(2, kv_heads=2, tied=False), llama(2), llama(2, tied=True)])
def test_loss_curve(model):
    tokens = data(model)[:4]
    task = Task(model=model, rows=plain_rows(), micro_batches=1, dtype=np.float64)
    no_decay = (".gain", ".shift", ".bias")

    def program(communicator):
        worker = loud(Worker(communicator, task, Adam(learning_rate=0.01, weight_decay=0.1)))
        return parameters_of(worker), [worker.step(batch_of(task, 0, tokens)) for _ in range(5)]

    [(units, found)] = run_serial(np, 1, program)
    moments = {n: dict.fromkeys(unit, (0.0, 0.0)) for n, unit in units.items()}
    expected = []
    for t in range(1, 6):
        value, gradients = autograd.value_and_grad(loss)(units, model, tokens)
        expected.append(float(value))
        for n, unit in units.items():
            for k in unit:
                m, v, step = adamw(unit[k], gradients[n][k], *moments[n][k], t)
                moments[n][k] = m, v
                decay = 0.0 if k.endswith(no_decay) else 0.1
                unit[k] = unit[k] * (1 - 0.01 * decay) - 0.01 * step
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert found[-1] < found[0]


@pytest.mark.parametrize("tower", [TOWER, TURNED, SMALL])
@pytest.mark.parametrize("model", [MODEL, gpt(2)])
def test_gradients_of_a_tower_and_its_model(model, tower):
    def program(communicator):
        worker, batch = worker_of(communicator, task_of("1f1b", Pipeline(p=1, m=1), model), tower_of(1, tower))
        both = parameters_of(worker), parameters_of(worker.tower)
        return both, worker.gradients(batch), worker.whole()

    [(both, found, whole)] = run_serial(np, 1, program)
    expected, gradients = autograd.value_and_grad(towers_loss)(
        both, model, tower, data(model), PATCHES.reshape(-1, tower.seq_len)
    )
    assert found == pytest.approx(expected, rel=1e-12)
    named = [(f"{at}{n}.{k}", g) for at, units in zip(("", "tower."), gradients, strict=True)
             for n, unit in units.items() for k, g in unit.items()]  # fmt: skip
    assert {name for name, _ in named} == set(whole)
    for name, gradient in named:
        assert np.abs(whole[name] - gradient).max() <= 1e-10 * np.abs(gradient).max(), name
