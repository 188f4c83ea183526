"""Copies of sharded states, as the search lists them: one a node with ZeRO 3 where the framework can, or as asked."""

from dataclasses import replace

import numpy as np
import pytest

from planner.choices.table import CHOICES
from planner.costs.network.groups import nodes_of
from planner.costs.one_layer import one_layer
from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Precision
from planner.models import from_shape, load_model
from planner.search import Fixed, recommend
from planner.search.bounds import bounds
from planner.search.request import Request
from planner.search.scan import search
from planner.search.space import space, whole_space
from planner.setup import Setup
from planner.step.estimate import estimate, totals
from planner.step.legality import legal

CLUSTER, FSDP = load_cluster("aws-p4d"), load_framework("fsdp")
SMALL = from_shape(family="llama", layers=8, hidden=1024, ffn=2816, heads=16, kv_heads=8, vocab=32000, seq_len=2048)
ASKED = Request(
    gpus=32, global_batch=32, precision=Precision.BF16, attention=Attention.FLASH2, hybrid_sharding=True,
    fixed=Fixed(schedule=("1f1b", "breadth-first", "modular")),
)  # fmt: skip


def rows(layouts):
    columns = list(CHOICES)
    return [tuple(int(getattr(layouts, name)[i]) for name in columns) for i in range(len(layouts))]


@pytest.mark.parametrize("model", [SMALL, load_model("mixtral-8x7b")], ids=["dense", "experts"])
def test_every_fully_sharded_layout_on_several_nodes_may_have_a_copy_in_each(model):
    plain = whole_space(model, CLUSTER, replace(ASKED, hybrid_sharding=False))
    every = whole_space(model, CLUSTER, ASKED)
    assert set(plain.dp_replicate.tolist()) == {1}
    nodes = nodes_of(CLUSTER, plain.dp * plain.cp, plain.tp, plain.gpus)
    copied = replace(plain, dp_replicate=nodes).take(np.flatnonzero((plain.zero == 3) & (nodes > 1)))
    due = rows(plain) + rows(copied.take(legal(model, CLUSTER, copied)))
    assert len(due) > len(plain)
    assert sorted(rows(every)) == sorted(due)


def test_copies_that_are_asked_for_go_with_every_stage():
    asked = replace(ASKED, fixed=replace(ASKED.fixed, dp_replicate=(1, 4)))
    found = whole_space(SMALL, CLUSTER, asked)
    assert {*zip(found.zero.tolist(), found.dp_replicate.tolist(), strict=True)} == {
        (0, 1), (1, 1), (2, 1), (3, 1), (1, 4), (2, 4), (3, 4),
    }  # fmt: skip
    assert np.all(found.dp % found.dp_replicate == 0)
    only = whole_space(SMALL, CLUSTER, replace(asked, fixed=replace(asked.fixed, dp_replicate=(4,))))
    assert set(only.dp_replicate.tolist()) == {4}


def test_a_grid_with_copies_has_its_table_s_totals_and_bounds():
    for grid in space(SMALL, CLUSTER, ASKED):
        one = one_layer(Setup(SMALL, CLUSTER, FSDP), grid.layouts)
        sums = totals(Setup(SMALL, CLUSTER, FSDP), grid.layouts, one)
        whole = estimate(Setup(SMALL, CLUSTER, FSDP), grid.table())
        assert np.array_equal(sums.step_time_s[grid.legal], whole.step_time_s)
        assert np.array_equal(sums.memory_bytes[grid.legal], whole.memory_bytes)
        bound = bounds(grid.layouts, one)
        assert np.all((bound.step_time_s <= sums.step_time_s) | ~grid.legal)
        assert np.all((bound.memory_bytes <= sums.memory_bytes) | ~grid.legal)


def test_a_search_finds_the_copies_that_brute_force_finds():
    """LLaMA 7B, sharded fully over 16 nodes of four slow links each: a copy in every node is fastest."""
    model, fixed = load_model("llama2-7b"), Fixed(pp=(1,), zero=(3,), schedule=("1f1b",))
    asked = replace(ASKED, gpus=128, global_batch=128, fixed=fixed)
    table = estimate(Setup(model, CLUSTER, FSDP), whole_space(model, CLUSTER, asked))
    best = float(table.step_time_s[table.fits].min())
    found = recommend(
        Setup(model, CLUSTER, FSDP), gpus=128, global_batch=128, precision=asked.precision, attention=asked.attention,
        fixed=fixed,
    )  # fmt: skip
    i = found.best[0]
    assert float(found.estimate.step_time_s[i]) == best
    assert int(found.estimate.layouts.dp_replicate[i]) == 16
    assert search(Setup(model, CLUSTER, FSDP), asked).fitting == int(table.fits.sum())
    other = load_framework("megatron-lm")
    assert not other.hybrid_sharding
    alone = recommend(
        Setup(model, CLUSTER, other), gpus=128, global_batch=128, precision=asked.precision, attention=asked.attention,
        fixed=fixed,
    )  # fmt: skip
    assert set(alone.estimate.layouts.dp_replicate.tolist()) == {1}
