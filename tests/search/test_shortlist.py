"""What a search keeps is all it needs: the answer is that of a table of every layout, whatever the chunks, threads."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.base.pareto import pareto_front
from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Precision
from planner.models import from_shape, load_model
from planner.search import Fixed, ranking, recommend
from planner.search.request import Request
from planner.search.scan import search
from planner.search.shortlist import ALTERED, _rarely_dominated, _staircase
from planner.search.space import space
from planner.setup import Setup
from planner.step.estimate import estimate, totals
from planner.step.pipelines import exact_uneven
from tests.search.every_layout import enumerate_layouts

CLUSTER = load_cluster("dgx-a100-80gb")
MEGATRON = load_framework("megatron-lm")
SMALL = from_shape(family="llama", layers=12, hidden=1024, ffn=2816, heads=16, kv_heads=8, vocab=32000, seq_len=4096)
MIXTURE = load_model("mixtral-8x7b")
ASKED = {"precision": Precision.BF16, "attention": Attention.FLASH2}
RIVALS = 400
SPACES = [
    (SMALL, {"gpus": 16, "global_batch": 48, "fixed": Fixed(), **ASKED}),
    (SMALL, {"gpus": 8, "global_batch": 96, "fixed": Fixed(allow_async=True, offload=True), **ASKED}),
    (MIXTURE, {"gpus": 16, "global_batch": 16, "fixed": Fixed(), **ASKED}),
    (MIXTURE, {"gpus": 8, "global_batch": 8, "fixed": Fixed(), **ASKED, "attention": Attention.FUSED}),
]


@pytest.mark.parametrize(("model", "asked"), SPACES)
@pytest.mark.parametrize("chunk", [1500, 10**6])
def test_a_grid_s_totals_are_a_table_s_bit_for_bit(model, asked, chunk):
    for grid in space(model, CLUSTER, Request(**asked), chunk):
        sums, whole = (
            totals(Setup(model, CLUSTER, MEGATRON), grid.layouts),
            estimate(Setup(model, CLUSTER, MEGATRON), grid.table()),
        )
        assert np.array_equal(sums.step_time_s[grid.legal], whole.step_time_s)
        assert np.array_equal(sums.memory_bytes[grid.legal], whole.memory_bytes)
        bubble = np.broadcast_to(sums.bubble_s, grid.legal.shape)[grid.legal]
        assert np.array_equal(bubble, whole.time.bubble_s)


@cache
def by_brute_force(number):
    """Step and memory of all layouts of a space, from one table."""
    model, asked = SPACES[number]
    table = estimate(Setup(model, CLUSTER, MEGATRON), enumerate_layouts(model, CLUSTER, **asked))
    return table.step_time_s, table.memory_bytes


def with_memory(number, share):
    """A cluster whose memory so many of a space's layouts fit in, and what brute force says of them."""
    step, memory = by_brute_force(number)
    size = float(np.quantile(memory, share, method="higher"))
    fits = memory <= size
    pairs = np.unique(np.stack([step[fits], memory[fits]]), axis=1)
    return replace(CLUSTER, accelerator=replace(CLUSTER.accelerator, memory_bytes=size)), step, memory, fits, pairs


def pairs_of(estimated, index):
    return list(zip(estimated.step_time_s[index].tolist(), estimated.memory_bytes[index].tolist(), strict=True))


@pytest.mark.parametrize("number", range(len(SPACES)))
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 1.0])
def test_the_answer_is_that_of_a_table_of_all_layouts(number, share, monkeypatch):
    """By memory, and with the timeline left out, so that the whole answer is the closed form's."""
    monkeypatch.setattr(ranking, "known", lambda result: np.ones(len(result.layouts), dtype=bool))
    cluster, step, memory, fits, pairs = with_memory(number, share)
    model, asked = SPACES[number]
    found = recommend(Setup(model, cluster, MEGATRON), top=7, objective="memory", **asked)
    assert (found.legal, found.fitting) == (len(step), int(fits.sum()))
    first = pairs[:, np.lexsort(pairs)]
    assert pairs_of(found.estimate, found.best) == list(zip(*first[:, :7].tolist(), strict=True))
    front = pairs[:, pareto_front(pairs[0], pairs[1])]
    assert pairs_of(found.estimate, found.front) == list(zip(*front.tolist(), strict=True))
    assert (found.nearest_miss is None) == bool(fits.all())
    if found.nearest_miss is not None:
        assert found.estimate.memory_bytes[found.nearest_miss] == memory[~fits].min()
    assert found.ties == int((first[1] <= 1.01 * first[1, 0]).sum()) - 1
    better = memory[~fits & (step < 0.98 * first[0, 0])]
    assert (found.faster_over_memory is None) == (len(better) == 0)
    if found.faster_over_memory is not None:
        assert found.estimate.memory_bytes[found.faster_over_memory] == better.min()


@pytest.mark.parametrize("number", range(len(SPACES)))
def test_all_that_may_overtake_the_best_is_kept(number):
    """The first, whatever happens to the finalists; the fastest that fit, and that would in twice the memory."""
    cluster, step, memory, fits, pairs = with_memory(number, 0.4)
    model, asked = SPACES[number]
    top, twice = 5, 2.0 * cluster.accelerator.memory_bytes
    kept = search(Setup(model, cluster, MEGATRON), Request(**asked), top=top, rivals=RIVALS, chunk=3000)
    first = max(top + ALTERED, RIVALS)
    assert np.array_equal(kept.fits.step_time_s[:first], pairs[0, :first])
    soon = np.unique(np.stack([step, memory])[:, ~fits & (memory <= twice)], axis=1)
    got = kept.over.step_time_s[kept.over.memory_bytes <= twice]
    assert np.array_equal(got[:RIVALS], soon[0, :RIVALS])
    best = pairs[0, 0]
    assert kept.ties(best).shape[1] == int((pairs[0] <= 1.01 * best).sum())


@pytest.mark.parametrize("number", range(len(SPACES)))
def test_pipelines_that_would_be_the_fastest_without_their_bubble_are_kept(number):
    """The timeline may find theirs smaller than the closed form does."""
    cluster, _, _, fits, _ = with_memory(number, 1.0)
    model, asked = SPACES[number]
    table = estimate(Setup(model, cluster, MEGATRON), enumerate_layouts(model, cluster, **asked)).take(fits)
    least = table.step_time_s - np.where(exact_uneven(table.layouts), 0.0, table.time.bubble_s)
    kept = search(Setup(model, cluster, MEGATRON), Request(**asked), top=5, chunk=3000)
    slower = np.sort(np.unique(np.stack([table.step_time_s, table.memory_bytes]), axis=1)[0])[5 + ALTERED]
    quick = np.sort(least[(table.layouts.pp > 1) & (least <= slower)])[:ALTERED]
    assert np.isin(quick, kept.fits.least_s).all()


@pytest.mark.parametrize("many", [16, 100])
def test_what_is_sifted_first_of_too_many_changes_nothing(many, monkeypatch):
    """Of a grid with more candidates than may wait some go first, which leaves the same kept, whatever the number."""
    model, asked = SPACES[0]

    def ask():
        kept = search(Setup(model, CLUSTER, MEGATRON), Request(**asked), rivals=50, chunk=3000)
        return [kept.fits.serial[:50].tolist(), kept.over.serial.tolist(), kept.legal, kept.fitting]

    usual = ask()
    monkeypatch.setattr("planner.search.shortlist.MANY", many)
    monkeypatch.setattr("planner.search.shortlist.SEED", many // 4)
    assert ask() == usual


def everything(found):
    """A recommendation as plain values."""
    ran = np.flatnonzero(found.estimate.simulated)
    shown = [*found.best, *found.front, *ran, found.nearest_miss, found.faster_over_memory]
    rows = [(found.estimate.layouts.row(int(i)), found.estimate.step_time_s[i]) for i in shown if i is not None]
    return rows, found.legal, found.fitting, found.ties


def test_the_result_depends_neither_on_the_chunk_nor_on_threads(monkeypatch):
    """Simulated finalists and all."""
    model, asked = SPACES[0]

    def ask(chunk):
        kept = search(Setup(model, CLUSTER, MEGATRON), Request(**asked), rivals=RIVALS, chunk=chunk)
        return [kept.fits.serial[: ALTERED + 1].tolist(), kept.fits.step_time_s[:RIVALS].tolist(), kept.fitting]

    chunks = [700, 9000, 10**9]
    one_by_one = [ask(chunk) for chunk in chunks]
    assert all(answer == one_by_one[0] for answer in one_by_one)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, chunks)) == one_by_one
    answers = []
    for chunk in chunks:
        by_chunk = partial(search, chunk=chunk)
        monkeypatch.setattr("planner.search.ranking.search", by_chunk)
        answers.append(everything(recommend(Setup(model, CLUSTER, MEGATRON), **asked)))
    assert all(answer == answers[0] for answer in answers)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=400),
    st.integers(1, 20),
)
def test_what_is_rarely_dominated_is_never_dropped(values, times):
    values = np.array(values, dtype=np.float64)
    keep = _rarely_dominated(values, times)
    for i in range(len(values)):
        if np.sum(values[:i] <= values[i]) < times:
            assert keep[i]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.integers(1, 7), st.data())
def test_a_step_of_the_stairs_is_the_times_th_fastest_of_those_with_clearly_less_memory(memory, times, data):
    size, n = np.array(memory, dtype=np.float64), len(memory)
    steps = np.sort(np.array(data.draw(st.lists(st.integers(1, 50), min_size=n, max_size=n)), dtype=np.float64))
    some = SimpleNamespace(memory_bytes=size, step_time_s=steps)
    edges = np.arange(1.0, 32.0)
    found = _staircase(some, times, edges)
    for edge, step in zip(edges, found, strict=True):
        less = sorted(steps[size <= edge * (1 - 1e-6)])
        assert step == (less[times - 1] if len(less) >= times else np.inf)
