"""Attention and MLP side by side: gradients of plain training however the work is shared; bytes as the cost model's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.layouts import Recompute
from planner.schedules.base import Pipeline
from planner.trainer.task import Task
from tests.trainer.helpers import SEQUENCES, assert_same, data, gpt, llama, plain_rows, run
from tests.trainer.test_cost_model_bytes import LAYERS, charged, fp32, sent
from tests.trainer.test_parallel import task_of

MODELS = {
    "gpt, one norm": replace(gpt(8, kv_heads=4), parallel_block=True),
    "llama, a norm each": replace(llama(8), num_kv_heads=4, parallel_block=True, parallel_norms=True),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("schedule", "pipe", "choices"),
    [
        ("1f1b", Pipeline(p=2, m=4), {"tp": 2}),
        ("1f1b", Pipeline(p=1, m=2), {"tp": 2, "sequence_parallel": True, "recompute": Recompute.FULL}),
        ("zb-h1", Pipeline(p=2, m=4), {"tp": 2, "sequence_parallel": True, "recompute": Recompute.SELECTIVE}),
        ("seq1f1b", Pipeline(p=2, m=4, k=2), {"dp": 2, "zero": 3}),
        ("1f1b", Pipeline(p=1, m=2), {"cp": 2, "ulysses": 2}),
    ],
)
def test_gradients_are_those_of_plain_training(name, schedule, pipe, choices):
    model = MODELS[name]
    alone = Task(model=model, rows=plain_rows(), micro_batches=1, dtype=np.float64)
    shared = replace(task_of("llama", schedule, pipe, **choices), model=model)
    assert_same(run(shared, data(model)), run(alone, data(model)))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tensor_parallel_bytes_are_the_cost_model_s(name, sequence_parallel):
    model, tp, m = MODELS[name], 2, 4
    task = replace(
        task_of("llama", "1f1b", Pipeline(p=1, m=m), tp=tp, sequence_parallel=sequence_parallel), model=model
    )
    t = charged(model, tp=tp, micro_batch=SEQUENCES // m, zero=0, sequence_parallel=sequence_parallel).traffic
    layers = m * LAYERS * float(t.layer_forward_s[0] + t.layer_backward_s[0])
    norms = 2 if model.parallel_norms else 1
    hidden = SEQUENCES * model.seq_len * model.hidden * 4 * (tp - 1) // tp
    # All-reduces of two parts each; or gathers and scatters, a gather and a scatter for each norm and each sum.
    passes = 2 * (norms + 1) if sequence_parallel else 2 * (1 + norms)
    assert layers == passes * LAYERS * hidden
    for rank in sent(fp32(task)):
        total = sum(v for (group, _), v in rank.wire_bytes.items() if group == "tp")
        if not sequence_parallel:
            assert total == pytest.approx(layers + m * float(t.ends_s[0]))
        else:
            # Beyond the cost model: inputs of column products and of the head gathered again, and once a step the
            # gradients of norms, biases and positions, which every rank has whole.
            again = (norms * LAYERS + 1) * hidden
            per_norm = model.hidden * (1 if model.rms_norm else 2)
            biases = 2 * LAYERS * model.hidden if model.mlp_bias else 0
            whole = ((norms * LAYERS + 1) * per_norm + biases + model.max_positions * model.hidden) * 4
            assert total == pytest.approx(layers + m * float(t.ends_s[0]) + again + 2 * whole * (tp - 1) // tp)
