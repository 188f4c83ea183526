"""The router's kernels and the copies of tokens on their way to experts and back, worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from planner.costs.layer.expert_routing import ADDS_PER_UNIT_S, Routing, permute_s, routed_s
from planner.costs.layer.layer_cost import pointwise_s
from planner.hardware import load_framework
from planner.layouts import Dispatcher, Precision
from tests.costs.toy import BYTES, FRAMEWORK, LAUNCHES, LLAMA, MOE, case, device, layout

ROUTED = replace(MOE, num_shared_experts=0, num_dense_layers=0)  # every layer has four experts, two a token
FRAMEWORKS = [FRAMEWORK, replace(FRAMEWORK, fused_routing=True), replace(FRAMEWORK, node_dispatch=True)]
ELEMENTS = 48 * 8  # of the hidden state of three sequences of 16 tokens


def once(of, chosen, how, model=ROUTED):
    return [float(np.ravel(x)[0]) for x in permute_s(case(of, model, chosen), how)]


@pytest.mark.parametrize(
    ("how", "forward", "backward"),
    [
        (Routing.EAGER, 1 + 2 * (7 + 4), 1 + 2 * (11 + 4)),
        (Routing.FUSED, 1 + 2 * (3 + 4), 1 + 2 * (4 + 4)),
        (Routing.NODES, 2 * 4, 2 * 4),
    ],
)
def test_copies_of_every_token(how, forward, backward):
    """Two copies of two bytes an element; a rank has several experts, so what arrives is sorted."""
    assert once(BYTES, layout(), how) == [2 * ELEMENTS * forward, 2 * ELEMENTS * backward]


def test_copies_added_number_by_number_take_the_units_their_time():
    """Two copies of every number by one unit, in place of three passes over the copies; a kernel for all has none."""
    one_by_one = replace(FRAMEWORK, single_adds=True)
    for how, adds in ((Routing.EAGER, 2 * ELEMENTS / ADDS_PER_UNIT_S), (Routing.FUSED, 0.0)):
        rows, numbers = (permute_s(case(BYTES, ROUTED, layout(), framework=f), how) for f in (FRAMEWORK, one_by_one))
        for whole, single in zip(rows, numbers, strict=True):
            passes = 2 * ELEMENTS * 2 * 3 if adds else 0.0
            assert single[0] == pytest.approx(whole[0] - passes + adds, rel=1e-12)


def test_two_measured_sums_of_other_gpus_are_within_a_third():
    """H20's 67 million numbers in 2.07 ms tell the rate; A100 adds fewer, and B200 with half of them to one row."""
    for units, adds, seconds in (
        (78, 1024 * 65536, 2.067e-3),
        (108, 1024 * 32768, 1.102e-3),
        (148, 7.77e6 * 512, 83.6e-3),
    ):
        assert 0.65 < adds / (ADDS_PER_UNIT_S * units) / seconds < 1.01


def test_a_rank_with_one_expert_sorts_nothing_that_arrives():
    alone = layout(dp=4, ep=4)
    assert once(BYTES, alone, Routing.EAGER) == [2 * ELEMENTS * (1 + 2 * 7), 2 * ELEMENTS * (1 + 2 * 11)]
    assert once(BYTES, alone, Routing.FUSED)[0] == 2 * ELEMENTS * (1 + 2 * 3)


def test_copies_gathered_for_cut_experts_are_sorted_whole():
    """Two tensor ranks route half of the tokens each; a cut expert sorts both halves, a whole one its own."""
    half = ELEMENTS / 2
    cut, whole = (layout(tp=2, dp=2, ep=2, etp=etp, sequence_parallel=True) for etp in (2, 1))
    assert once(BYTES, cut, Routing.EAGER)[0] == 2 * half * (1 + 2 * 7 + 2 * 2 * 4)
    assert once(BYTES, whole, Routing.EAGER)[0] == 2 * half * (1 + 2 * 7 + 2 * 4)
    assert once(BYTES, cut, Routing.NODES)[0] == 2 * half * 2 * 2 * 4
    apart = layout(tp=2, dp=2, ep=2, etp=2)  # without sequence parallelism every rank has every token
    assert once(BYTES, apart, Routing.EAGER)[0] == 2 * ELEMENTS * (1 + 2 * 7 + 2 * 4)


def test_rows_are_padded_for_fp8_unless_the_dispatch_did():
    wide, narrow = layout(), layout(precision=Precision.FP8)
    for how, passes, kernels in ((Routing.EAGER, 4, 3), (Routing.FUSED, 4, 3), (Routing.NODES, 0, 0)):
        for of, more in ((BYTES, 2 * ELEMENTS * 2 * passes), (LAUNCHES, kernels)):
            pairs = zip(once(of, narrow, how), once(of, wide, how), strict=True)
            assert [a - b for a, b in pairs] == [more, more]


def test_deepep_leaves_rows_to_be_padded_by_the_experts():
    wide, narrow = (layout(precision=p, dispatcher=Dispatcher.DEEPEP) for p in (Precision.BF16, Precision.FP8))
    pairs = zip(once(BYTES, narrow, Routing.NODES), once(BYTES, wide, Routing.NODES), strict=True)
    assert [a - b for a, b in pairs] == [2 * ELEMENTS * 2 * 4] * 2


def test_kernels_of_a_layer_with_experts():
    eager, fused, nodes = (once(LAUNCHES, layout(), how) for how in Routing)
    assert eager == [15 + 17 + 12 + 9 + 11, 27]
    assert fused == [3 + 4 + 12 + 4 + 2, 15]
    assert nodes == [7 + 4 + 4 + 2, 12]
    half = replace(ROUTED, num_dense_layers=1)
    assert once(LAUNCHES, layout(), Routing.EAGER, half) == [32, 13.5]


def test_a_layer_has_them_and_a_dense_one_none():
    chosen = layout()
    of = device(BYTES, chosen)
    eager, fused = ([float(x[0]) for x in pointwise_s(case(of, ROUTED, chosen, framework=f))] for f in FRAMEWORKS[:2])
    assert [a - b for a, b in zip(eager, fused, strict=True)] == [2 * ELEMENTS * 2 * 4, 2 * ELEMENTS * 2 * 7, 0]
    dense = [pointwise_s(case(of, LLAMA, chosen, framework=f))[0][0] for f in FRAMEWORKS]
    assert len(set(dense)) == 1
    assert once(BYTES, chosen, Routing.EAGER, LLAMA) == [0, 0]


def routing(framework):
    """How a framework routes on eight expert ranks, none of them told how: by its seconds."""
    of = case(BYTES, ROUTED, layout(dp=8, ep=4), framework=framework)
    seconds = [float(np.ravel(x)[0]) for x in routed_s(of)]
    ways = {how: [float(np.ravel(x)[0]) for x in permute_s(of, how)] for how in Routing}
    assert len({tuple(way) for way in ways.values()}) == len(Routing)
    return next(how for how, way in ways.items() if way == seconds)


def test_frameworks_say_which():
    names = {"megatron-core": Routing.EAGER, "nemo": Routing.EAGER, "megatron-bridge-alltoall": Routing.FUSED,
             "megatron-bridge": Routing.NODES, "megatron-core-deepep": Routing.NODES}  # fmt: skip
    assert {name: routing(load_framework(name)) for name in names} == names
    assert [routing(framework) for framework in FRAMEWORKS] == list(Routing)
