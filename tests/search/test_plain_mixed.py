"""Training on several groups told once more in plain numbers: unequal replicas, candidates for a pipeline, links."""

from dataclasses import replace
from functools import partial
from itertools import permutations, product
from math import ceil, inf

import numpy as np
import pytest

from planner.base.errors import LayoutError
from planner.hardware import load_cluster, load_framework, load_link
from planner.layouts import Layouts, Precision
from planner.models import counts, load_model
from planner.search.mixed import _one_group, _remembered, _replicas, mixed_ways
from planner.search.mixed_pipeline import _between_groups, _candidates, _layer_s, least_makespan_s
from planner.search.mixed_question import MixedQuestion
from planner.setup import Setup
from planner.step.step_costs import step_costs

MODEL = replace(load_model("gpt2"), num_layers=6, num_dense_layers=6, tied=False)
CLUSTERS = [load_cluster(name) for name in ("dgx-h100", "dgx-a100-80gb", "dgx-1-v100")]
LINKS = [None, load_link("ethernet-10g"), load_link("infiniband-hdr")]
NUMERICS = {"precision": Precision.FP16, "attention": 1}


def drawn(rng, groups: int, batch: int, alone=None) -> MixedQuestion:
    """Groups of drawn machines; of each group and part of the batch its own search's answer, drawn too."""
    framework = load_framework("megatron-lm")
    framework = replace(framework, grad_reduce_bytes=2.0, bf16_grad_reduce_bytes=4.0)
    setups = tuple(Setup(MODEL, CLUSTERS[int(rng.integers(3))], framework) for _ in range(groups))
    speed, start = rng.uniform(0.2, 3.0, groups), rng.uniform(0.0, 2.0, groups)

    def own(g: int, part: int, reach_s: float):
        divides = 1.0 if part // 2 % 3 else 0.7
        return start[g] + part * speed[g] * divides, Layouts.of(dp=1, global_batch=part, micro_batch=1)

    return MixedQuestion(
        setups=setups, gpus=tuple(int(n) for n in rng.choice([4, 8, 12, 16], groups)), batch=batch,
        numerics=(NUMERICS,) * groups, network=LINKS[int(rng.integers(3))], alone=alone or own,
    )  # fmt: skip


def link_of(asked: MixedQuestion, g: int):
    """Bytes/s that a group sends to others, and the latency."""
    cluster = asked.setups[g].cluster
    link = asked.network or cluster.network
    nodes = ceil(asked.gpus[g] / cluster.gpus_per_node)
    return nodes * cluster.nics_per_node * link.bandwidth_bytes_per_s * link.fraction, link.latency_s


@pytest.mark.parametrize("seed", range(24))
def test_replicas_end_with_the_slowest_and_what_of_their_sum_shows(seed):
    """All ways to share the batch, each a part at least; gradients travel behind two thirds of a micro-batch."""
    rng = np.random.default_rng(seed)
    groups, batch = int(rng.choice([2, 3])), int(rng.choice([8, 12, 34, 96]))
    asked = drawn(rng, 3, batch)
    some = tuple(sorted(rng.choice(3, groups, replace=False).tolist()))
    way = _replicas(asked, some, inf)
    parts = max(n for n in range(1, 33) if batch % n == 0)
    each = batch // parts
    every = [x for x in product(range(1, parts + 1), repeat=groups - 1) if sum(x) < parts]
    slowest = min(
        max(asked.alone(g, n * each, inf)[0] for g, n in zip(some, (*x, parts - sum(x)), strict=True)) for x in every
    )
    own = [asked.alone(g, n, inf) for g, n in zip(some, way.batches, strict=True)]
    assert max(x[0] for x in own) == pytest.approx(slowest)
    assert sum(way.batches) == batch
    assert all(n % each == 0 for n in way.batches)
    assert [int(x.global_batch[0]) for x in way.layouts] == list(way.batches)
    micro_batches = max(own, key=lambda x: x[0])[1].micro_batches[0]
    links = [link_of(asked, g) for g in some]
    size = float(counts.total_params(MODEL)) * 2.0
    travel = 2 * (groups - 1) / groups * size / min(x[0] for x in links) + 2 * max(x[1] for x in links)
    shown = max(travel - 2 / 3 / micro_batches * slowest, travel / 6)
    assert way.step_s == pytest.approx(slowest + shown)
    assert (way.name, way.groups) == ("replicas", some)


def test_a_group_that_can_t_train_a_part_gets_none_and_a_batch_of_one_part_no_replicas():
    rng = np.random.default_rng(1)

    def alone(g, part, reach_s):
        if g == 0 and part > 2:
            raise LayoutError("no layout")
        return float(part), Layouts.of(dp=1, global_batch=part, micro_batch=1)

    asked = drawn(rng, 2, 8, alone)
    assert _replicas(asked, (0, 1), inf).batches == (2, 6)
    with pytest.raises(LayoutError, match="a group has no part of the batch"):
        _replicas(replace(asked, batch=1), (0, 1), inf)
    only = _one_group(asked, (1,), inf)
    assert (only.name, only.groups, only.step_s, only.batches) == ("one group", (1,), 8.0, (8,))


def test_a_search_that_was_cut_off_is_made_again_for_more_seconds_and_no_other():
    asked = []

    def alone(g, part, reach_s):
        asked.append((g, part, reach_s))
        if reach_s < 2.0:
            raise LayoutError("none that fast")
        return (5.0 if reach_s < 4.0 else 4.0), Layouts.of(dp=1, global_batch=part, micro_batch=1)

    once = _remembered(alone)
    for reach_s in (1.0, 0.5, 2.0, 3.0):
        with pytest.raises(LayoutError):
            once(0, 8, reach_s)
    assert [once(0, 8, reach_s)[0] for reach_s in (4.0, 1.0, inf)] == [4.0, 4.0, 4.0]
    assert asked == [(0, 8, 1.0), (0, 8, 2.0), (0, 8, 3.0), (0, 8, 4.0)]


def test_ways_come_fastest_first_and_of_equal_ones_that_of_fewer_groups():

    def alone(g, part, reach_s):
        return 4.0, Layouts.of(dp=1, global_batch=part, micro_batch=1)

    asked = replace(drawn(np.random.default_rng(2), 2, 8, alone), gpus=(2, 2))
    ways = mixed_ways(asked)
    keys = [(way.step_s, len(way.groups), way.name) for way in ways]
    assert keys == sorted(keys)
    assert [way.groups for way in ways if way.name == "one group"] == [(0,), (1,)]


@pytest.mark.parametrize("seed", range(5))
def test_candidates_are_all_pipelines_that_divide_what_they_must(seed):
    rng = np.random.default_rng(seed)
    asked, some = drawn(rng, 3, int(rng.choice([2, 4]))), ((0, 1), (1, 2), (0, 1, 2), (0, 2), (0, 1))[seed]
    asked = replace(asked, gpus=tuple(int(n) for n in rng.choice([2, 4, 8], 3)))
    layer_s = {g: _layer_s(asked, g) for g in some}
    want = {}
    for dp, micro_batch, again in product(range(1, 17), (1, 2, 4), (0, 1, 2)):
        if asked.batch % (dp * micro_batch) or any(asked.gpus[g] % dp for g in some):
            continue
        nodes = {g: asked.setups[g].cluster.gpus_per_node for g in some}
        widths = [[t for t in (1, 2, 4, 8) if asked.gpus[g] // dp % t == 0 and t <= nodes[g]] for g in some]
        for tp in product(*widths):
            stages = {g: asked.gpus[g] // (dp * t) for g, t in zip(some, tp, strict=True)}
            if sum(stages.values()) > MODEL.num_layers + 2:
                continue
            width = dict(zip(some, tp, strict=True))
            for order in permutations(some):
                layer = [layer_s[g][width[g], micro_batch, again] for g in order]
                counted = tuple(stages[g] for g in order)
                bound = least_makespan_s(6, asked.batch // (dp * micro_batch), counted, layer)
                want[order, tuple(width[g] for g in order), counted, dp, micro_batch, again] = bound
    got = {}
    for bound, order, tp, stages, common in _candidates(asked, some):
        one = common.keywords
        got[order, tp, stages, one["dp"], one["micro_batch"], int(one["recompute"])] = bound
        assert (one["global_batch"], one["zero"]) == (asked.batch, 1)
    assert got == pytest.approx(want)


@pytest.mark.parametrize("seed", range(6))
def test_a_stage_waits_for_the_slower_of_two_groups_links(seed):
    rng = np.random.default_rng(seed)
    asked = drawn(rng, 3, 8)
    group = np.repeat([0, 1, 2], rng.integers(1, 3, 3))
    common = partial(Layouts.of, pp=len(group), micro_batch=1, global_batch=8, **NUMERICS)
    layouts = [common(tp=int(t), sequence_parallel=bool(t > 1)) for t in rng.choice([1, 2, 4], 3)]
    own, over = [], []
    for setup, one in zip(asked.setups, layouts, strict=True):
        outside = replace(setup.cluster, network=asked.network or setup.cluster.network)
        own.append(float(step_costs(setup, one).send_s[0]))
        over.append(float(step_costs(replace(setup, cluster=outside), one).send_s[0]))
    forward, backward = _between_groups(asked, list(asked.setups), layouts, group)
    for s in range(len(group)):
        came = s > 0 and group[s] != group[s - 1]
        goes = s + 1 < len(group) and group[s + 1] != group[s]
        slower = max(over[group[s]], over[group[s - 1]]) if came else 0.0
        assert forward[s] == pytest.approx(max(slower - own[group[s]], 0.0) if came else 0.0)
        slower = max(over[group[s]], over[group[s + 1]]) if goes else 0.0
        assert backward[s] == pytest.approx(max(slower - own[group[s]], 0.0) if goes else 0.0)
