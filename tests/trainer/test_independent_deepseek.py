"""A small DeepSeek-V3 from its report's equations, a plain forward pass differentiated by autograd (arXiv 2412.19437).

Latent attention (1 to 11), experts with shared ones (12 to 16), groups of them (section 2.1.2), the balance loss of a
sequence (17 to 20), multi-token prediction (21 to 25). Not there: the bias that no gradient trains.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.trainer.task import Task
from tests.trainer.helpers import assert_same, data, gpt, llama, plain_rows, run
from tests.trainer.test_independent import attention, autograd, mlp, norm, turned

ag = pytest.importorskip("autograd.numpy")
pytestmark = pytest.mark.extra
BALANCE, WEIGHT = 0.125, 0.3

LATENT = replace(llama(3, kv_heads=4), q_lora_rank=6, kv_lora_rank=5, qk_rope_head_dim=2, v_head_dim=3)
ROUTED = {"num_experts": 8, "top_k": 3, "moe_ffn": 12, "num_dense_layers": 1, "num_shared_experts": 1}
MODELS = {
    "modules": replace(llama(2), num_mtp_layers=2),
    "modules, tied": replace(gpt(2), num_mtp_layers=2),
    "latents": replace(LATENT, num_mtp_layers=1),
    "softmax": replace(llama(2), **ROUTED | {"num_shared_experts": 2}),
    "groups": replace(llama(2), expert_groups=4, top_k_groups=2, router="sigmoid", **ROUTED),
    "deepseek": replace(
        LATENT, num_mtp_layers=1, expert_groups=4, top_k_groups=2, router="sigmoid 2.5", **ROUTED | {"top_k": 4}
    ),
    "deepseek with two modules": replace(LATENT, num_mtp_layers=2, router="sigmoid 2.5", **ROUTED),
}


def latent_attention(model, p, x):
    """Every head on its own."""
    turn, s = model.qk_rope_head_dim, x.shape[1]
    still, rank = model.head_dim - turn, model.kv_lora_rank
    low_q = norm(p, "q_norm", ag.dot(x, p["q_down"]), True)
    low = ag.dot(x, p["kv_down"])
    low_kv, one = norm(p, "kv_norm", low[..., :rank], True), turned(low[..., rank:], ag.arange(s))
    out = 0.0
    for h in range(model.num_heads):
        q, kv = ag.dot(low_q, p["q_up"][:, h]), ag.dot(low_kv, p["kv_up"][:, h])
        q = ag.concatenate([q[..., :still], turned(q[..., still:], ag.arange(s))], axis=-1)
        k = ag.concatenate([kv[..., :still], one], axis=-1)
        scores = ag.einsum("bsd,btd->bst", q, k) / model.head_dim**0.5 + ag.triu(ag.full((s, s), -1e9), 1)
        e = ag.exp(scores - ag.max(scores, axis=-1, keepdims=True))
        head = ag.einsum("bst,btd->bsd", e / ag.sum(e, axis=-1, keepdims=True), kv[..., still:])
        out = out + ag.dot(head, p["out"][h])
    return out


def chosen(model, scores):
    """1 for each token's experts, one token after another."""
    flat, out = scores.reshape(-1, model.num_experts), np.zeros(scores.shape).reshape(-1, model.num_experts)
    groups = max(model.expert_groups, 1)
    size = model.num_experts // groups
    for row, ones in zip(flat, out, strict=True):
        each = [list(range(g * size, (g + 1) * size)) for g in range(groups)]
        if groups > 1:
            many = model.top_k // model.top_k_groups
            each.sort(key=lambda experts: -sum(sorted(row[experts])[-many:]))
            each = each[: model.top_k_groups]
        ones[sorted((e for experts in each for e in experts), key=lambda e: -row[e])[: model.top_k]] = 1.0
    return out.reshape(scores.shape)


def experts(model, p, x, balances):
    """Every expert on every token, those that aren't chosen times 0; the balance loss joins those of other layers."""
    logits = ag.dot(x, p["router"])
    if "sigmoid" in model.router:
        scores = 1.0 / (1.0 + ag.exp(-logits))
    else:
        scores = ag.exp(logits) / ag.sum(ag.exp(logits), axis=-1, keepdims=True)
    ones = chosen(model, autograd.tracer.getval(scores))
    factor = float(model.router.split()[-1]) if model.router.endswith("5") else 1.0
    gates = factor * scores * ones / ag.sum(scores * ones, axis=-1, keepdims=True)
    y = mlp(model, p, x)
    for e in range(model.num_experts):
        up, down = p["experts.up"][e], p["experts.down"][e]
        gate = ag.dot(x, up[:, 0])
        y = y + gates[..., e : e + 1] * ag.dot(gate / (1.0 + ag.exp(-gate)) * ag.dot(x, up[:, 1]), down)
    share = ones.sum(axis=1) * model.num_experts / (model.top_k * x.shape[1])
    mean = ag.mean(scores / ag.sum(scores, axis=-1, keepdims=True), axis=1)
    balances.append(ag.sum(share * mean) / len(x))
    return y


def layer(model, p, x, balances):
    attends = latent_attention if model.kv_lora_rank else attention
    x = x + attends(model, p, norm(p, "norm1", x, model.rms_norm))
    inner = norm(p, "norm2", x, model.rms_norm)
    return x + (experts(model, p, inner, balances) if "router" in p else mlp(model, p, inner))


def entropy(table, x, targets, tokens):
    """The sum of the targets' losses, over all tokens of the batch."""
    logits = ag.dot(x, table.T)
    log_p = logits - ag.log(ag.sum(ag.exp(logits), axis=-1, keepdims=True))
    return -ag.sum(log_p * np.eye(len(table))[targets]) / tokens


def losses(units, model, text):
    """The head's loss, and that of all that is trained on."""
    inputs, s, balances, rms = text[:, :-1], model.seq_len, [], model.rms_norm
    layers = []
    for i in range(model.num_layers + model.num_mtp_layers):
        parts = [units[unit] for unit in (f"layer{i}", f"experts{i}") if unit in units]
        layers.append({key: part[key] for part in parts for key in part})
    embedding = units["tokens"]["tokens"]
    x = embedding[inputs]
    if model.max_positions:
        x = x + units["positions"]["positions"][:s]
    for p in layers[: model.num_layers]:
        x = layer(model, p, x, balances)
    table = embedding if model.tied else units["head"]["head"]
    main = entropy(table, norm(units["norm"], "norm", x, rms), text[:, 1:], inputs.size)
    modules = 0.0
    for k, p in enumerate(layers[model.num_layers :], 1):
        own, there = units[f"module{k - 1}"], s + 1 - k  # tokens that have one so far ahead
        zeros = np.zeros((len(text), s - there, model.hidden))
        ahead = ag.concatenate([embedding[text[:, k:]], zeros], axis=1)
        both = [norm(own, "state", x, rms), norm(own, "token", ahead, rms)]
        x = layer(model, p, ag.dot(ag.concatenate(both, axis=-1), own["join"]), balances)
        out = norm(units[f"module{k - 1}.norm"], "norm", x, rms)[:, : s - k]
        modules = modules + entropy(table, out, text[:, k + 1 :], inputs.size)
    trained = main + WEIGHT / max(model.num_mtp_layers, 1) * modules
    return main, trained + BALANCE * sum(balances)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_autograd_s(name):
    model = MODELS[name]
    task = Task(model=model, rows=plain_rows(), micro_batches=1, dtype=np.float64, balance=BALANCE, mtp_weight=WEIGHT)
    text = data(model)
    found, units = run(task, text), {}
    for whole, value in found.parameters.items():
        unit = whole.split(".")[0] + (".norm" if ".norm.norm" in whole else "")
        units.setdefault(unit, {})[whole.removeprefix(unit + ".")] = value
    gradients = autograd.grad(lambda u: losses(u, model, text)[1])(units)
    exact = {f"{unit}.{key}": g for unit, some in gradients.items() for key, g in some.items()}
    assert set(exact) == set(found.gradients)
    assert_same(found, found._replace(loss=float(losses(units, model, text)[0]), gradients=exact))
