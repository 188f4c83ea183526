"""Compressed gradients between sites: bytes by hand, limits, and what more ranks or values cost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.costs.case import Case
from planner.costs.network.compressed import arithmetic_s, compressed, low_rank
from planner.costs.network.sites import SiteExchange, sent_bytes, share_s
from planner.hardware import load_cluster
from planner.layouts import Layouts
from planner.question import load_setup

EACH = SiteExchange(every=1, bits=32.0, hidden_steps=0.1, pieces=32.0)
SETUP = load_setup("llama-7b", load_cluster("dgx-a100-80gb"), framework="megatron-core")
CASE = Case.of(SETUP, Layouts.of(dp=8, global_batch=8))
SIZE = 7e9


def test_bytes_of_each_way_by_hand():
    ways = compressed(CASE, EACH, 0.01, 4)
    assert sent_bytes(EACH, SIZE, 4) == pytest.approx(1.5 * 4 * SIZE)
    assert sent_bytes(ways["8-bit gradients"], SIZE, 4) == pytest.approx(1.5 * SIZE)
    assert sent_bytes(ways["top-k gradients"], SIZE, 4) == pytest.approx(3 * 0.01 * 8 * SIZE)
    # LLaMA 7B's layer: queries, keys and values in one, the output, gate and up in one, down.
    shapes = [(3 * 4096, 4096), (4096, 4096), (2 * 11008, 4096), (4096, 11008)]
    share = sum(4 * (n + m) for n, m in shapes) / sum(n * m for n, m in shapes)
    assert low_rank(CASE, 4)[0] == pytest.approx(share)
    assert sent_bytes(ways["PowerSGD"], SIZE, 4) == pytest.approx(1.5 * 4 * share * SIZE)


def test_ways_there_and_back_and_what_is_kept():
    ways = compressed(CASE, EACH, 0.01, 4)
    late = {name: float(share_s(way, 0.0, 3, 1.0, 0.1)) for name, way in ways.items()}
    assert late == {"8-bit gradients": 0.2, "top-k gradients": 0.1, "PowerSGD": 0.4}
    assert [way.kept_bytes for way in ways.values()] == [0.0, 8.0, 4.0]
    assert all(share_s(way, SIZE, 1, 1.0, 0.1) == 0.0 for way in ways.values())


def test_top_k_of_many_sites_sends_more_than_whole_gradients():
    """No sum makes fewer of gathered values: of k they are as many as all from about 1 / k sites on."""
    way = compressed(CASE, EACH, 0.01, 4)["top-k gradients"]
    assert sent_bytes(way, SIZE, 99) < sent_bytes(EACH, SIZE, 99)
    assert sent_bytes(way, SIZE, 101) > sent_bytes(EACH, SIZE, 101)


def test_a_rank_that_saves_nothing_sends_the_matrix_and_computes_nothing():
    share, second = low_rank(CASE, 4096)
    assert (share, second) == (pytest.approx(1.0), 0.0)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 4096), st.integers(1, 4096))
def test_a_higher_rank_never_sends_less(one, other):
    low, high = (low_rank(CASE, rank)[0] for rank in sorted((one, other)))
    assert 0.0 < low <= high <= 1.0 + 1e-12


def test_the_products_are_those_of_the_paper():
    """Three products of 2 n m r FLOP: at no more than peak, and near it where the rank is wide."""
    rank = 1024
    second = float(low_rank(CASE, rank)[1][0])
    at_peak = 6.0 * rank / 312e12
    assert at_peak < second < 2.0 * at_peak


def test_arithmetic_is_shared_by_a_sites_gpus():
    for way in compressed(CASE, EACH, 0.01, 64).values():
        took = arithmetic_s(way, SIZE, np.array([8, 16]))
        assert took[0] == pytest.approx(2.0 * took[1])
        assert 0.0 < took[1] < 0.1


def test_a_mixture_counts_its_experts_matrices():
    setup = load_setup("mixtral-8x7b", load_cluster("dgx-h100"), framework="megatron-core")
    case = Case.of(setup, Layouts.of(dp=8, ep=8, global_batch=8))
    share = float(low_rank(case, 64)[0][0])
    expert = 64 * (2 * 14336 + 4096 + 14336 + 4096) / (3 * 14336 * 4096)
    assert share == pytest.approx(expert, rel=0.1)  # nine tenths and more are experts
