"""Pruning is exact: bounds lie below every layout of their row, and a pruned search keeps what one without keeps."""

from dataclasses import fields, replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.base.pareto import pareto_front
from planner.choices.training import read_training
from planner.costs.one_layer import one_layer
from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Precision, Recompute, Split
from planner.models import from_shape, load_model
from planner.search import Fixed
from planner.search import scan as passes
from planner.search.bounds import Bounds, bounds
from planner.search.request import Request
from planner.search.scan import search
from planner.search.shortlist import ALTERED, Shortlist
from planner.search.space import space
from planner.setup import Setup
from planner.step.estimate import totals

FRAMEWORK = load_framework("megatron-lm")
DENSE = from_shape(family="gpt", layers=12, hidden=1024, ffn=4096, heads=16, kv_heads=16, vocab=51200, seq_len=2048)
MODELS = (DENSE, load_model("mixtral-8x7b"), load_model("gpt2-xl"))
SHARED = st.sampled_from([(), (("train", read_training("lora:16")),), (("train", read_training("lora:48:qkv")),)])
ASKED = st.builds(
    Request,
    gpus=st.sampled_from([4, 8, 12, 16]),
    global_batch=st.sampled_from([8, 24, 64]),
    precision=st.just(Precision.BF16),
    attention=st.sampled_from([Attention.FLASH2, Attention.FUSED]),
    fixed=st.builds(Fixed, offload=st.booleans(), allow_async=st.booleans(), shared=SHARED),
)
CLUSTERS = st.builds(
    lambda size: with_memory(load_cluster("dgx-a100-80gb"), size), st.floats(2e9, 160e9, allow_nan=False)
)


def with_memory(cluster, size_bytes):
    return replace(cluster, accelerator=replace(cluster.accelerator, memory_bytes=size_bytes))


def check_bounds(model, cluster, framework, asked):
    for grid in space(model, cluster, asked):
        one = one_layer(Setup(model, cluster, framework), grid.layouts)
        bound = bounds(grid.layouts, one)
        sums = totals(Setup(model, cluster, framework), grid.layouts, one)
        least = sums.step_time_s - sums.bubble_s
        assert np.all((bound.step_time_s <= least) | ~grid.legal)
        assert np.all((bound.memory_bytes <= sums.memory_bytes) | ~grid.legal)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(MODELS), CLUSTERS, ASKED)
def test_no_layout_is_below_its_row_s_bounds(model, cluster, asked):
    check_bounds(model, cluster, FRAMEWORK, asked)


def test_no_layout_is_below_its_row_s_bounds_where_all_to_alls_hide():
    """Megatron-Bridge runs another micro-batch's passes beside a mixture's all-to-alls."""
    model, cluster, framework = load_model("mixtral-8x7b"), load_cluster("dgx-h100"), load_framework("megatron-bridge")
    assert framework.overlap_experts > 0
    asked = Request(
        gpus=16, global_batch=64, precision=Precision.BF16, attention=Attention.FLASH2, fixed=Fixed(cp=(1,))
    )
    check_bounds(model, cluster, framework, asked)


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(MODELS),
    CLUSTERS,
    ASKED,
    st.booleans(),
    st.sampled_from([0, 50]),
    st.sampled_from([500, 3000, 65536]),
)
def test_a_pruned_search_keeps_what_an_unpruned_one_keeps(model, cluster, asked, by_memory, rivals, chunk):
    options = {"top": 3, "by_memory": by_memory, "rivals": rivals, "chunk": chunk}
    with patch.multiple(passes, WORTH_PRUNING=0.0, PATIENCE=0):
        pruned = search(Setup(model, cluster, FRAMEWORK), asked, **options)
    whole = search(Setup(model, cluster, FRAMEWORK), asked, prune=False, **options)
    assert (pruned.legal, pruned.fitting) == (whole.legal, whole.fitting)
    assert np.array_equal(pruned.ties(np.inf), whole.ties(np.inf))
    for a, b in ((pruned.fits, whole.fits), (pruned.over, whole.over)):
        for f in fields(a):
            if f.name != "layouts":
                assert np.array_equal(getattr(a, f.name), getattr(b, f.name)), f.name


def test_under_the_tightest_bounds_nothing_that_matters_is_discarded():
    """Bounds that are the least of each row itself: only rows over memory are out, and the answer is the same."""
    asked = Request(gpus=16, global_batch=64, precision=Precision.BF16, attention=Attention.FUSED, fixed=Fixed())
    setup = Setup(load_model("gpt2-xl"), with_memory(load_cluster("dgx-a100-80gb"), 8e9), FRAMEWORK)
    whole, counted = search(setup, asked, prune=False, chunk=500), []

    def tight(layouts, one):
        sums = totals(setup, layouts, one)
        own = [np.broadcast_to(x, layouts.shape) for x in (sums.step_time_s - sums.bubble_s, sums.memory_bytes)]
        least = [x.min(axis=tuple(range(x.ndim - 1))) for x in own]
        return Bounds(step_time_s=least[0], memory_bytes=least[1])

    def count(self, grid):
        counted.append(totals(setup, grid.layouts).memory_bytes.min(initial=np.inf))
        self.legal += int(np.count_nonzero(grid.legal))

    early = patch.multiple("planner.search.shortlist", MANY=64, SEED=16)  # what rules others out is known soon
    late = patch.multiple(passes, WORTH_PRUNING=0.0, PATIENCE=0, bounds=tight)
    with early, late, patch.object(Shortlist, "count", count):
        pruned = search(setup, asked, chunk=500)
    assert min(counted) > whole.capacity_bytes
    assert (pruned.legal, pruned.fitting) == (whole.legal, whole.fitting)
    assert np.array_equal(pruned.fits.step_time_s[:ALTERED], whole.fits.step_time_s[:ALTERED])
    assert front(pruned.over) == front(whole.over)


def front(some):
    """Step and memory of the layouts that no other beats in both."""
    keep = pareto_front(some.step_time_s, some.memory_bytes)
    return list(zip(some.step_time_s[keep].tolist(), some.memory_bytes[keep].tolist(), strict=True))


def test_bounds_discard_rows_where_there_is_much_to_discard():
    model, cluster = load_model("deepseek-v3"), load_cluster("dgx-h100")
    asked = Request(
        gpus=512,
        global_batch=1920,
        precision=Precision.BF16,
        attention=Attention.FLASH3,
        fixed=Fixed(cp=(1,), zero=(1,)),
    )
    kept = search(Setup(model, cluster, load_framework(cluster.framework)), asked)
    framework = load_framework(cluster.framework)
    rows = out = 0
    for grid in space(model, cluster, asked):
        one = one_layer(Setup(model, cluster, framework), grid.layouts)
        rows += len(grid.serial)
        out += int(kept.out(bounds(grid.layouts, one)).sum())
    assert out > 0.1 * rows


def test_the_bounds_of_even_pipelines_are_their_step_and_memory():
    """Of a model that is next to nothing but its layers: on the first rank, which keeps the most micro-batches."""
    model, cluster = replace(DENSE, vocab=1024), load_cluster("dgx-a100-80gb")
    fixed = Fixed(pp=(4,), schedule=("1f1b",), layer_split=(Split.EVEN,), recompute=(Recompute.NONE,))
    asked = Request(gpus=4, global_batch=32, precision=Precision.BF16, attention=Attention.FUSED, fixed=fixed)
    for grid in space(model, cluster, asked):
        setup = Setup(model, cluster, FRAMEWORK)
        sums, bound = totals(setup, grid.layouts), bounds(grid.layouts, one_layer(setup, grid.layouts))
        pairs = ((sums.step_time_s - sums.bubble_s, bound.step_time_s), (sums.memory_bytes, bound.memory_bytes))
        for own, said in pairs:
            least = np.where(grid.legal, own, np.inf)
            least = least.min(axis=tuple(range(least.ndim - 1)))
            assert np.all(said > 0.95 * least)


@pytest.mark.parametrize("offloaded", [(0,), (1, 2)])
@pytest.mark.parametrize("numbers", [(0, 1, 3), (3, 0), (2,)])
def test_no_layout_is_below_its_row_s_bounds_where_some_layers_are_recomputed(numbers, offloaded):
    """Of a model that is next to nothing but its layers, so that the bounds are tight."""
    model = replace(DENSE, vocab=1024)
    fixed = Fixed(recompute=(Recompute.FULL,), recompute_layers=numbers, offload_layers=offloaded)
    asked = Request(gpus=8, global_batch=16, precision=Precision.BF16, attention=Attention.FLASH2, fixed=fixed)
    cluster = load_cluster("dgx-a100-80gb")
    some = [tuple(np.unique(grid.layouts.recompute_layers).tolist()) for grid in space(model, cluster, asked)]
    assert set(some) == {tuple(sorted(numbers))}
    check_bounds(model, cluster, FRAMEWORK, asked)
