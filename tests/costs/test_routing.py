"""Ranks and nodes that a token's experts lie on: the formula beside drawing experts at random."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.layer.expert_routing import EXPERT_SPREAD, own_imbalance, reached
from tests.costs.toy import MOE

WIDE = replace(MOE, num_experts=64, top_k=6)


def drawn(model, units, samples=4000, seed=0):
    """Mean number of units with an expert: groups by lot, then experts with replacement among theirs."""
    rng = np.random.default_rng(seed)
    groups = model.expert_groups or 1
    size = model.num_experts // groups
    hits = 0
    for _ in range(samples):
        chosen = rng.permutation(groups)[: model.top_k_groups or 1]
        experts = rng.choice(chosen, model.top_k) * size + rng.integers(0, size, model.top_k)
        hits += len(set(experts // (model.num_experts // units)))
    return hits / samples


@pytest.mark.parametrize("units", [1, 2, 4, 8, 16, 64])
@pytest.mark.parametrize("groups", [(0, 0), (4, 2), (8, 3)])
def test_as_many_as_experts_drawn_at_random(units, groups):
    model = replace(WIDE, expert_groups=groups[0], top_k_groups=groups[1])
    assert float(reached(model, units)) == pytest.approx(drawn(model, units), rel=0.02)


@given(st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 7))
def test_limited_routing_reaches_fewer(units, chosen):
    limited = replace(WIDE, expert_groups=8, top_k_groups=chosen)
    more = replace(WIDE, expert_groups=8, top_k_groups=chosen + 1) if chosen < 7 else WIDE
    assert 1.0 - 1e-12 <= float(reached(limited, units)) <= float(reached(more, units)) + 1e-12
    assert float(reached(limited, units)) <= min(units, WIDE.top_k) + 1e-12


def test_a_router_left_to_itself_loads_the_fullest_rank_as_drawn_loads_do():
    """A rank's load is the mean of its experts', each log-normal as measured ones are; the fullest of all ranks."""
    assert float(own_imbalance(WIDE, 1)) == 1.0
    rng, width = np.random.default_rng(0), np.sqrt(np.log1p(EXPERT_SPREAD**2))
    for ranks, each in ((2, 16), (8, 1), (8, 16), (8, 4), (32, 8), (64, 4)):
        loads = rng.lognormal(-(width**2) / 2, width, (2000, ranks, each)).mean(axis=2)
        fullest = (loads.max(axis=1) / loads.mean(axis=1)).mean()
        model = replace(WIDE, num_experts=ranks * each)
        assert float(own_imbalance(model, ranks)) == pytest.approx(fullest, rel=0.03)


def test_many_at_once_as_one_by_one():
    units = np.array([1, 2, 8, 64])
    model = replace(WIDE, expert_groups=8, top_k_groups=3)
    assert reached(model, units).tolist() == [float(reached(model, int(n))) for n in units]
