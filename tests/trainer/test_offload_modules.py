"""What modules of each layer keep, in host memory: gradients of plain training, bytes over the link, what stays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.base.errors import LayoutError
from planner.choices.offload import MODULES
from planner.layouts import Recompute
from planner.schedules import SCHEDULES
from planner.schedules.base import Pipeline
from tests.trainer.helpers import data, run
from tests.trainer.test_offload_layers import WAYS, assert_plain, peaks_and_bytes
from tests.trainer.test_parallel import MODELS, task_of

SPARSE = sorted(name for name, model in MODELS.items() if model.num_experts)


@given(
    modules=st.sets(st.sampled_from(MODULES), min_size=1),
    recompute=st.sampled_from([Recompute.NONE, Recompute.SELECTIVE]),
    **WAYS,
)
@settings(max_examples=60, deadline=None)
def test_gradients_are_those_of_plain_training(modules, **way):
    assert_plain(**way, offload_modules=tuple(sorted(modules)))


@pytest.mark.parametrize(("name", "pipe"), [("1f1b", Pipeline(p=2, m=4)), ("interleaved", Pipeline(p=2, m=4, v=2))])
def test_bytes_of_modules_add_up_to_those_of_layers(name, pipe):
    """All modules of a dense layer but its MLP's product, which none of them keeps; each alone, and together."""
    task = task_of("llama", name, pipe)
    layers = peaks_and_bytes(replace(task, offload_layers=9))[1]
    each = [peaks_and_bytes(replace(task, offload_modules=(m,)))[1] for m in ("attn_norm", "core_attn", "mlp_norm")]
    held, out, back = peaks_and_bytes(replace(task, offload_modules=("attn_norm", "core_attn", "mlp_norm")))
    assert (out > 0).all()
    assert out.tolist() == back.tolist() == np.sum(each, axis=0).tolist()
    assert (out < layers).all()
    assert (held < peaks_and_bytes(task)[0]).all()
    assert peaks_and_bytes(replace(task, offload_modules=("moe_act", "expert_fc1")))[1].tolist() == [0, 0]


@pytest.mark.parametrize("model", SPARSE)
def test_experts_modules_send_their_copies(model):
    task = task_of(model, "1f1b", Pipeline(p=1, m=2))
    shape, tokens = task.model, task.model.seq_len  # a micro-batch is a sequence here
    sent = [peaks_and_bytes(replace(task, offload_modules=(m,)))[1][0] for m in ("expert_fc1", "moe_act")]
    moved = shape.num_layers - 1 - shape.num_dense_layers
    copies = tokens * shape.top_k * moved
    size = np.dtype(task.dtype).itemsize
    width = shape.moe_ffn * (2 if shape.gated else 1)
    assert sent[0] % (copies * shape.hidden * size) == 0
    assert sent[1] % (copies * width * size) == 0
    assert sent[0] // (copies * shape.hidden * size) == sent[1] // (copies * width * size) > 0


@pytest.mark.parametrize(
    ("name", "pipe", "way", "said"),
    [
        ("zb-h1", Pipeline(p=2, m=4), {}, "offload_modules excludes sequence slices and a split backward pass"),
        ("seq1f1b", Pipeline(p=2, m=4, k=2), {}, "offload_modules excludes sequence slices"),
        ("1f1b", Pipeline(p=2, m=4), {"recompute": Recompute.FULL}, "offload_modules is core_attn; the trainer needs"),
        ("1f1b", Pipeline(p=2, m=4), {"offload_layers": 1}, "offload_modules is core_attn; the trainer needs"),
    ],
)
def test_what_it_excludes_is_named(name, pipe, way, said):
    assert name in SCHEDULES
    with pytest.raises(LayoutError, match=said):
        run(task_of("gpt", name, pipe, offload_modules=("core_attn",), **way), data(MODELS["gpt"]))
