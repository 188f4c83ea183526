"""Every way of sharing the work computes the loss and gradients of plain single-process training, to 1e-10."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.layouts import Recompute
from planner.models import Transformer
from planner.schedules import SCHEDULES
from planner.schedules.base import Pipeline
from planner.trainer.task import Task
from tests.trainer.helpers import Outcome, assert_same, data, gpt, llama, plain_rows, run

MODELS = {"gpt": gpt(8), "llama": llama(8)}
SYNCHRONOUS = sorted(name for name, s in SCHEDULES.items() if s.synchronous)


@cache
def plain(name: str) -> Outcome:
    task = Task(model=MODELS[name], rows=plain_rows(), micro_batches=1, dtype=np.float64)
    return run(task, data(MODELS[name]))


def pipeline_of(name: str, p: int, m: int) -> Pipeline | None:
    """The smallest legal pipeline of a schedule on p ranks."""
    schedule = SCHEDULES[name]
    for v in (1, 2, 4, 8):
        for k in (1, 2):
            pipe = Pipeline(p=p, m=m, v=v, k=k)
            if p * v <= 8 and not any(np.any(rule.broken) for rule in schedule.rules(pipe)):
                return pipe
    return None


def task_of(model: str, name: str, pipe: Pipeline, **choices) -> Task:
    bounds = tuple(range(0, 8 + 1, 8 // pipe.k))
    schedule = SCHEDULES[name]
    return Task(
        model=MODELS[model],
        rows=schedule.order(pipe).rows(),
        micro_batches=pipe.m,
        bounds=bounds,
        dtype=np.float64,
        layer_at_a_time=schedule.layer_at_a_time,
        **choices,
    )


SIZES = [(1, 4), (2, 2), (2, 4), (4, 4), (4, 8)]
PIPELINES = [(n, pipe) for n in SYNCHRONOUS for p, m in SIZES if (pipe := pipeline_of(n, p, m)) is not None]


@cache
def outcome(name: str, pipe: Pipeline) -> Outcome:
    return run(task_of("llama", name, pipe), data(MODELS["llama"]))


def test_every_synchronous_schedule_is_among_the_pipelines():
    assert {name for name, _ in PIPELINES} == set(SYNCHRONOUS)


@pytest.mark.parametrize(("name", "pipe"), PIPELINES, ids=lambda x: x if isinstance(x, str) else f"p{x.p}m{x.m}")
def test_every_synchronous_schedule(name, pipe):
    assert_same(outcome(name, pipe), plain("llama"))


CHOICES = [
    {"dp": 2},
    {"tp": 2},
    {"tp": 2, "sequence_parallel": True},
    {"dp": 2, "zero": 1},
    {"dp": 2, "zero": 2},
    {"dp": 2, "zero": 3},
    {"dp": 4, "zero": 1, "dp_replicate": 2},
    {"dp": 4, "zero": 2, "dp_replicate": 2},
    {"dp": 4, "zero": 3, "dp_replicate": 2},
    {"dp": 4, "tp": 2, "zero": 3, "dp_replicate": 2, "sequence_parallel": True},
    {"dp": 2, "tp": 2, "zero": 3, "sequence_parallel": True, "recompute": Recompute.FULL},
    {"dp": 2, "tp": 2, "zero": 1, "sequence_parallel": True, "recompute": Recompute.SELECTIVE},
    {"tp": 2, "recompute": Recompute.FULL},
]


@pytest.mark.parametrize("choices", CHOICES, ids=str)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("p", [1, 2])
def test_every_way_of_sharing_under_1f1b(choices, model, p):
    found = run(task_of(model, "1f1b", Pipeline(p=p, m=4), **choices), data(MODELS[model]))
    assert_same(found, plain(model))


@st.composite
def models(draw: st.DrawFn, tp: int, slices: int, shared: int = 1) -> Transformer:
    """Small shapes of every kind that the trainer has layers for, sizes that tp divides; shared: ranks of a table."""
    kv_heads = tp * draw(st.integers(1, 2))
    heads, head_dim = kv_heads * draw(st.integers(1, 3)), 2 * draw(st.integers(1, 4))
    layers, seq_len = draw(st.integers(1, 9)), slices * tp * draw(st.integers(1, 4))
    rotary = draw(st.booleans())
    flags = ("gated", "rms_norm", "tied", "qkv_bias", "output_bias", "mlp_bias", "parallel_block")
    drawn = {flag: draw(st.booleans()) for flag in flags}
    return Transformer(
        name="random",
        family="gpt",
        num_layers=layers,
        num_dense_layers=layers,
        hidden=draw(st.integers(4, 24)),
        ffn=tp * draw(st.integers(1, 12)),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=tp * shared * draw(st.integers(4, 20)),
        seq_len=seq_len,
        rotary=rotary,
        max_positions=0 if rotary else seq_len + draw(st.integers(0, 2)),
        parallel_norms=drawn["parallel_block"] and draw(st.booleans()),
        **drawn,
    )


@given(
    drawn=st.data(),
    name=st.sampled_from(SYNCHRONOUS),
    degrees=st.sampled_from([(2, 1, 2), (1, 2, 2), (2, 2, 2), (1, 1, 4), (2, 1, 4), (1, 2, 4), (1, 1, 8), (2, 2, 1)]),
    m=st.sampled_from([2, 4, 8]),
    zero=st.integers(0, 3),
    sequence_parallel=st.booleans(),
    recompute=st.sampled_from([Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL]),
)
@settings(max_examples=60, deadline=None)
def test_products_of_all_choices(drawn, name, degrees, m, zero, sequence_parallel, recompute):
    dp, tp, p = degrees
    pipe = pipeline_of(name, p, m)
    if pipe is None:
        return
    model = drawn.draw(models(tp, pipe.k, p if SCHEDULES[name].barriers else 1))
    schedule, k = SCHEDULES[name], pipe.k
    task = Task(
        model=model,
        rows=schedule.order(pipe).rows(),
        micro_batches=m,
        dp=dp,
        tp=tp,
        zero=zero,
        recompute=recompute,
        sequence_parallel=sequence_parallel,
        bounds=tuple(model.seq_len * i // k for i in range(k + 1)),
        dtype=np.float64,
        layer_at_a_time=schedule.layer_at_a_time,
    )
    alone = Task(model=model, rows=plain_rows(), micro_batches=1, dtype=np.float64)
    assert_same(run(task, data(model)), run(alone, data(model)))


def test_a_step_changes_parameters_alike_under_every_zero():
    model = MODELS["gpt"]
    alone = run(Task(model=model, rows=plain_rows(), micro_batches=1, dtype=np.float64, clip=0.5), data(model), steps=3)
    for zero in range(4):
        pipe = Pipeline(p=2, m=2)
        task = task_of("gpt", "1f1b", pipe, dp=2, tp=2, zero=zero, sequence_parallel=True, clip=0.5)
        shared = run(task, data(model), steps=3)
        for name, value in alone.parameters.items():
            np.testing.assert_allclose(shared.parameters[name], value, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("name", ["seq1f1b", "terapipe", "seq1f1b-interleaved", "seq1f1b-zb"])
@pytest.mark.parametrize("bounds", [(0, 5, 8), (0, 2, 8), (0, 6, 8)])
def test_slices_of_unequal_lengths(name, bounds):
    pipe = Pipeline(p=2, m=4, k=2, v=2 if name == "seq1f1b-interleaved" else 1)
    assert_same(run(replace(task_of("llama", name, pipe), bounds=bounds), data(MODELS["llama"])), plain("llama"))
