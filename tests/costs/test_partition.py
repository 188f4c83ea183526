"""Stage partition against an integer program and brute force; sequence slices against published splits."""

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from planner.base.errors import InputError, LayoutError
from planner.costs.layer.slices import equal_work_slices, even_slices
from planner.layouts import Layouts, Split
from planner.models import Transformer
from planner.step.partition import partition
from planner.step.splits import balanced_load
from tests.costs.stages import stages_of
from tests.costs.toy import slice_shares


def brute_force(cost: list[float], stages: int, size: list[float], caps: list[float]) -> float:
    """The least largest stage over every set of cuts that keeps the caps."""
    best = np.inf
    for cuts in combinations(range(1, len(cost)), stages - 1):
        edges = [0, *cuts, len(cost)]
        parts = list(pairwise(edges))
        if all(sum(size[a:b]) <= cap + 1e-9 for (a, b), cap in zip(parts, caps, strict=True)):
            best = min(best, max(sum(cost[a:b]) for a, b in parts))
    return best


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(0.1, 5.0), min_size=1, max_size=9), st.integers(1, 5), st.floats(1.0, 12.0), st.floats(0.0, 2.0)
)
def test_the_split_is_the_best_that_keeps_the_caps(cost, stages, cap, step):
    if stages > len(cost):
        return
    size = [c + 1.0 for c in cost[::-1]]
    caps = [cap + step * s for s in range(stages)]
    best = brute_force(cost, stages, size, caps)
    if not np.isfinite(best):
        with pytest.raises(LayoutError, match="keeps every stage's memory"):
            partition(cost, stages, size_bytes=lambda s: size, cap_bytes=lambda s: caps[s])
        return
    sizes = partition(cost, stages, size_bytes=lambda s: size, cap_bytes=lambda s: caps[s])
    edges = np.concatenate([[0], np.cumsum(sizes)])
    parts = list(pairwise(edges))
    assert edges[-1] == len(cost)
    assert np.all(sizes >= 1)
    assert all(sum(size[a:b]) <= c + 1e-9 for (a, b), c in zip(parts, caps, strict=True))
    assert max(sum(cost[a:b]) for a, b in parts) == pytest.approx(best, rel=1e-12)


def integer_program(cost: np.ndarray, stages: int) -> float:
    """x[i, s] = 1 where item i is on stage s; stages contiguous: an item's stage is its predecessor's or the next."""
    n = len(cost)
    variables = n * stages + 1
    objective = np.zeros(variables)
    objective[-1] = 1.0
    rows, low, high = [], [], []

    def add(entries: dict[int, float], least: float, most: float) -> None:
        row = np.zeros(variables)
        for i, value in entries.items():
            row[i] = value
        rows.append(row)
        low.append(least)
        high.append(most)

    for i in range(n):
        add({i * stages + s: 1.0 for s in range(stages)}, 1, 1)
    for s in range(stages):
        add({i * stages + s: cost[i] for i in range(n)} | {variables - 1: -1.0}, -np.inf, 0)
    for i in range(n - 1):
        step = {(i + 1) * stages + s: float(s) for s in range(stages)} | {
            i * stages + s: -float(s) for s in range(stages)
        }
        add(step, 0, 1)
    whole = np.ones(variables)
    whole[-1] = 0
    bounds = Bounds(np.zeros(variables), np.r_[np.ones(variables - 1), np.inf])
    return float(milp(objective, integrality=whole, bounds=bounds, constraints=LinearConstraint(rows, low, high)).fun)


@pytest.mark.parametrize(("items", "stages", "seed"), [(12, 4, 0), (18, 5, 1), (26, 4, 2)])
def test_the_split_equals_an_integer_program(items, stages, seed):
    cost = np.random.default_rng(seed).uniform(0.5, 2.0, items)
    sizes = partition(cost, stages)
    edges = np.concatenate([[0], np.cumsum(sizes)])
    assert max(np.add.reduceat(cost, edges[:-1])) == pytest.approx(integer_program(cost, stages), rel=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.integers(4, 40), st.integers(2, 8), st.floats(0.0, 2.0), st.floats(0.0, 4.0))
def test_the_closed_form_of_equal_layers_is_never_worse(layers, stages, embedding, head):
    """It may leave a stage without a layer beside the head or the embedding, which items that are theirs allow too."""
    if stages > layers + 2:
        return
    items = np.array([embedding, *[1.0] * layers, head])
    sizes = partition(items, stages)
    edges = np.concatenate([[0], np.cumsum(sizes)])
    load = max(np.add.reduceat(items, edges[:-1]))
    assert float(balanced_load(layers, stages, np.array(embedding), np.array(head))) == pytest.approx(load, abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.integers(3, 40), st.integers(3, 8), st.floats(0.0, 9.0), st.floats(0.0, 9.0))
def test_an_end_has_more_than_its_share_only_where_the_ranks_between_are_full(layers, p, embedding, head):
    """The slowest rank is as fast as can be, and what it is slow by is not filled up: layers are memory."""
    asked = Layouts.of(global_batch=p, pp=p, layer_split=Split.BALANCED)
    own = stages_of(asked, layers, np.array([embedding]), np.array([head])).layers(0, p)
    load = own + np.array([embedding, *[0.0] * (p - 2), head])
    assert own.sum() == layers
    slowest = float(balanced_load(layers, p, np.array(embedding), np.array(head)))
    assert load.max() == pytest.approx(max(slowest, embedding, head), abs=1e-6)
    if max(own[0], own[-1]) > -(-layers // p):
        assert own[1:-1].min() == np.floor(slowest + 1e-9)


@pytest.mark.parametrize("stages", [0, 5])
def test_more_stages_than_items_are_refused(stages):
    with pytest.raises(LayoutError, match=rf"4 items can't make {stages} stages; allowed: 1 to 4"):
        partition([1.0] * 4, stages)


def gpt(layers: int, hidden: int, heads: int) -> Transformer:
    return Transformer(
        name="gpt", family="gpt", num_layers=layers, hidden=hidden, ffn=4 * hidden, num_heads=heads, num_kv_heads=heads,
        head_dim=hidden // heads, vocab=50304, seq_len=1024, num_dense_layers=layers,
    )  # fmt: skip


# MayDomine/Seq1F1B, split_solver.py, run by the people who wrote SCHEDULES.md: k = 4, multiples of 8.
SPLITS = [
    (gpt(32, 4096, 32), 32768, [11040, 8416, 7080, 6232]),
    (gpt(32, 2560, 32), 16384, [5288, 4224, 3632, 3240]),
    (gpt(32, 2560, 32), 32768, [11952, 8264, 6728, 5824]),
    (gpt(32, 4096, 32), 65536, [25024, 16272, 13040, 11200]),
    (gpt(32, 4096, 32), 131072, [55720, 30872, 24064, 20416]),
    (gpt(40, 5120, 40), 32768, [10640, 8456, 7240, 6432]),
    (gpt(64, 6144, 64), 65536, [23424, 16624, 13640, 11848]),
]


@pytest.mark.parametrize(("model", "tokens", "split"), SPLITS)
def test_slices_that_seq1f1b_takes_for_equal_are_equal(model, tokens, split):
    assert sum(split) == tokens
    assert slice_shares(model, split).tolist() == pytest.approx([0.25] * 4, rel=5e-3)  # it rounds to 8 tokens


@pytest.mark.parametrize(("model", "tokens", "split"), SPLITS)
def test_the_cut_of_equal_work_is_seq1f1bs_own(model, tokens, split):
    assert equal_work_slices(replace(model, seq_len=tokens), 4, 8) == split


def test_too_many_slices_of_equal_work():
    with pytest.raises(InputError, match="sequence_slices is 4; the 16 tokens are too few, or no multiple of 8"):
        equal_work_slices(replace(gpt(2, 64, 2), seq_len=16), 4, 8)


def test_slices_that_do_not_divide_say_so():
    with pytest.raises(InputError, match="sequence_slices is 3; allowed: a divisor of the sequence length 1024"):
        even_slices(1024, 3)
