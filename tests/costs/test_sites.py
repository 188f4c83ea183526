"""Exchanges between sites: by hand, limits, and the published tables of bandwidth and of sync times."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.base.units import GBIT
from planner.costs.network.sites import SiteExchange, enough_bytes_per_s, exposed_s, share_s

RATES = st.floats(1e6, 1e12)
EXCHANGES = st.builds(
    SiteExchange, every=st.integers(1, 500), shares=st.integers(1, 40), bits=st.sampled_from([4.0, 8.0, 16.0, 32.0]),
    hidden_steps=st.floats(0, 20), pieces=st.sampled_from([1.0, 24.0, np.inf]),
)  # fmt: skip


def test_by_hand():
    # 1e9 values of 32 bits in 4 shares: 1 GB each; 4 sites send 2 x 3/4 of it at 1 GB/s, and 2 x 10 ms.
    exchange = SiteExchange(every=100, shares=4, bits=32.0, hidden_steps=0.5)
    travel = share_s(exchange, 1e9, 4, 1e9, 0.01)
    assert travel == pytest.approx(1.52)
    # Half a step of 2 s hides 1 s of each of the four; spread over 100 steps.
    assert exposed_s(exchange, travel, 2.0) == pytest.approx(4 * 0.52 / 100)


@given(EXCHANGES, st.floats(1e6, 1e12), RATES, st.floats(0, 1), st.floats(1e-3, 100))
def test_one_site_or_endless_links_wait_for_nothing(exchange, parameters, rate, latency, step):
    assert exposed_s(exchange, share_s(exchange, parameters, 1, rate, latency), step) == 0.0
    assert exposed_s(exchange, share_s(exchange, parameters, 5, np.inf, 0.0), step) == 0.0


@given(EXCHANGES, st.floats(1e6, 1e12), RATES, st.floats(1, 100), st.floats(0, 1), st.floats(1e-3, 100))
def test_faster_links_fewer_bits_and_seldomer_exchanges_never_hurt(exchange, parameters, rate, factor, latency, step):
    def waits(one, rate, latency):
        return float(exposed_s(one, share_s(one, parameters, 3, rate, latency), step))

    base = waits(exchange, rate, latency)
    near = base * (1 + 1e-9) + 1e-12
    assert waits(exchange, rate * factor, latency) <= near
    assert waits(exchange, rate, latency / factor) <= near
    assert waits(replace(exchange, bits=exchange.bits / 2), rate, latency) <= near
    assert waits(replace(exchange, every=2 * exchange.every), rate, latency) <= near


@given(EXCHANGES, st.floats(1e6, 1e12), st.floats(0, 0.01), st.floats(0.5, 100), st.floats(0.3, 0.99))
def test_what_is_enough_is_just_enough(exchange, parameters, latency, step, busy):
    rate = float(enough_bytes_per_s(exchange, parameters, 2, latency, step, busy))
    if math.isinf(rate):
        waits = exposed_s(exchange, 2 * latency, step)
        assert step / (step + float(waits)) <= busy * (1 + 1e-9)
        return
    waits = float(exposed_s(exchange, share_s(exchange, parameters, 2, rate, latency), step))
    assert step / (step + waits) == pytest.approx(busy, rel=1e-6)


def test_no_link_is_enough_where_latency_alone_takes_all_that_may_be_lost():
    """Of a second's step half of the time may be lost: a second, which two ways of half a second take."""
    exchange = SiteExchange(every=1)
    assert enough_bytes_per_s(exchange, 1e9, 2, 0.5, 1.0, 0.5) == np.inf
    assert enough_bytes_per_s(exchange, 1e9, 2, 0.25, 1.0, 0.5) == pytest.approx(4e9 / 0.5)


# Gb/s to compute 50, 80, 90, 95, 99 % of the time: Streaming DiLoCo, arXiv 2501.18512, table 4. H = 100, two workers,
# shares of 3 layers; the paper's table is on a grid of 49 steps from 0.1 to 1,000 Gb/s.
GRID = 10.0 ** (-1 + 4 / 49 * np.arange(80))
STEP = 10.0 ** (4 / 49)
BUSY = np.array([0.5, 0.8, 0.9, 0.95, 0.99])
PUBLISHED = {
    (1e9, 24, 0.1): {
        "every step": [86.8, 152.6, 184.2, 222.3, 569.0], "DiLoCo": [1.4, 6.2, 13.3, 23.3, 86.8],
        "streaming": [1.4, 5.2, 9.1, 16.0, 28.1], "overlapped": [1.4, 4.3, 6.2, 9.1, 11.0],
        "4 bits": [0.4, 0.9, 1.7, 2.0, 3.0],
    },
    (10e9, 48, 0.8): {
        "every step": [104.8, 222.3, 222.3, 268.3, 471.5], "DiLoCo": [1.7, 7.5, 16.0, 33.9, 104.8],
        "streaming": [1.7, 5.2, 9.1, 13.3, 19.3], "overlapped": [1.7, 3.6, 5.2, 6.2, 7.5],
        "4 bits": [0.4, 0.9, 1.4, 1.4, 1.7],
    },
    (100e9, 108, 4.9): {
        "every step": [184.2, 323.8, 390.7, 390.7, 471.5], "DiLoCo": [3.0, 11.0, 23.3, 49.4, 184.2],
        "streaming": [2.4, 6.2, 9.1, 11.0, 19.3], "overlapped": [1.7, 3.6, 4.3, 5.2, 5.2],
        "4 bits": [0.5, 0.9, 1.1, 1.1, 1.4],
    },
}  # fmt: skip


def published_ways(layers: int) -> dict[str, SiteExchange]:
    """The paper's: reductions behind the backward pass, or behind a whole step and it."""
    backward, shares = 2 / 3, layers // 3
    return {
        "every step": SiteExchange(every=1, bits=16.0, hidden_steps=backward, pieces=layers),
        "DiLoCo": SiteExchange(every=100, bits=16.0, hidden_steps=backward, pieces=layers),
        "streaming": SiteExchange(every=100, shares=shares, bits=16.0, hidden_steps=backward),
        "overlapped": SiteExchange(every=100, shares=shares, bits=16.0, hidden_steps=1 + backward),
        "4 bits": SiteExchange(every=100, shares=shares, bits=4.0, hidden_steps=1 + backward),
    }


def deviations(smaller: float = 1.0) -> dict[str, list[int]]:
    """Grid steps by which ours, rounded up to the paper's grid, lie over its figures."""
    out: dict[str, list[int]] = {}
    for (parameters, layers, step), rows in PUBLISHED.items():
        for name, exchange in published_ways(layers).items():
            need = enough_bytes_per_s(exchange, parameters * smaller, 2, 0.0, step, BUSY) / GBIT
            ours = GRID[np.searchsorted(GRID, need)]
            out.setdefault(name, []).extend(np.rint(np.log(ours / rows[name]) / np.log(STEP)).astype(int).tolist())
    return out


def test_bandwidths_that_streaming_diloco_publishes_are_ours_to_a_step_of_its_grid():
    """A step of the grid is 21 %, so 15 % can't be told from it: 73 of 75 lie on the paper's or one over it."""
    flat = [d for rows in deviations().values() for d in rows]
    assert len(flat) == 75
    assert sum(d in (0, 1) for d in flat) == 73
    assert sorted(d for d in flat if d not in (0, 1)) == [-2, 2]


def test_the_rest_is_one_factor_on_what_is_sent():
    """With 0.84 of the parameters that the paper names, 28 of the 30 figures without shares are met exactly; the paper
    does not say why it would send fewer."""
    found = deviations(0.84)
    assert set(found["DiLoCo"]) == {0}
    assert sorted(found["every step"]) == [-1, -1] + 13 * [0]


def test_sync_times_of_the_published_simulator():
    """robirahman/miri-decentralized-training-report, simulator_output.txt: "Sync base time", 100 Mb/s, 100 ms, 16 x
    less than 16 bits. It sends 2 V whatever the number of sites; a direct exchange 2 V (M - 1) / M."""
    for parameters, sites, theirs in ((240e9, 72, 4800.1), (144e9, 72, 2880.1), (240e9, 4, 4800.1)):
        exchange = SiteExchange(every=1, bits=1.0)
        ours = float(share_s(exchange, parameters, sites, 100e6 / 8, 0.05))
        assert ours == pytest.approx((theirs - 0.1) * (sites - 1) / sites + 0.1, rel=1e-6)
        assert (ours == pytest.approx(theirs, rel=0.02)) == (sites == 72)


def test_days_of_the_published_simulator():
    """Its configs/10e25_flop.json: 144B on 72 sites of 32 PFLOP/s at 40 %, 12T tokens, H = 128, 16 x compressed."""
    step = 6 * 144e9 * 131072 / (32e15 * 0.4)
    exchange = SiteExchange(every=128, bits=1.0, hidden_steps=128)
    waits = float(exposed_s(exchange, share_s(exchange, 144e9, 72, 100e6 / 8, 0.05), step))
    days = 12e12 / (131072 * 72) * (step + waits) / 86400
    theirs = 12e12 / (131072 * 72) / 128 * 2880.0 / 86400  # its formula: max(H step, sync)
    assert days == pytest.approx(theirs, rel=0.015)
    assert theirs == pytest.approx(331.2, rel=1e-3)
