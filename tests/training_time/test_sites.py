"""`planner sites`: limits, permutations, a faster link never hurts, the wait of a pipeline by running it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.api.frameworks import setup_under
from planner.api.sites import training_on_sites
from planner.base.errors import InputError, LayoutError, UnknownNameError
from planner.hardware import load_cluster
from planner.layouts import Precision
from planner.question import load_setup, search_request
from planner.scaling.laws import get_replica_law
from planner.training_time.assumptions import assume
from planner.training_time.goal import goal
from planner.training_time.sites import Sites, SitesCase, best_way, boundary_bytes, site_wait_s, site_ways
from planner.training_time.time import plan_time

CLUSTER = load_cluster("dgx-a100-80gb")
SETUP = load_setup("llama-7b", CLUSTER, framework="megatron-core")
GOAL = goal(SETUP.model, tokens=1e11)


def case(gpus=(16, 16), gbit=10.0, latency_s=0.03, batch=256, every=100, **more):
    setup, asked = search_request(SETUP)
    rates = gbit if isinstance(gbit, tuple) else (gbit,) * len(gpus)
    made = SitesCase(
        setup=setup, goal=GOAL, assumptions=assume(CLUSTER), batch=batch, request=asked,
        sites=Sites(gpus=gpus, bytes_per_s=tuple(r * 1e9 / 8 for r in rates), latency_s=latency_s),
        law=get_replica_law("charles-2025"), every=every, shares=10, bits=16.0, overlap_steps=1.0,
        exact_tokens=True, top_k=0.001, rank=64,
    )  # fmt: skip
    return replace(made, **more)


def by_name(ways):
    return {w.name: w for w in ways}


def test_one_site_is_the_training_that_planner_time_finds_whatever_the_way():
    one = case(gpus=(32,))
    plan = plan_time(one, one.request, gpus=32, batch=256, exact_tokens=True)
    ways = by_name(site_ways(one))
    for name, way in ways.items():
        if name != "pipeline over sites":  # of 1F1B and GPipe alone, and never fewer than the fastest takes
            assert way.step_s == plan.run.step_time_s[0]
            assert way.run.wall_s[0] == plan.run.wall_s[0]
            assert way.tokens_ratio == 1.0
    assert ways["pipeline over sites"].step_s >= plan.run.step_time_s[0]


def test_endless_links_leave_every_site_its_own_step():
    ways = by_name(site_ways(case(gbit=1e30, latency_s=0.0)))
    alone = by_name(site_ways(case(gpus=(16,), batch=128)))["one site alone"]
    for name in ("data parallel, every step", "DiLoCo", "Streaming DiLoCo"):
        assert ways[name].step_s == ways[name].compute_s == alone.step_s
    for name in ("8-bit gradients", "top-k gradients", "PowerSGD"):
        assert ways[name].step_s == ways[name].compute_s == alone.step_s + ways[name].arithmetic_s > alone.step_s
    assert ways["pipeline over sites"].step_s == pytest.approx(ways["pipeline over sites"].compute_s, rel=1e-12)


def test_the_order_of_the_sites_says_nothing():
    one = site_ways(case(gpus=(16, 32, 16), gbit=(10.0, 1.0, 5.0)))
    other = site_ways(case(gpus=(32, 16, 16), gbit=(1.0, 5.0, 10.0)))
    assert [(w.step_s, w.none) for w in one[:-1]] == [(w.step_s, w.none) for w in other[:-1]]
    assert "differ in their GPUs" in one[-1].none


def test_faster_links_and_shorter_ways_never_hurt():
    table = {
        (gbit, late): by_name(site_ways(case(gbit=gbit, latency_s=late))) for gbit in (0.1, 1, 10) for late in (0.1, 0)
    }
    for name in table[10, 0]:
        for late in (0.1, 0):
            steps = [table[gbit, late][name].step_s for gbit in (0.1, 1, 10)]
            assert steps == sorted(steps, reverse=True)
        for gbit in (0.1, 1, 10):
            assert table[gbit, 0][name].step_s <= table[gbit, 0.1][name].step_s
    best = best_way(tuple(table[0.1, 0.1].values()))
    assert best.run.wall_s[0] == min(w.run.wall_s[0] for w in table[0.1, 0.1].values() if w.loss_known)


def test_no_way_whose_loss_nobody_knows_is_called_best():
    asked = ASKED | {"gbit": [0.1], "top_k": 1e-5}
    answer = training_on_sites(SETUP, GOAL, {}, **asked)
    ways = {w["way"]: w for w in answer.to_dict()["ways"]}
    assert [name for name, w in ways.items() if not w["loss_known"]] == ["top-k gradients", "PowerSGD"]
    assert ways["top-k gradients"]["days"] < ways[answer.to_dict()["best"]]["days"]
    said = " ".join(repr(answer).split())
    assert f"if no loss came of it, top-k gradients in {ways['top-k gradients']['days']:,.1f} days" in said
    assert "the largest 1e-05 of all (--top-k)" in said


def test_adapters_are_not_compressed_by_rank():
    answer = training_on_sites(SETUP, GOAL, {}, **ASKED, train="lora:16")
    assert {w["way"]: w["none"] for w in answer.to_dict()["ways"]}["PowerSGD"] == "adapters have a low rank as they are"


def test_what_is_enough_is_enough():
    for name, way in by_name(site_ways(case())).items():
        if name == "one site alone":
            continue
        again = by_name(site_ways(case(gbit=way.enough_gbit * 1.01)))[name]
        if np.isinf(way.enough_gbit):
            assert again.compute_s / again.step_s < 0.95
        elif name == "pipeline over sites":  # of which another layout may now be the best
            assert again.step_s <= way.compute_s / 0.95
        else:
            assert again.compute_s / again.step_s == pytest.approx(0.95, abs=0.002)


def test_the_outer_optimizer_keeps_two_copies_in_32_bits():
    way = by_name(site_ways(case(gpus=(16, 32), batch=384)))["DiLoCo"]
    assert way.outer_bytes == pytest.approx(8 * case().parameters / 16)
    assert by_name(site_ways(case(gpus=(16,))))["DiLoCo"].outer_bytes == 0.0


def makespan(p, m, sites, delay, orders, f=1.0, b=2.0, link=0.0):
    """Operations as soon as they may: each stage in its order, a boundary between sites takes `delay`, behind `link`
    on a wire that carries one micro-batch after another."""
    late = [delay if (s + 1) % (p // sites) == 0 else 0.0 for s in range(p - 1)]
    done = {}
    free, at, wire = [0.0] * p, [0] * p, {}
    while any(at[s] < len(orders[s]) for s in range(p)):
        for s in range(p):
            while at[s] < len(orders[s]):
                kind, i = orders[s][at[s]]
                if kind == "F":
                    needs = done.get(("F", s - 1, i), None if s else 0.0)
                    wait = late[s - 1] if s else 0.0
                else:
                    needs = done.get(("B", s + 1, i)) if s < p - 1 else done.get(("F", s, i))
                    wait = late[s] if s < p - 1 else 0.0
                if needs is None:
                    break
                free[s] = max(free[s], needs + wait) + (f if kind == "F" else b)
                done[kind, s, i] = free[s]
                to = s if kind == "F" else s - 1
                if link and 0 <= to < p - 1 and late[to]:
                    done[kind, s, i] = wire[kind, to] = max(free[s], wire.get((kind, to), 0.0)) + link
                at[s] += 1
    return max(free)


def one_f_one_b(p, m):
    out = []
    for s in range(p):
        warm = min(p - s - 1, m)
        row = [("F", i) for i in range(warm)]
        for i in range(m - warm):
            row += [("F", warm + i), ("B", i)]
        out.append(row + [("B", i) for i in range(m - warm, m)])
    return out


def gpipe(p, m):
    return [[("F", i) for i in range(m)] + [("B", i) for i in range(m)] for _ in range(p)]


@given(st.integers(2, 4), st.integers(1, 3), st.integers(1, 8), st.floats(0.0, 20.0))
@settings(max_examples=60, deadline=None)
def test_a_pipelines_wait_is_what_running_it_takes(sites, each, rounds, delay):
    """Exactly for GPipe, and for 1F1B with one or two stages a site; with more at most two journeys over."""
    p = sites * each
    m = rounds * p
    for name, orders in (("1f1b", one_f_one_b(p, m)), ("gpipe", gpipe(p, m))):
        ran = makespan(p, m, sites, delay, orders) - makespan(p, m, sites, 0.0, orders)
        said = float(site_wait_s(sites, p, m, delay, 0.0, 3.0 * m, name == "1f1b"))
        over = 2.0 * delay if name == "1f1b" and each > 2 else 0.0
        assert ran - 1e-6 <= said <= ran + over + 1e-6


@given(st.integers(2, 8), st.integers(2, 8), st.floats(0.0, 5.0), st.floats(0.1, 5.0))
@settings(max_examples=60, deadline=None)
def test_a_link_that_is_slower_than_a_pass_sets_gpipes_pace(sites, rounds, delay, link):
    """One stage a site: exactly, but for one pass more or less at each end."""
    m = rounds * sites
    ran = makespan(sites, m, sites, delay + 1e-9, gpipe(sites, m), link=link) - makespan(
        sites, m, sites, 0, gpipe(sites, m)
    )
    said = float(site_wait_s(sites, sites, m, delay + link, link, 3.0 * m, False))
    assert ran - 1e-6 <= said <= ran + 2.0 * link + 1e-6


def test_why_no_pipeline_is_there_is_said_in_words_of_sites():
    pipeline = site_ways(case(gpus=(17, 17), batch=2))[-1]
    assert pipeline.none == "no layout with a multiple of 2 stages is legal and fits"


def test_fp32_sends_twice_the_bytes():
    layouts = case().best(32, 256, pp=(2,), pipelined=True).layouts
    twice = boundary_bytes(SETUP, replace(layouts, precision=np.array([Precision.FP32])))
    assert twice == pytest.approx(2.0 * boundary_bytes(SETUP, layouts))


def test_the_square_cube_law():
    """Wider models send less for what they compute (SWARM, arXiv 2301.11913): bytes grow with the width, work with
    its square."""
    shares = []
    for model in ("llama-7b", "llama-33b", "llama-65b"):
        setup = load_setup(model, CLUSTER, framework="megatron-core")
        found = case(setup=setup).best(32, 256, pp=(2,), pipelined=True)
        link = float(boundary_bytes(setup, found.layouts)[0]) / 6.25e7  # 500 Mb/s
        m, work = int(found.layouts.micro_batches[0]), float(found.step_time_s[0] - found.time.bubble_s[0])
        waits = float(site_wait_s(2, 2, m, link + 0.1, link, work, False))
        shares.append(float(found.step_time_s[0]) / (float(found.step_time_s[0]) + waits))
    assert np.all(np.diff(shares) > 0)


ASKED = {
    "sites": [16, 16], "gbit": [1.0], "latency_ms": 1.0, "batch": 256, "sync_every": 100, "shares": None,
    "bits": 32, "overlap_steps": 1.0, "replica_law": "charles-2025", "exact_tokens": True,
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "says"), [
    ({"sites": []}, "sites are 0"), ({"gbit": [1.0, 2.0, 3.0]}, "gbit has 3 values; allowed: one, or one per site, 2"),
    ({"gbit": [0.0]}, "gbit is 0"), ({"latency_ms": float("nan")}, "latency_ms is nan"), ({"bits": 5}, "bits is 5"),
    ({"top_k": 0.0}, "top_k is 0"), ({"top_k": float("nan")}, "top_k is nan"), ({"rank": 0}, "rank is 0"),
    ({"rank": 4097}, "rank is 4097; allowed: a whole number from 1 to 4096"), ({"sync_every": 0}, "sync_every is 0"),
    ({"shares": 33}, "shares is 33"), ({"overlap_steps": -1}, "overlap_steps"),
    ({"overlap_steps": 31.0, "sync_every": 30}, "overlap_steps is 31"),
    ({"batch": 255}, "global_batch is 255 on 2 sites of 16 GPUs; allowed: .*: 254 or 256"),
    ({"sites": [16, 16, 8], "batch": 4}, "4 on sites of 2 x 16, 8 GPUs; allowed: .* to its GPUs: 5$"),
    ({"sites": [16, 0]}, "sites is 0"),
])  # fmt: skip
def test_bad_input_is_one_clear_line(wrong, says):
    with pytest.raises(InputError, match=says):
        training_on_sites(SETUP, GOAL, {}, **(ASKED | wrong))


def test_where_no_way_is_there_and_an_unknown_law_are_one_line_too():
    with pytest.raises(
        LayoutError,
        match=r"trains in no way on 2 sites of 16 GPUs \(16x2: 16 sites of 2\); one site alone: .* tp must divide",
    ):
        training_on_sites(SETUP, GOAL, {}, **ASKED, tp=[64])
    with pytest.raises(LayoutError, match=r"on 2 sites of 8 GPUs \(8x2: 8 sites of 2\); one site alone: "):
        training_on_sites(SETUP, GOAL, {}, **(ASKED | {"sites": [8, 8]}), tp=[64])
    with pytest.raises(LayoutError, match="on sites of 8, 16 GPUs; one site alone: "):
        training_on_sites(SETUP, GOAL, {}, **(ASKED | {"sites": [8, 16], "batch": 384}), tp=[64])
    with pytest.raises(UnknownNameError, match="law of replicas"):
        training_on_sites(SETUP, GOAL, {}, **(ASKED | {"replica_law": "none"}))


def test_the_answer_says_how_accurate_it_is_and_keeps_to_the_framework():
    setup = setup_under("llama3-8b", load_cluster("dgx-h100"), "torchtitan")
    answer = training_on_sites(setup, goal(setup.model, tokens=1e11), {}, **ASKED)
    accuracy = answer.to_dict()["accuracy"]
    assert "measured runs on hopper GPUs" in accuracy
    assert "no measured run has such links" in accuracy
    assert " ".join(repr(answer).split()).endswith(f"How accurate: {accuracy}")
    assert not [w["layout_text"] for w in answer.to_dict()["ways"] if "zb-" in (w["layout_text"] or "")]
