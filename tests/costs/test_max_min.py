"""Max-min fair rates: by hand, and beside linear programs on drawn topologies."""

import numpy as np
import pytest

from planner.costs.network.max_min import max_min
from tests.costs.test_pods import max_min as by_linear_programs

ENDLESS = np.inf


@pytest.mark.parametrize(
    ("flows", "capacity", "most", "rates"),
    [
        ([[1, 1]], [10], [ENDLESS, ENDLESS], [5, 5]),
        ([[1, 1]], [10], [2, ENDLESS], [2, 8]),  # one asks for less than its half
        # A line of two links: a long flow over both, a short one over each, and links that differ.
        ([[1, 1, 0], [1, 0, 1]], [10, 10], [ENDLESS] * 3, [5, 5, 5]),
        ([[1, 1, 0], [1, 0, 1]], [10, 4], [ENDLESS] * 3, [2, 8, 2]),
        ([[3, 1]], [8], [ENDLESS, ENDLESS], [2, 2]),  # a bundle of three flows beside one flow
        ([[2, 0.5]], [5], [ENDLESS, ENDLESS], [2, 2]),  # of one, half goes elsewhere
        ([[1, 1], [0, 0]], [10, 1], [1, 2], [1, 2]),  # room for all
        ([[1, 1]], [10], [0, ENDLESS], [0, 10]),
        (np.zeros((0, 2)), [], [1, 2], [1, 2]),
    ],
)
def test_by_hand(flows, capacity, most, rates):
    found = max_min(np.array(flows, dtype=float), np.array(capacity, dtype=float), np.array(most, dtype=float))
    assert found == pytest.approx(rates)


def drawn(rng):
    """Links, some of them off a flow's way; bundles of several flows; a most for each."""
    links, n = int(rng.integers(1, 5)), int(rng.integers(1, 6))
    flows = rng.integers(1, 4, size=(links, n)) * (rng.random((links, n)) < 0.6) * 1.0
    return flows, rng.uniform(1.0, 10.0, links), rng.uniform(0.1, 5.0, n)


def test_rates_are_what_linear_programs_say_on_500_topologies():
    rng = np.random.default_rng(20261129)
    shared = 0
    for _ in range(500):
        flows, capacity, most = drawn(rng)
        rates = max_min(flows, capacity, most)
        assert rates == pytest.approx(by_linear_programs(flows, most, capacity), rel=1e-6)
        assert np.all(flows @ rates <= capacity * (1.0 + 1e-12))
        shared += bool(np.any(rates < most * (1.0 - 1e-9)))
    assert shared > 250


def test_neither_the_order_of_links_nor_of_flows_says_anything():
    rng = np.random.default_rng(1)
    for _ in range(100):
        flows, capacity, most = drawn(rng)
        rows, columns = rng.permutation(len(capacity)), rng.permutation(len(most))
        other = max_min(flows[rows][:, columns], capacity[rows], most[columns])
        assert other == pytest.approx(max_min(flows, capacity, most)[columns], rel=1e-12)
