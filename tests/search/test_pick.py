"""The layout to run among those too close to tell apart: by hand."""

from dataclasses import replace

import numpy as np

from planner.hardware import load_framework
from planner.layouts import Layouts, Recompute
from planner.search.pick import (
    LIKE,
    OTHER_DEGREES,
    OTHER_KINDS,
    kinds,
    on_fewest_context_ranks,
    plainest,
    spread_instead,
    told_apart,
    unusual,
)

MEGATRON = load_framework("megatron-core")


def test_the_plainest_of_what_can_not_be_told_from_the_fastest_is_taken():
    step_s, odd, chance = np.array([1.0, 1.05, 1.01, 1.06]), np.array([1, 0, 1, 0]), np.full(4, 0.96)
    alike = np.full(4, 0.02)
    assert plainest(step_s, chance, odd, alike) == 0
    assert plainest(step_s, np.array([0.96, 0.99, 0.98, 0.99]), odd, alike) == 2, "of as plain ones the likelier to fit"
    other_kinds = np.array([0.0, 0.07, 0.02, 0.07])
    assert plainest(step_s, chance, odd, other_kinds) == 1
    assert plainest(step_s, np.array([0.99, 0.96, 0.99, 0.97]), odd, other_kinds) == 3
    assert plainest(step_s, chance, odd, np.array([0.0, 0.04, 0.02, 0.06])) == 3


def test_layouts_that_differ_more_are_told_apart_less():
    layouts = Layouts.of(tp=[4, 4, 8, 1, 4], pp=[2, 2, 2, 4, 2], cp=[1, 1, 1, 1, 2], micro_batch=[1, 2, 1, 1, 1],
                         global_batch=8)  # fmt: skip
    assert told_apart(layouts, 0, 8).tolist() == [LIKE, LIKE, OTHER_DEGREES, OTHER_KINDS, OTHER_KINDS]
    assert told_apart(layouts, 4, 8)[0] == OTHER_KINDS
    assert told_apart(layouts, 0, 4)[2] == OTHER_KINDS, "tensor ranks over nodes are another kind"


def test_of_layouts_alike_a_framework_s_own_sequence_parallelism_is_taken():
    layouts = Layouts.of(tp=[2, 2, 2, 4, 1], sequence_parallel=[False, True, True, True, False], global_batch=8)
    step_s, plain = np.array([1.0, 1.012, 1.008, 1.001, 1.1]), np.array([1, 1, 1, 1, 0])

    def taken(best, step_s, odd):
        return spread_instead(layouts, step_s, odd, told_apart(layouts, best, 8), best)

    assert taken(0, step_s, plain) == 2
    assert taken(0, step_s, np.array([1, 1, 2, 1, 0])) == 1, "as plain alone"
    assert taken(0, step_s + np.array([0, 0.01, 0.01, 0, 0]), plain) == 0, "too slow"
    assert taken(1, step_s, plain) == 1
    assert taken(4, step_s, plain) == 4
    frameworks = [load_framework(name) for name in ("torchtitan", "torchtitan-compiled", "fsdp", "megatron-core")]
    assert [f.spreads_tokens for f in frameworks] == [True, True, False, False]


def test_chances_of_fitting_count_in_whole_percent():
    step_s, none_odd, alike = np.array([1.0, 1.01]), np.array([0, 0]), np.full(2, 0.02)
    assert plainest(step_s, np.array([0.949, 0.951]), none_odd, alike) == 0
    assert plainest(step_s, np.array([0.94, 0.95]), none_odd, alike) == 1
    assert plainest(step_s, np.array([0.991, 1.0]), none_odd, alike) == 0


def odd(layouts, seq_len=1 << 20):
    return unusual(layouts, seq_len, 8, MEGATRON).tolist()


def test_unusual_choices_are_counted():
    layouts = Layouts.of(
        pp=[1, 2, 2, 2, 2, 2], schedule=["1f1b", "1f1b", "zb-v", "interleaved", "interleaved", "interleaved"],
        virtual_stages=[1, 1, 2, 2, 12, 33], cp=[1, 1, 1, 4, 1, 1], global_batch=8,
    )  # fmt: skip
    assert odd(layouts, 4096) == [0, 0, 1, 2, 0, 2]
    assert odd(layouts, 8192) == [0, 0, 1, 1, 0, 2]
    assert odd(layouts, 16384) == odd(layouts, 1 << 20) == [0, 0, 1, 0, 0, 2]
    assert odd(layouts, 1024) == [0, 0, 1, 2, 0, 2]
    several = Layouts.of(cp=[1, 4, 1, 4], micro_batch=[1, 1, 2, 2], global_batch=8)
    assert odd(several) == [0, 0, 0, 2]
    wide = Layouts.of(tp=[8, 16, 32, 64], global_batch=8)
    assert odd(wide) == [0, 2, 4, 6]
    assert unusual(wide, 4096, 72, MEGATRON).tolist() == [0, 0, 0, 0]
    again = [Recompute.NONE, Recompute.FINE, Recompute.FULL]
    assert odd(Layouts.of(recompute=again, global_batch=8)) == [0, 0, 1]
    host = Layouts.of(offload_optimizer=[False, True], global_batch=8)
    assert odd(host) == [0, 2], "no measured run has it"
    ranks = Layouts.of(tp=[1, 2, 8, 1], cp=[1, 1, 1, 4], global_batch=8)
    assert odd(ranks) == [0, 0, 0, 0]
    assert unusual(ranks, 1 << 20, 8, replace(MEGATRON, splits_layers=False)).tolist() == [0, 1, 3, 2]
    ranks = Layouts.of(tp=[1, 2, 8, 1, 2], pp=[1, 1, 1, 2, 2], cp=[1, 1, 1, 4, 2], global_batch=8)
    assert unusual(ranks, 1 << 20, 8, replace(MEGATRON, data_parallel_alone=True)).tolist() == [0, 1, 1, 2, 3]


def test_as_many_sequences_on_as_many_more_context_ranks_are_no_other_answer():
    layouts = Layouts.of(cp=[1, 2, 4, 2, 4], micro_batch=[2, 4, 8, 1, 2], global_batch=8)
    assert kinds(layouts).tolist() == [0, 1, 2, 1, 2]
    assert kinds(on_fewest_context_ranks(layouts)).tolist() == [0, 0, 0, 1, 1]
