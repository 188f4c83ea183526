"""Pieces of work whose flows share links: by hand, and told anew by a simulation with linear programs."""

import numpy as np
import pytest

from planner.base.errors import ScheduleError
from planner.costs.network.fabric import Fabric
from planner.step.timeline.flows import Pieces, run_flows
from tests.costs.test_pods import max_min as by_linear_programs


def fabric(flows, capacity, most, others=0) -> Fabric:
    links = len(capacity)
    return Fabric(
        names=tuple(f"link {i}" for i in range(links)), alike=np.ones(links, dtype=np.int64),
        capacity_bytes_per_s=np.array(capacity, dtype=float), flows=np.array(flows, dtype=float),
        most_bytes_per_s=np.array(most, dtype=float), others=others,
    )  # fmt: skip


def pieces(*of: tuple[float, int, tuple[int, ...]], ranks=None) -> Pieces:
    """Seconds alone, bundle and waits of each."""
    n = len(of)
    return Pieces(
        bundles={}, waits=[list(x[2]) for x in of], ranks=ranks or [(i,) for i in range(n)], kind=[""] * n,
        cause=[-1 if x[1] >= 0 else 0 for x in of], seconds=[x[0] for x in of], bundle=[x[1] for x in of],
    )  # fmt: skip


ONE = fabric([[1, 1, 1]], [1.0], [1.0, 1.0, 1.0])


def test_two_flows_on_a_link_have_half_of_it_each():
    """3 s and 1 s of work: together until the shorter has done its second, after 2 s; then 2 s are left alone."""
    ran = run_flows(pieces((3.0, 0, ()), (1.0, 1, ())), ONE)
    assert ran.end_s.tolist() == [4.0, 2.0]
    assert ran.full_s.tolist() == [4.0]
    assert ran.held_s.tolist() == [2.0]
    assert ran.carried_bytes.tolist() == [4.0]


def test_one_that_comes_later():
    """Alone for 1 s, then beside another for 2 s, in which each does half; the last second of work is done alone."""
    ran = run_flows(pieces((3.0, 0, ()), (1.0, -1, ()), (1.0, 1, (1,))), ONE)
    assert ran.start_s.tolist() == [0.0, 0.0, 1.0]
    assert ran.end_s == pytest.approx([4.0, 1.0, 3.0])


def test_a_line_of_two_links():
    """The long flow has half of either link until a short one ends, and then what the other leaves it: half."""
    line = fabric([[1, 1, 0], [1, 0, 1]], [1.0, 1.0], [1.0, 1.0, 1.0])
    ran = run_flows(pieces((2.0, 0, ()), (1.0, 1, ()), (2.0, 2, ())), line)
    assert ran.end_s == pytest.approx([4.0, 2.0, 4.0])
    assert ran.full_s == pytest.approx([2.0, 4.0])


def test_flows_of_other_jobs_keep_their_part():
    """Three of them on a link for four: one that asks for all of it gets a quarter, and beside small ones the rest."""
    assert run_flows(pieces((1.0, 0, ())), fabric([[1, 3]], [1.0], [1.0, 1.0], others=1)).end_s == pytest.approx([4.0])
    small = run_flows(pieces((1.0, 0, ())), fabric([[1, 3]], [1.0], [1.0, 0.1], others=1))
    assert small.end_s == pytest.approx([1.0 / 0.7])
    assert small.carried_bytes == pytest.approx([1.0])


def test_compute_is_slower_beside_a_flow_of_its_rank():
    """Of 2 s one runs beside the flow of another rank to this one, half as slow again: two thirds of one are done."""
    ran = run_flows(pieces((2.0, -1, ()), (1.0, 0, ()), ranks=[(0,), (1, 0)]), ONE, 0.5)
    assert ran.end_s == pytest.approx([1.0 + (2.0 - 1.0 / 1.5), 1.0])


def test_a_circle_is_no_schedule():
    with pytest.raises(ScheduleError, match="deadlocks"):
        run_flows(pieces((1.0, -1, (1,)), (1.0, -1, (0,))), ONE)


def told_anew(p: Pieces, f: Fabric) -> np.ndarray:
    """Ends, from one to the next, with rates by linear programs."""
    n, now = len(p.seconds), 0.0
    left, end = list(p.seconds), np.full(n, np.inf)
    while not np.all(np.isfinite(end)):
        going = [i for i in range(n) if end[i] == np.inf and all(end[j] <= now for j in p.waits[i])]
        flows = [i for i in going if p.bundle[i] >= 0]
        rate = dict.fromkeys(going, 1.0)
        if flows:
            at = [p.bundle[i] for i in flows]
            rates = by_linear_programs(f.flows[:, at], f.most_bytes_per_s[at], f.capacity_bytes_per_s)
            rate |= dict(zip(flows, rates / f.most_bytes_per_s[at], strict=True))
        step = min(left[i] / rate[i] for i in going)
        now += step
        for i in going:
            left[i] -= step * rate[i]
            if left[i] <= 1e-9:
                end[i] = now
    return end


def test_drawn_pieces_end_when_a_simulation_by_linear_programs_says():
    rng = np.random.default_rng(20261129)
    met = 0
    for _ in range(40):
        n, links, bundles = int(rng.integers(3, 9)), int(rng.integers(1, 4)), 5
        flows = rng.integers(1, 4, size=(links, bundles)) * (rng.random((links, bundles)) < 0.7) * 1.0
        f = fabric(flows, rng.uniform(1.0, 6.0, links), rng.uniform(0.5, 3.0, bundles))
        kinds = [int(rng.integers(-1, bundles)) for _ in range(n)]
        p = pieces(*(
            (float(rng.uniform(0.1, 3.0)), kinds[i], tuple(j for j in range(i) if rng.random() < 0.25))
            for i in range(n)
        ))  # fmt: skip
        ran = run_flows(p, f)
        assert ran.end_s == pytest.approx(told_anew(p, f), rel=1e-6)
        met += bool(np.any(ran.end_s - ran.start_s > np.array(p.seconds) * (1.0 + 1e-6)))
    assert met > 20
