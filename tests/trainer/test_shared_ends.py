"""Embedding and head that all pipeline ranks share: gradients are plain training's, bytes those of the formulas."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest

from planner.base.errors import LayoutError
from planner.layouts import Recompute
from planner.schedules import SCHEDULES
from planner.schedules.base import Pipeline
from planner.trainer.task import Task
from tests.trainer.helpers import Outcome, assert_same, data, gpt, llama, plain_rows, run

NAMES = ("vocab-1", "vocab-2", "interlaced", "v-half-vocab-1", "v-half-vocab-2")
MODELS = {"untied": llama(4), "tied": gpt(4), "learned positions, untied": gpt(4, tied=False)}
WAYS = [
    {"tp": 2},
    {"tp": 2, "sequence_parallel": True, "recompute": Recompute.FULL},
    {"dp": 2, "zero": 0, "recompute": Recompute.SELECTIVE},
    {"dp": 2, "zero": 1},
    {"dp": 2, "zero": 2, "tp": 2},
    {"dp": 4, "zero": 3, "dp_replicate": 2},
    {"cp": 2, "zero": 1},
    {"cp": 2, "tp": 2, "sequence_parallel": True},
    {"offload_layers": 1},
    {"offload_fraction": 0.5, "dp": 2, "zero": 1},
]


@cache
def plain(model: str) -> Outcome:
    return run(Task(model=MODELS[model], rows=plain_rows(), micro_batches=1, dtype=np.float64), data(MODELS[model]))


def task(name: str, model: str, p: int, m: int, **choices) -> Task:
    rows = SCHEDULES[name].order(Pipeline(p=p, m=m, v=SCHEDULES[name].chunks)).rows()
    return Task(model=MODELS[model], rows=rows, micro_batches=m, dtype=np.float64, **choices)


@pytest.mark.parametrize(("name", "model", "p"), [*product(NAMES, MODELS, (2, 4))])
def test_gradients_are_those_of_plain_training(name, model, p):
    assert_same(run(task(name, model, p, 4), data(MODELS[model])), plain(model))


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(("name", "model"), [*product(NAMES, ("untied", "tied"))])
def test_gradients_with_every_other_choice(name, model, way):
    m = 2 if way.get("dp", 1) == 4 else 4
    assert_same(run(task(name, model, 2, m, **way), data(MODELS[model])), plain(model))


@pytest.mark.parametrize(("name", "p"), [*product(NAMES, (2, 4))])
def test_bytes_are_those_of_the_formulas(name, p):
    """Of each micro-batch four hidden states to or from all other ranks, as rings over p ranks pass, too: (p - 1) each.

    Embedding, last output, and both of their gradients; and three numbers a token from each rank to each other one.
    """
    m, model = 4, MODELS["untied"]
    found = run(task(name, "untied", p, m), data(model))
    sent = sum(size for traffic in found.traffic for (kind, _), size in traffic.items() if kind == "vocabulary")
    tokens = 16 * model.seq_len
    assert sent == 8 * tokens * (4 * (p - 1) * model.hidden + 3 * p * (p - 1))
    between = sum(size for traffic in found.traffic for (kind, _), size in traffic.items() if kind == "pp")
    assert between == 8 * tokens * 2 * SCHEDULES[name].chunks * (p - 1) * model.hidden
    known = float(SCHEDULES[name].messages(Pipeline(p=p, m=m)))  # of a rank between two others; the ends send to one
    assert between + sent - 8 * tokens * 3 * p * (p - 1) == pytest.approx(
        2 * 8 * tokens * model.hidden * (p * known - SCHEDULES[name].chunks), rel=1e-12
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_optimizer_steps_every_part_of_the_tables(name):
    stepped = run(task(name, "tied", 2, 4, clip=0.5), data(MODELS["tied"]), steps=2)
    alone = Task(model=MODELS["tied"], rows=plain_rows(), micro_batches=1, dtype=np.float64, clip=0.5)
    expected = run(alone, data(MODELS["tied"]), steps=2)
    for key, value in expected.parameters.items():
        np.testing.assert_allclose(stepped.parameters[key], value, rtol=0, atol=1e-12)


def test_a_vocabulary_that_ranks_cannot_share_is_named():
    odd = Task(
        model=MODELS["untied"].__class__(**(vars(MODELS["untied"]) | {"vocab": 26})),
        rows=SCHEDULES["vocab-1"].order(Pipeline(p=4, m=4)).rows(), micro_batches=4,
    )  # fmt: skip
    with pytest.raises(LayoutError, match="tp \\* pp is 4; vocabulary parallelism needs one that divides vocab 26"):
        run(odd, np.zeros((16, 9), dtype=np.int64))
