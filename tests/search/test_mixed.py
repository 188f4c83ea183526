"""`planner mixed`: the homogeneous limit, brute force, permutations, bounds, a published order, bad files."""

import re
from dataclasses import replace
from functools import partial
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from planner import Cluster, Model, recommend
from planner.api.sites import question, training_on_groups
from planner.base.errors import FileFormatError, InputError, LayoutError, UnknownNameError
from planner.cli import application
from planner.hardware import load_cluster, load_link
from planner.hardware.groups import load_mixed
from planner.layouts import Layouts
from planner.question import load_setup
from planner.report.sites import _said
from planner.search.mixed import least_s, mixed_ways, shared_out
from planner.search.mixed_pipeline import _candidates, least_makespan_s, pipeline_of
from planner.search.mixed_question import MixedQuestion, MixedWay
from planner.step.partition import partition
from planner.step.timeline.mixed import mixed_step
from planner.step.timeline.step import simulate
from tests.training_time.test_sites import makespan, one_f_one_b

BATCH = 64


def file_of(path, *groups, network=None):
    text = 'name = "mixed"\n' + (f'network = "{network}"\n' if network else "")
    for cluster, gpus, *own in groups:
        text += f'[[groups]]\ncluster = "{cluster}"\ngpus = {gpus}\n' + (f'network = "{own[0]}"\n' if own else "")
    path.write_text(text)
    return str(path)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return file_of(tmp_path_factory.mktemp("mixed") / "two.toml", ("dgx-h100", 16), ("dgx-a100-80gb", 16))


@pytest.fixture(scope="module")
def answer(two):
    """Of training on these two groups."""
    return training_on_groups("llama-7b", two, batch=BATCH)


@pytest.fixture(scope="module")
def ways(answer):
    """The best first."""
    return answer.to_dict()["ways"]


def test_the_answer_says_how_accurate_each_kind_of_gpu_alone_is(answer):
    accuracy = answer.to_dict()["accuracy"]
    assert all(f"{name}: on " in accuracy for name in ("ampere", "hopper"))
    assert " ".join(repr(answer).split()).endswith(f"How accurate: {accuracy}")
    assert "pipelines over V100 and T4 nodes" in accuracy


def test_a_pipeline_says_what_is_recomputed_and_nothing_where_nothing_is(answer, ways):
    part = next(w for w in ways if w["way"] == "pipeline")["parts"][0]
    assert part["layout"]["recompute"] == "none"
    assert re.search(r"pipeline dp [0-9]+ mb [0-9]+  +dgx", repr(answer))
    assert ": 1 sequence, dp" in _said("replicas", part | {"global_batch": 1, "layers": None})


def test_equal_groups_give_the_homogeneous_answer_bit_for_bit(tmp_path):
    path = file_of(tmp_path / "equal.toml", ("dgx-a100-80gb", 16), ("dgx-a100-80gb", 16))
    record = training_on_groups("llama-7b", path, batch=BATCH).to_dict()
    network = load_cluster("dgx-a100-80gb").network.name
    best = recommend(Model("llama-7b"), Cluster("dgx-a100-80gb"), gpus=32, batch=BATCH, top=1).best
    assert record["groups"] == [{"cluster": "dgx-a100-80gb", "network": network, "gpus": 32}]
    assert record["ways"][0]["step_time_s"] == best.step_time_s
    assert record["ways"][0]["parts"][0]["layout"].items() >= best.layout.items()


@pytest.mark.parametrize("layers", ["Et*8|t*8|t*8|t*8L", "Et*5|t*11|t*9|t*7L"])
def test_a_pipeline_over_two_halves_of_one_cluster_is_its_simulation(layers):
    setup = load_setup("llama-7b", "dgx-a100-80gb")
    one = Layouts.of(tp=2, pp=4, dp=4, global_batch=64, zero=1, pipeline_layout=layers)
    whole = simulate(setup, one)
    step, peak = mixed_step([setup, setup], [one, one], np.array([0, 0, 1, 1]), np.zeros(4), np.zeros(4))
    assert step == pytest.approx(whole.step_time_s, rel=1e-12)
    assert np.allclose(peak, whole.peak_bytes, rtol=1e-12)


def test_the_order_of_the_groups_in_the_file_says_nothing(tmp_path, ways):
    other = file_of(tmp_path / "other.toml", ("dgx-a100-80gb", 8), ("dgx-h100", 16), ("dgx-a100-80gb", 8))
    assert training_on_groups("llama-7b", other, batch=BATCH).to_dict()["ways"] == ways


def test_more_machines_never_hurt_and_useless_ones_are_left_out(tmp_path, ways):
    singles = [w for w in ways if w["way"] == "one group"]
    assert len(singles) == 2
    assert ways[0]["step_time_s"] <= min(w["step_time_s"] for w in singles)
    slow = file_of(tmp_path / "slow.toml", ("dgx-h100", 16), ("rtx-3090-server", 8), network="ethernet-10g")
    record = training_on_groups("llama-7b", slow, batch=BATCH).to_dict()
    names = [g["cluster"] for g in record["groups"]]
    assert [names[g] for g in record["ways"][0]["left_out"]] == ["rtx-3090-server"]


@given(st.integers(2, 3), st.integers(3, 9), st.randoms(use_true_random=False))
def test_parts_shared_out_are_the_best_though_more_may_take_less_and_some_none(groups, parts, random):
    took = [[random.choice([random.uniform(0.1, 3.0), np.inf, n + 1]) for n in range(parts)] for _ in range(groups)]

    def seconds(g, n, reach_s):
        return took[g][n - 1] if took[g][n - 1] <= reach_s else np.inf

    has = shared_out(seconds, groups, parts)
    every = [x for x in product(range(1, parts + 1), repeat=groups) if sum(x) == parts]
    assert sum(has) == parts
    assert min(has) > 0
    best = min(max(took[g][n - 1] for g, n in enumerate(x)) for x in every)
    assert max(took[g][n - 1] for g, n in enumerate(has)) == best


def test_groups_without_a_name_have_their_file_s(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[[groups]]\ncluster = "dgx-h100"\ngpus = 8\n')
    assert load_mixed(path).name == "mine"


def test_makers_without_a_common_library_are_no_job(tmp_path):
    file = tmp_path / "both.toml"
    file.write_text("[[groups]]\ncluster = 'dgx-h100'\ngpus = 8\n[[groups]]\ncluster = 'mi300x-server'\ngpus = 8\n")
    with pytest.raises(FileFormatError, match="groups join mi300x-server and dgx-h100; allowed: AMD's GPUs"):
        load_mixed(str(file))


def test_caps_on_memory_hold_in_each_group(two):
    """A layout fits with 95 % unless another chance is asked for, in a group as in a search of its own."""
    rooms = {}
    for name, asked in {"none": {}, "cap": {"max_memory_gib": 30.0}, "chance": {"fit_chance": 0.99}}.items():
        setups = question(load_mixed(two), "llama-7b", 64, **asked).setups
        rooms[name] = [s.cluster.accelerator.usable_bytes / s.cluster.accelerator.memory_bytes for s in setups]
    assert rooms["cap"] == pytest.approx([30.0 / 79.19] * 2, abs=2e-3)
    assert all(0.5 < surer < sure < 0.9 for sure, surer in zip(rooms["none"], rooms["chance"], strict=True))
    done = CliRunner().invoke(application(("mixed", "models")), ["mixed", "llama-7b", two, "--max-memory", "many"])
    assert str(done.exception) == "--max-memory is 'many'; allowed: a number of GiB, such as 8GiB"


def test_replicas_are_the_best_of_every_split(tmp_path):
    """A walk that moves one part at a time ends at 36 and 60 of 96 sequences; 24 and 72 are 4 % faster."""
    path = file_of(tmp_path / "small.toml", ("dgx-h100", 4), ("dgx-a100-80gb", 4))
    asked = question(load_mixed(path), "gpt2", 96)
    way = next(w for w in mixed_ways(asked) if w.name == "replicas")
    took = {(g, n): asked.alone(g, n, np.inf)[0] for g in (0, 1) for n in range(3, 96, 3)}
    best = min(max(took[0, n], took[1, 96 - n]) for n in range(3, 96, 3))
    assert max(took[g, n] for g, n in zip(way.groups, way.batches, strict=True)) == best


@pytest.mark.parametrize(
    ("model", "clusters"), [("llama-7b", ("dgx-h100", "dgx-b200")), ("mixtral-8x7b", ("dgx-h200", "gb200-nvl72"))]
)
def test_no_group_trains_faster_than_its_matrix_products(tmp_path, model, clusters):
    path = file_of(tmp_path / "two.toml", *((name, 32) for name in clusters))
    asked = question(load_mixed(path), model, 64)
    for g in (0, 1):
        for sequences in (32, 64):
            least = least_s(asked, g, sequences)
            assert 0.4 * asked.alone(g, sequences, np.inf)[0] < least < asked.alone(g, sequences, np.inf)[0]
        assert least_s(asked, g, 64) == pytest.approx(2 * least_s(asked, g, 32), rel=1e-12)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(2, 6), st.randoms(use_true_random=False))
def test_layers_over_unequal_stages_equal_brute_force_within_their_memory(a, b, more, random):
    p, n = a + b, a + b + more
    cost = np.array([[random.uniform(0.2, 2.0)] * n for _ in range(p)])
    cap = [random.uniform(2.0, n) for _ in range(p)]
    splits = [
        x
        for x in product(range(1, n + 1), repeat=p)
        if sum(x) == n and all(k <= c for k, c in zip(x, cap, strict=True))
    ]
    if not splits:
        with pytest.raises(LayoutError, match="keeps every stage's memory"):
            partition(cost, p, size_bytes=lambda s: np.ones(n), cap_bytes=lambda s: cap[s])
        return
    sizes = partition(cost, p, size_bytes=lambda s: np.ones(n), cap_bytes=lambda s: cap[s])
    best = min(max(k * cost[s, 0] for s, k in enumerate(x)) for x in splits)
    assert max(k * cost[s, 0] for s, k in enumerate(sizes)) == pytest.approx(best)


def test_no_pipeline_is_faster_than_its_bound_and_the_search_finds_the_best(two, ways):
    """All pipelines of one micro-batch size without recomputation, each simulated, against what the search keeps."""
    asked = question(load_mixed(two), "llama-7b", BATCH)
    found = next(w for w in ways if w["way"] == "pipeline")
    best = np.inf
    for dp, left, right in product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)):
        if 16 % (dp * left) or 16 % (dp * right):
            continue
        for order, tp in (((0, 1), (left, right)), ((1, 0), (right, left))):
            stages = tuple(16 // (dp * t) for t in tp)
            common = {"dp": dp, "micro_batch": 1, "global_batch": BATCH, "recompute": 0, "zero": 1}
            try:
                way = pipeline_of(asked, order, tp, stages, partial(Layouts.of, **common))
            except LayoutError:
                continue
            best = min(best, way.step_s)
            fastest = 1e-4  # no layer of a 7B takes less on a GPU
            assert way.step_s >= least_makespan_s(32, BATCH // dp, stages, [fastest] * 2)
            assert sum(map(sum, way.layers)) == 32
    assert found["step_time_s"] <= best * (1 + 1e-12)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 12), st.floats(0.5, 3), st.floats(0.5, 3))
def test_the_bound_is_under_every_split(a, b, m, s, t):
    """m T_s + what lies ahead of stage s is what 1F1B takes at least (`test_sites.makespan` runs it)."""
    layers, seconds = 3 * (a + b), [s] * a + [t] * b
    p = a + b
    for split in ([3] * p, [1] * a + [(layers - a) // b] * (b - 1) + [layers - a - (layers - a) // b * (b - 1)]):
        works = [n * x for n, x in zip(split, seconds, strict=True)]
        ran = max(m * w + sum(works[:k]) for k, w in enumerate(works))
        assert least_makespan_s(layers, m, [a, b], [s, t]) <= ran * (1 + 1e-9)
    even = least_makespan_s(layers, m, [p], [s])
    assert even <= makespan(p, m, 1, 0.0, one_f_one_b(p, m), f=s, b=2 * s) * (1 + 1e-9)


def test_holmes_order(tmp_path):
    """Holmes, arXiv 2312.03549 (figures recalled): GPT of 3.6B, 32 A100 on InfiniBand 197, on RoCE 160, half and half
    joined by Ethernet 149, on Ethernet 122 TFLOP/s a GPU. The order is ours, the size not (docs/network.md).
    NICs of a node as its config.json has them: four of InfiniBand, two of RoCE; their Gb/s recalled."""
    model = tmp_path / "gpt.toml"
    model.write_text(
        '[model]\nfamily = "gpt"\nlayers = 30\nhidden = 3072\nffn = 12288\nheads = 32\nvocab = 51200\nseq_len = 2048\n'
    )
    for name, nics in (("ib", 4), ("roce", 2), ("eth", 1)):
        (tmp_path / f"{name}.toml").write_text(
            f'name = "{name}"\nbase = "dgx-a100-80gb"\nnics_per_node = {{ value = {nics}, source = "holmes" }}\n'
            '[sources]\nholmes = "config.json of Holmes"\n'
        )
    ib, roce, eth = (str(tmp_path / f"{n}.toml") for n in ("ib", "roce", "eth"))
    files = {
        "InfiniBand": [(ib, 32, "infiniband-hdr")], "RoCE": [(roce, 32, "ethernet-200g-rdma")],
        "hybrid": [(ib, 16, "infiniband-hdr"), (roce, 16, "ethernet-200g-rdma")],
        "Ethernet": [(eth, 32, "ethernet-25g")],
    }  # fmt: skip
    steps = {}
    for name, groups in files.items():
        path = file_of(tmp_path / f"{name}.toml", *groups, network="ethernet-25g")
        asked = question(load_mixed(path), str(model), 768, "megatron-lm")
        common = {"dp": 16, "micro_batch": 4, "global_batch": 768, "recompute": 1, "zero": 1}
        if len(asked.gpus) == 2:
            steps[name] = pipeline_of(asked, (0, 1), (1, 1), (1, 1), partial(Layouts.of, **common)).step_s
        else:
            one = Layouts.of(tp=1, pp=2, **common, **asked.numerics[0])
            steps[name] = simulate(asked.setups[0], one).step_time_s
    assert list(steps) == sorted(steps, key=lambda k: steps[k])


@pytest.mark.parametrize(("text", "error", "says"), [
    ('name = "a"\n', FileFormatError, "groups"), ('name = "a"\ngroups = []\n', FileFormatError, "groups"),
    ('name = "a"\n[[groups]]\ncluster = "dgx-h100"\n', FileFormatError, "gpus"),
    ('name = "a"\n[[groups]]\ncluster = "dgx-h100"\ngpus = 0\n', FileFormatError, "gpus"),
    ('name = "a"\n[[groups]]\ncluster = "dgx-h100"\ngpus = 8\nsize = 3\n', FileFormatError, "size"),
    ('name = "a"\n[[groups]]\ncluster = "dgx-h1"\ngpus = 8\n', UnknownNameError, "dgx-h1"),
    ('name = "a"\nnetwork = "x"\n[[groups]]\ncluster = "dgx-h100"\ngpus = 8\n', UnknownNameError, "x"),
    ('name = "a"\n[[groups]]\ncluster = "dgx-h100"\ngpus = 8\n[[groups]]\ncluster = "dgx-1-v100"\ngpus = 8\n',
     InputError, "bf16, fp16; allowed: groups of one precision"),
])  # fmt: skip
def test_bad_files_are_one_clear_line(tmp_path, text, error, says):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(error, match=says):
        training_on_groups("llama-7b", str(path), batch=64)


def test_what_fits_nowhere_is_said(tmp_path):
    path = file_of(tmp_path / "small.toml", ("dgx-h100", 8), ("dgx-a100-80gb", 8))
    with pytest.raises(
        LayoutError,
        match="on the last: no layout of gpt3-175b on 8 GPUs fits in memory: the least needs",
    ):
        training_on_groups("gpt3-175b", path, batch=8)


def test_a_faster_link_between_groups_never_hurts(two):
    mixed = load_mixed(two)
    steps = []
    for name in ("ethernet-10g", "ethernet-100g", "infiniband-ndr"):
        asked = question(replace(mixed, network=load_link(name)), "llama-7b", 64)
        common = {"dp": 4, "micro_batch": 1, "global_batch": 64, "recompute": 0, "zero": 1}
        steps.append(pipeline_of(asked, (0, 1), (2, 2), (2, 2), partial(Layouts.of, **common)).step_s)
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1]


def test_of_more_than_three_groups_one_order_is_tried(tmp_path):
    """The order of their memory; of three all six are."""
    names = ("dgx-h100", "dgx-a100-80gb", "dgx-h200", "dgx-a100-40gb")
    asked = question(load_mixed(file_of(tmp_path / "four.toml", *((name, 1) for name in names))), "gpt2", 8)
    assert [setup.cluster.name for setup in asked.setups][::3] == ["dgx-h200", "dgx-a100-40gb"]
    assert {order for _, order, *_ in _candidates(asked, (0, 1, 2, 3))} == {(0, 1, 2, 3)}
    assert {order for _, order, *_ in _candidates(asked, (0, 1, 3))} == set(permutations((0, 1, 3)))


def test_a_group_whose_memory_is_short_gets_fewer_layers(two):
    asked = question(load_mixed(two), "llama-7b", 16)
    common = partial(Layouts.of, dp=1, micro_batch=1, global_batch=16, recompute=0, zero=0)
    names = [setup.cluster.name for setup in asked.setups]
    order = (names.index("dgx-a100-80gb"), names.index("dgx-h100"))
    free = pipeline_of(asked, order, (1, 1), (2, 2), common)
    cap = 45.0 * 2**30
    short = tuple(
        replace(x, cluster=replace(x.cluster, accelerator=replace(x.cluster.accelerator, memory_bytes=cap)))
        if x.cluster.name == "dgx-h100" else x for x in asked.setups
    )  # fmt: skip
    way = pipeline_of(replace(asked, setups=short), order, (1, 1), (2, 2), common)
    peaks = mixed_step([short[g] for g in order], way.layouts, np.array([0, 0, 1, 1]), np.zeros(4), np.zeros(4))[1]
    assert sum(free.layers[1]) > sum(way.layers[1])
    assert max(peaks[2:]) <= cap
    assert sum(map(sum, way.layers)) == 32
    assert way.step_s > free.step_s


def test_a_pipeline_is_looked_for_up_to_half_as_slow_again_as_the_fastest_way_so_far(monkeypatch):
    """Replicas of both groups take 4 s; so a pipeline under 6 s is listed, whatever the seconds of a step are."""
    asked_under = []

    def pipeline(asked, some, under_s):
        asked_under.append(under_s)
        return MixedWay(name="pipeline", groups=some, step_s=5.0, layouts=())

    def other(name, step_s):
        return lambda asked, some, _: MixedWay(name=name, groups=some, step_s=step_s, layouts=())

    monkeypatch.setattr("planner.search.mixed.fastest_pipeline", pipeline)
    monkeypatch.setattr("planner.search.mixed._replicas", other("replicas", 4.0))
    monkeypatch.setattr("planner.search.mixed._one_group", other("one group", 7.0))
    asked = MixedQuestion(
        setups=(None, None), gpus=(8, 8), network=None, batch=8, numerics=({}, {}), alone=lambda *_: (1.0, None)
    )
    ways = mixed_ways(asked)
    assert asked_under == [6.0]
    assert [way.name for way in ways] == ["replicas", "pipeline", "one group", "one group"]


def test_the_framework_is_the_strongest_groups(tmp_path):
    """H100 beside as many A100, in either order of the file: Megatron-Core, as on H100 alone."""
    for groups in ([("dgx-h100", 8), ("dgx-a100-80gb", 8)], [("dgx-a100-80gb", 8), ("dgx-h100", 8)]):
        asked = question(load_mixed(file_of(tmp_path / "m.toml", *groups)), "gpt2", 32)
        assert {s.framework.name for s in asked.setups} == {"megatron-core"}
    many = question(load_mixed(file_of(tmp_path / "m.toml", ("dgx-h100", 8), ("dgx-a100-80gb", 64))), "gpt2", 96)
    assert {s.framework.name for s in many.setups} == {"megatron-lm"}
