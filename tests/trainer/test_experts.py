"""Experts on any ranks give plain training's gradients; plain training's are those of finite differences."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.base.errors import InputError, LayoutError
from planner.layouts import Recompute
from planner.schedules import SCHEDULES
from planner.schedules.base import Pipeline
from planner.trainer.optimizers import SGD
from planner.trainer.serial import run_serial
from planner.trainer.task import Task, check_task
from planner.trainer.worker import Worker
from tests.trainer.helpers import SEQUENCES, assert_same, batch_of, data, llama, loud, plain_rows, run

MIXTURE = replace(llama(2, kv_heads=4), num_experts=4, top_k=2, moe_ffn=12, num_dense_layers=0)
MODELS = {
    "gated": MIXTURE,
    "dense first": replace(MIXTURE, num_dense_layers=1),
    "switch": replace(MIXTURE, gated=False, top_k=1),
    "shared": replace(MIXTURE, num_shared_experts=2, router="softmax-first 1.5"),
    "sigmoids": replace(MIXTURE, num_shared_experts=1, router="sigmoid 2.5", gated=False, mlp_bias=True),
    "first": replace(MIXTURE, top_k=1, router="sigmoid-first"),
    "groups": replace(MIXTURE, num_experts=8, expert_groups=4, top_k_groups=2, router="sigmoid"),
}
WAYS = [
    {"dp": 2},
    {"dp": 2, "ep": 2},
    {"dp": 4, "ep": 2},
    {"dp": 4, "ep": 4, "zero": 2},
    {"dp": 4, "ep": 2, "zero": 3},
    {"dp": 4, "ep": 2, "zero": 1, "dp_replicate": 2},
    {"dp": 2, "ep": 2, "zero": 1, "recompute": Recompute.FULL},
    {"cp": 2, "ep": 2},
    {"cp": 2, "dp": 2, "ep": 4, "ulysses": 2},
    {"dp": 2, "tp": 2, "ep": 4, "sequence_parallel": True, "zero": 1},
    {"dp": 2, "tp": 2, "ep": 1, "sequence_parallel": True, "recompute": Recompute.SELECTIVE},
]


@cache
def plain(name: str):
    task = Task(model=MODELS[name], rows=plain_rows(), micro_batches=1, dtype=np.float64)
    return run(task, data(MODELS[name]))


def task_of(name: str, schedule: str, pipe: Pipeline, **choices) -> Task:
    rows = SCHEDULES[schedule].order(pipe).rows()
    return Task(model=MODELS[name], rows=rows, micro_batches=pipe.m, dtype=np.float64, **choices)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_plain_training(name, way):
    found = run(task_of(name, "1f1b", Pipeline(p=1, m=2), **way), data(MODELS[name]))
    assert_same(found, plain(name))


@settings(max_examples=25, deadline=None)
@given(drawn=st.data())
def test_with_every_other_choice(drawn):
    way = drawn.draw(st.sampled_from([w for w in WAYS if "recompute" not in w]))
    schedule, p, v = drawn.draw(
        st.sampled_from([("gpipe", 2, 1), ("1f1b", 2, 1), ("zb-h1", 2, 1), ("zb-v", 1, 2), ("breadth-first", 1, 2)])
    )
    kinds = [Recompute.NONE, Recompute.SELECTIVE] + [Recompute.FULL] * (not schedule.startswith("zb"))
    name = drawn.draw(st.sampled_from(sorted(MODELS)))
    task = task_of(name, schedule, Pipeline(p=p, m=4, v=v), recompute=drawn.draw(st.sampled_from(kinds)), **way)
    assert_same(run(task, data(MODELS[name])), plain(name))


def loss_and_gradients(task: Task, change: tuple[str, int, float] | None = None) -> tuple[float, dict]:
    """Plain training's loss and flat gradients, one parameter changed."""

    def program(communicator):
        worker = loud(Worker(communicator, task, SGD()))
        if change is not None:
            worker.store._parameters[change[0]][change[1]] += change[2]
        loss = worker.gradients(batch_of(task, 0, data(task.model)))
        return loss, {name: worker.store.owned(name)[1].copy() for name in worker.store.units}

    return run_serial(np, 1, program)[0]


@pytest.mark.parametrize("name", MODELS)
def test_plain_gradients_are_finite_differences(name):
    task = Task(model=MODELS[name], rows=plain_rows(), micro_batches=1, dtype=np.float64, balance=0.0)
    _, gradients = loss_and_gradients(task)
    generator, step = np.random.default_rng(1), 1e-6
    for unit, gradient in gradients.items():
        if not unit.startswith(("experts", "layer")):
            continue
        for i in generator.choice(len(gradient), 6, replace=False):
            ends = [loss_and_gradients(task, (unit, i, sign * step))[0] for sign in (1, -1)]
            assert gradient[i] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-8), (unit, i)


def test_the_balance_loss_moves_the_router_as_its_definition_says():
    # One layer, so that the router's input does not depend on the router: the two gradients differ by the loss's own,
    # weight * mean over sequences of sum_e f_e P_e, f_e = E / (k S) times an expert's copies, P_e its mean probability.
    model = replace(MIXTURE, num_layers=1, seq_len=8)
    with_it, without = (
        loss_and_gradients(Task(model=model, rows=plain_rows(), micro_batches=1, dtype=np.float64, balance=b))[1]
        for b in (0.25, 0.0)
    )
    seen: dict = {}

    def program(communicator):
        import planner.trainer.experts as sparse_block

        worker = loud(
            Worker(communicator, Task(model=model, rows=plain_rows(), micro_batches=1, dtype=np.float64), SGD())
        )
        forward = sparse_block.experts_forward

        def spy(ranks, m, p, x):
            seen.update(x=x, router=p["router"].copy())
            return forward(ranks, m, p, x)

        sparse_block.experts_forward = spy
        try:
            worker.gradients(batch_of(worker.task, 0, data(model)))
        finally:
            sparse_block.experts_forward = forward

    run_serial(np, 1, program)

    def balance(router):
        logits = seen["x"] @ router
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        top = np.argsort(-(seen["x"] @ seen["router"]), axis=-1)[..., : model.top_k]
        f = np.stack([(top == e).sum(axis=(1, 2)) for e in range(model.num_experts)], axis=-1)
        f = f * model.num_experts / (model.top_k * model.seq_len)
        return 0.25 * (f * p.mean(axis=1)).sum() / SEQUENCES

    shape, step = seen["router"].shape, 1e-6
    difference = np.concatenate([(with_it[n] - without[n]).ravel() for n in with_it if n.startswith("layer")])
    expected = np.zeros(shape)
    for at in np.ndindex(shape):
        moved = np.zeros(shape)
        moved[at] = step
        expected[at] = (balance(seen["router"] + moved) - balance(seen["router"] - moved)) / (2 * step)
    places = np.lib.stride_tricks.sliding_window_view(difference, expected.size)  # the router's lies somewhere inside
    assert np.abs(places - expected.ravel()).max(axis=1).min() < 1e-8 * max(1.0, np.abs(expected).max())
    assert np.abs(expected).max() > 1e-4


def test_every_copy_that_leaves_its_rank_is_sent_and_no_other():
    # All-to-all of k copies each way, forward and backward, but for those whose expert is at home.
    way = {"dp": 2, "ep": 2}
    outcome = run(task_of("gated", "1f1b", Pipeline(p=1, m=2), **way), data(MIXTURE))
    copies = SEQUENCES * MIXTURE.seq_len * MIXTURE.top_k
    sent = sum(
        size
        for traffic in outcome.traffic
        for (group, what), size in traffic.items()
        if (group, what) == ("ep", "send")
    )
    whole = MIXTURE.num_layers * 4 * copies * MIXTURE.hidden * 8
    row = MIXTURE.hidden * 8
    assert sent % row == 0
    assert 0.2 * whole < sent < 0.8 * whole  # half at balance


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"dp": 2, "ep": 3}, "ep is 3; allowed: a divisor of the 4 experts and of tp \\* cp \\* dp 2"),
        ({"tp": 2}, "tp is 2 with experts; the trainer then needs sequence parallelism"),
        ({"bounds": (0, 4, 8)}, "2 sequence slices with experts"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(choices, message):
    with pytest.raises(LayoutError, match=message):
        check_task(task_of("gated", "1f1b", Pipeline(p=1, m=2), **choices))


def test_experts_with_biases_are_refused():
    with pytest.raises(InputError, match="experts with biases"):
        check_task(Task(model=replace(MIXTURE, expert_bias=True), rows=plain_rows(), micro_batches=1))


PICKS = [
    {"tp": 2, "ep": 2},
    {"tp": 4, "ep": 4},
    {"tp": 2, "ep": 2, "dp": 2, "zero": 1, "recompute": Recompute.FULL},
    {"tp": 2, "ep": 2, "dp": 2, "zero": 3},
    {"tp": 2, "ep": 2, "cp": 2},
]


@pytest.mark.parametrize("way", PICKS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_tensor_ranks_that_pick_tokens_give_plain_gradients(name, way):
    """PPMoE (Chen et al. 2023, arXiv 2304.11414)."""
    for schedule, pipe in (("1f1b", Pipeline(p=1, m=2)), ("zb-h1", Pipeline(p=2, m=2))):
        if schedule == "zb-h1" and way.get("recompute") == Recompute.FULL:
            continue
        found = run(task_of(name, schedule, pipe, picks=True, **way), data(MODELS[name]))
        assert_same(found, plain(name))


def test_picked_tokens_are_summed_and_not_sent():
    """A layer's hidden states forward and backward, b s h each, and backward a number for each copy of a token."""
    found = run(task_of("gated", "1f1b", Pipeline(p=1, m=2), tp=2, ep=2, picks=True), data(MIXTURE))
    tokens, layers = SEQUENCES * MIXTURE.seq_len, MIXTURE.num_layers
    for traffic in found.traffic:
        assert {operation for group, operation in traffic if group == "ep"} == {"all_reduce"}
        # Of two ranks a ring's all-reduce sends the array once.
        assert traffic["ep", "all_reduce"] == 8 * layers * tokens * (2 * MIXTURE.hidden + MIXTURE.top_k)
    with pytest.raises(LayoutError, match="ep is 1 where tensor ranks pick tokens; allowed: tp 2"):
        check_task(task_of("gated", "1f1b", Pipeline(p=1, m=2), tp=2, ep=1, picks=True))
