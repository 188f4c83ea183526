"""`planner place`: links by hand and by plain loops, the plain estimate as a limit, brute force, invariances, files."""

import json
from dataclasses import replace
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import planner.search.placed as placed
from planner import estimate
from planner.api.placed import place_plan, read_bandwidths
from planner.base.errors import InputError
from planner.cli import application
from planner.search.placed import Placement, links_of


def plan_of(batch=8, model="llama-7b", **row):
    return estimate(model, "dgx-h100", batch=batch, **row).as_plan()


TWO_STAGES = plan_of(tp=8, pp=2, dp=2)
"""On four nodes: 0 and 1 have the first stage, 2 and 3 the second."""


def placement(shares, plan=TWO_STAGES):
    return Placement(setup=plan.setup, layouts=plan.layouts, shares=np.asarray(shares, dtype=float))


def uneven(nodes, seed, spread=0.3):
    return np.exp(np.random.default_rng(seed).normal(0.0, spread, (nodes, nodes)))


def as_set(links):
    return {tuple(pair) for pair in links.tolist()}


def test_links_by_hand():
    links = links_of(TWO_STAGES.setup, TWO_STAGES.layouts)
    assert as_set(links["data"]) == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert as_set(links["pipeline"]) == {(0, 2), (2, 0), (1, 3), (3, 1)}
    assert "tensor" not in links


PLAIN = [
    {"tp": 16, "dp": 2},
    {"tp": 4, "cp": 4, "dp": 3},
    {"tp": 2, "cp": 8, "pp": 2, "dp": 2},
    {"tp": 2, "cp": 16, "ulysses": 4},
    {"dp": 8, "pp": 4, "tp": 2},
    {"dp": 4, "pp": 4, "tp": 4, "virtual_stages": 2},
    {"dp": 32, "ep": 32, "model": "qwen3-30b-a3b"},
    {"dp": 16, "pp": 2, "ep": 4, "tp": 2, "sequence_parallel": True, "model": "qwen3-30b-a3b"},
    {"dp": 32, "tp": 1, "zero": 3, "dp_replicate": 2, "framework": "torchtitan"},
]


@pytest.mark.parametrize("row", PLAIN, ids=str)
def test_links_by_loops_over_ranks(row):
    """Megatron's order, tensor innermost, then context, data, pipeline: members of a group share their other places."""
    plan = plan_of(batch=96, **row)
    tp, cp, dp, pp = (plan.row[name] for name in ("tp", "cp", "dp", "pp"))
    ulysses, ep, etp = (plan.row[name] for name in ("ulysses", "ep", "etp"))
    shards = dp * cp // plan.row["dp_replicate"]
    ranks = range(tp * cp * dp * pp)
    at = [(r % tp, r // tp % cp, r // tp // cp % dp, r // tp // cp // dp) for r in ranks]
    members = {}
    for r, (t, c, d, p) in enumerate(at):
        members.setdefault(("tensor", c, d, p), []).append(r)
        members.setdefault(("ulysses", t, c // ulysses, d, p), []).append(r)
        members.setdefault(("context", t, c % ulysses, d, p), []).append(r)
        members.setdefault(("data", t, (d * cp + c) // shards, p), []).append(r)
        inside = r % (tp * cp * dp)
        members.setdefault(("expert", inside % etp, inside // etp // ep, p), []).append(r)
        members.setdefault(("stages", t, c, d), []).append(r)
    want = {}
    for (kind, *_), group in members.items():
        all_to_all = kind in ("expert", "ulysses")
        pairs = [(a, b) for a in group for b in group] if all_to_all else list(pairwise(group))
        if kind == "stages":
            pairs += [(b, a) for a, b in pairs]
        if not all_to_all and (kind != "stages" or plan.row["virtual_stages"] > 1):
            pairs += [(group[-1], group[0])] + [(group[0], group[-1])] * (kind == "stages")
        name = "pipeline" if kind == "stages" else kind
        want.setdefault(name, set()).update((a // 8, b // 8) for a, b in pairs if a // 8 != b // 8)
    got = links_of(plan.setup, plan.layouts)
    for kind, pairs in want.items():
        assert as_set(got.get(kind, np.zeros((0, 2)))) == pairs, kind


def test_equal_links_are_the_plain_estimate_and_the_order_stays():
    one = placement(np.ones((4, 4)))
    assert one.of_order((2, 0, 3, 1)) == one.step_s({}) == TWO_STAGES.record["step_time_s"]
    assert one.best() == (0, 1, 2, 3)


def test_links_at_half_are_a_network_of_half_the_speed():
    plan = plan_of(tp=8, dp=4)
    half = replace(plan.setup.cluster, network=plan.setup.cluster.network.faster(0.5))
    slow = Placement(setup=replace(plan.setup, cluster=half), layouts=plan.layouts, shares=np.ones((4, 4)))
    halves = placement(np.full((4, 4), 0.5), plan)
    assert halves.of_order(range(4)) == slow.step_s({}) > halves.step_s({})


def test_the_given_order_stays_where_faster_links_save_nothing():
    """The links inside nodes hold a ring up that could go at ten times the network's speed, and at twenty."""
    shares = np.full((4, 4), 20.0)
    shares[0, 1] = 10.0
    one = placement(shares, plan_of(tp=8, dp=4))
    assert one.of_order((0, 3, 2, 1)) == one.of_order(range(4)) < one.step_s({})
    assert one.best() == (0, 1, 2, 3)


def test_one_slow_link_goes_where_no_traffic_is():
    """Between nodes 0 and 1: of the four places only the first and last, and the two others, have none between them."""
    shares = np.ones((4, 4))
    shares[0, 1] = shares[1, 0] = 0.25
    one = placement(shares)
    assert one.of_order(range(4)) == one.step_s({"data": 0.25, "expert_data": 0.25}) > one.step_s({})
    assert one.best() == (0, 2, 3, 1)
    assert one.of_order((0, 2, 3, 1)) == one.step_s({})


def test_one_way_of_a_link_alone_may_be_slow():
    """A ring of four passes each link one way: the other way round is free of it."""
    shares = np.ones((4, 4))
    shares[0, 1] = 0.25
    one = placement(shares, plan_of(tp=8, dp=4))
    assert one.of_order(range(4)) > one.step_s({})
    assert one.of_order((0, 3, 2, 1)) == one.of_order(one.best()) == one.step_s({})


def test_the_best_is_what_brute_force_finds():
    for seed in range(3):
        one = placement(uneven(4, seed))
        assert one.of_order(one.best()) == min(one.of_order(order) for order in permutations(range(4)))


SIX = plan_of(batch=6, tp=8, pp=2, dp=3)


def test_the_search_is_as_good_as_brute_force_on_few_nodes(monkeypatch):
    for seed in range(4):
        one = placement(uneven(6, seed), SIX)
        exact = one.of_order(one.best())
        with monkeypatch.context() as m:
            m.setattr(placed, "EXACT", 1)
            found = placement(one.shares, SIX).best()
        assert sorted(found) == list(range(6))
        assert exact <= one.of_order(found) <= 1.0005 * exact


def test_the_search_is_the_same_each_time_and_never_worse_than_the_given_order(monkeypatch):
    monkeypatch.setattr(placed, "STARTS", 3)
    plan = plan_of(batch=10, tp=8, pp=2, dp=5)
    shares = uneven(10, 5)
    first, again = placement(shares, plan), placement(shares, plan)
    order = first.best()
    assert order == again.best()
    assert first.of_order(order) < first.of_order(range(10))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), names=st.permutations(range(4)))
def test_names_of_nodes_change_nothing(seed, names):
    shares = uneven(4, seed)
    one, other = placement(shares), placement(shares[np.ix_(names, names)])
    assert other.of_order(other.best()) == one.of_order(one.best())
    assert other.of_order(range(4)) == one.of_order(names)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), link=st.tuples(st.integers(0, 3), st.integers(0, 3)), factor=st.floats(1.0, 10.0))
def test_a_faster_link_never_hurts(seed, link, factor):
    shares = uneven(4, seed)
    faster = shares.copy()
    faster[link] *= factor
    one, other = placement(shares), placement(faster)
    assert other.of_order(range(4)) <= one.of_order(range(4))
    assert other.of_order(other.best()) <= one.of_order(one.best())


@pytest.fixture
def files(tmp_path):
    """A plan on four nodes, and a matrix with a slow link between the first two."""
    (tmp_path / "plan.json").write_text(estimate("llama-7b", "dgx-h100", batch=8, tp=8, pp=2, dp=2).to_json())
    rows = [["2720"] * 4 for _ in range(4)]
    for i in range(4):
        rows[i][i] = "-"
    rows[0][1] = rows[1][0] = "680"
    (tmp_path / "gbit.csv").write_text("\n".join(map(",".join, rows)) + "\n")
    (tmp_path / "hosts.txt").write_text("# ours\na slots=8\nb\n\nc\nd\n")
    return tmp_path


def run(files, *more):
    arguments = ["place", str(files / "plan.json"), "--bandwidth", str(files / "gbit.csv"), *more]
    return CliRunner().invoke(application(("place",)), arguments)


def test_the_command_writes_the_hosts_in_the_best_order(files):
    out = files / "ordered.txt"
    done = run(files, "--hosts", str(files / "hosts.txt"), "--write", str(out), "--slots", "--json")
    assert out.read_text() == "a slots=8\nc slots=8\nd slots=8\nb slots=8\n"
    r = json.loads(done.stdout)
    assert r["order"] == [0, 2, 3, 1]
    assert r["exact"]
    assert r["best_step_time_s"] == r["uniform_step_time_s"] < r["given_step_time_s"]
    (slow,) = r["traffic"]  # neither experts nor sends go over it
    assert slow["kind"] == "data"
    assert slow["given"]["from"] == 0
    assert slow["given"]["to"] == 1
    assert slow["given"]["gbit_per_s"] == 680.0
    assert slow["given"]["held_up_s"] == pytest.approx(r["given_step_time_s"] - r["best_step_time_s"])
    run(files, "--write", str(out))
    assert out.read_text() == "node1\nnode3\nnode4\nnode2\n"


def test_the_command_says_the_gain_and_the_slow_link(files):
    text = run(files, "--hosts", str(files / "hosts.txt")).stdout
    assert "In another order of nodes a step takes" in text
    assert "a to b" in text
    assert "The best order: a c d b" in text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("1,2\n3\n", r"row 2 has 1 values; allowed: 2"),
        ("1,2,3\n4,5,6\n", r"row 1 has 3 values; allowed: 2"),
        ("1,0\n3,1\n", r"row 1, column 2 is '0'; allowed: a number of Gb/s"),
        ("1,2\nnan,1\n", r"row 2, column 1 is 'nan'; allowed: a number of Gb/s"),
        ("1,2\nfast,1\n", r"row 2, column 1 is 'fast'; allowed: a number of Gb/s"),
        ("1,2\n2,1\n", r"bandwidth has 2 nodes; allowed: the plan's 4, of 8 GPUs each"),
        ("", r"bandwidth has 0 nodes; allowed: the plan's 4"),
    ],
)
def test_bad_matrices_are_refused_in_one_line(files, text, fault):
    (files / "gbit.csv").write_text(text)
    with pytest.raises(InputError, match=fault):
        place_plan(TWO_STAGES, read_bandwidths(files / "gbit.csv"))


def test_other_faults_of_the_user(files):
    for text, fault in (("a\nb\nc\n", "hosts has 3 nodes"), ("a\nb\nc\na\n", "host 'a' is there twice")):
        (files / "hosts.txt").write_text(text)
        assert fault in str(run(files, "--hosts", str(files / "hosts.txt")).exception)
    assert "--slots stands without --write" in str(run(files, "--slots").exception)
    with pytest.raises(InputError, match="8 GPUs are on one node"):
        place_plan(plan_of(tp=8), np.ones((1, 1)))
    pods = replace(TWO_STAGES.setup.cluster, oversubscription=2.0)
    with pytest.raises(InputError, match="oversubscription is 2; allowed: 1"):
        place_plan(replace(TWO_STAGES, setup=replace(TWO_STAGES.setup, cluster=pods)), np.ones((4, 4)))
