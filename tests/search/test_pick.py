"""The layout to run among those too close to tell apart: by hand."""

from dataclasses import replace

import numpy as np
import pytest

from planner import recommend
from planner.hardware import load_framework
from planner.layouts import Layouts, Recompute, Split
from planner.question import load_setup
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


def taken(step_s, chance, odd, apart):
    """The plainest where all are as far apart from every other."""
    return plainest(np.array(step_s), np.array(chance), np.array(odd), lambda _: np.array(apart))


def test_the_plainest_of_what_can_not_be_told_from_the_fastest_is_taken():
    step_s, odd, chance = np.array([1.0, 1.05, 1.01, 1.06]), np.array([1, 0, 1, 0]), np.full(4, 0.96)
    alike = np.full(4, 0.02)
    assert taken(step_s, chance, odd, alike) == 0
    assert taken(step_s, [0.96, 0.99, 0.98, 0.99], odd, alike) == 2, "of as plain ones the likelier to fit"
    other_kinds = np.array([0.07, 0.07, 0.07, 0.07])
    assert taken(step_s, chance, odd, other_kinds) == 1
    assert taken(step_s, [0.99, 0.96, 0.99, 0.97], 2 * odd, other_kinds) == 3
    assert taken(step_s, [0.99, 0.96, 0.98, 0.98], 2 * odd, [0.07, 0.04, 0.07, 0.07]) == 3


def test_no_plan_is_taken_that_is_slower_fuller_and_less_sure_than_one_as_plain_or_nearly():
    step_s, apart = [1.0, 1.05, 1.03], np.full(3, 0.06)
    assert taken(step_s, [0.95, 0.96, 0.98], [2, 0, 1], apart) == 2, "one more unusual choice, surer"
    assert taken(step_s, [0.95, 0.96, 0.98], [2, 0, 1], np.full(3, OTHER_KINDS)) == 1, "other kinds of ranks"
    assert taken(step_s, [0.95, 0.96, 0.98], [3, 0, 2], apart) == 1, "two more, not told apart"
    assert taken(step_s, [0.95, 0.96, 0.964], [2, 0, 1], apart) == 1, "not surer in whole percent"
    assert taken(step_s, [0.95, 0.98, 0.96], [2, 0, 1], apart) == 1, "less sure"
    near = {0: [0.0, 0.07, 0.04], 1: [0.07, 0.0, 0.01], 2: [0.04, 0.01, 0.0]}
    told = plainest(np.array(step_s), np.array([0.95, 0.96, 0.962]), np.array([3, 0, 2]), lambda i: np.array(near[i]))
    assert told == 2, "told apart from the plainest"


def test_layouts_that_differ_more_are_told_apart_less():
    layouts = Layouts.of(tp=[4, 4, 8, 1, 4], pp=[2, 2, 2, 4, 2], cp=[1, 1, 1, 1, 2], micro_batch=[1, 2, 1, 1, 1],
                         global_batch=8)  # fmt: skip
    assert told_apart(layouts, 0, 8).tolist() == [LIKE, LIKE, OTHER_DEGREES, OTHER_KINDS, OTHER_KINDS]
    assert told_apart(layouts, 4, 8)[0] == OTHER_KINDS
    assert told_apart(layouts, 0, 4)[2] == OTHER_KINDS, "tensor ranks over nodes are another kind"
    experts = Layouts.of(dp=256, ep=[8, 64, 128], global_batch=256)
    assert told_apart(experts, 0, 8).tolist() == told_apart(experts, 0, 72).tolist() == [LIKE, LIKE, OTHER_KINDS]
    assert told_apart(experts, 0, 144)[2] == LIKE, "on one fast link"


def test_of_layouts_alike_a_framework_s_own_sequence_parallelism_is_taken():
    layouts = Layouts.of(tp=[2, 2, 2, 4, 1], sequence_parallel=[False, True, True, True, False], global_batch=8)
    step_s, plain = np.array([1.0, 1.012, 1.008, 1.001, 1.1]), np.array([1, 1, 1, 1, 0])

    def spread(best, step_s, odd):
        return spread_instead(layouts, step_s, odd, told_apart(layouts, best, 8), best)

    assert spread(0, step_s, plain) == 2
    assert spread(0, step_s, np.array([1, 1, 2, 1, 0])) == 1, "as plain alone"
    assert spread(0, step_s + np.array([0, 0.01, 0.01, 0, 0]), plain) == 0, "too slow"
    assert spread(1, step_s, plain) == 1
    assert spread(4, step_s, plain) == 4
    frameworks = [load_framework(name) for name in ("torchtitan", "torchtitan-compiled", "fsdp", "megatron-core")]
    assert [f.spreads_tokens for f in frameworks] == [True, True, False, False]


def test_chances_of_fitting_count_in_whole_percent():
    step_s, none_odd, alike = np.array([1.0, 1.01]), np.array([0, 0]), np.full(2, 0.02)
    assert taken(step_s, np.array([0.949, 0.951]), none_odd, alike) == 0
    assert taken(step_s, np.array([0.94, 0.95]), none_odd, alike) == 1
    assert taken(step_s, np.array([0.991, 1.0]), none_odd, alike) == 0


MEGATRON = load_framework("megatron-core")


def odd(layouts, seq_len=1 << 20, framework=MEGATRON, cluster="dgx-h100", **changes):
    setup = load_setup("llama3-8b", cluster)
    model = replace(setup.model, seq_len=seq_len, **changes)
    return unusual(replace(setup, model=model, framework=framework), layouts).tolist()


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
    assert odd(wide, cluster="gb200-nvl72") == [0, 0, 0, 0]
    experts = Layouts.of(dp=256, ep=[64, 72, 128, 256], global_batch=256)
    assert odd(experts) == [0, 2, 2, 4]
    assert odd(experts, cluster="gb200-nvl72") == [0, 0, 2, 4], "over two racks, and over four"
    again = [Recompute.NONE, Recompute.FINE, Recompute.FULL]
    assert odd(Layouts.of(recompute=again, global_batch=8)) == [0, 0, 1]
    host = Layouts.of(offload_optimizer=[False, True], global_batch=8)
    assert odd(host) == [0, 2], "no measured run has it"
    ranks = Layouts.of(tp=[1, 2, 8, 1], cp=[1, 1, 1, 4], global_batch=8)
    assert odd(ranks) == [0, 0, 0, 0]
    assert odd(ranks, cluster="l40s") == odd(ranks, cluster="mi300x") == [0, 0, 0, 2], "no run without NVLink has them"
    assert odd(ranks, framework=replace(MEGATRON, splits_layers=False)) == [0, 1, 3, 2]
    ranks = Layouts.of(tp=[1, 2, 8, 1, 2], pp=[1, 1, 1, 2, 2], cp=[1, 1, 1, 4, 2], global_batch=8)
    assert odd(ranks, framework=replace(MEGATRON, data_parallel_alone=True)) == [0, 1, 1, 2, 3]


def test_an_uneven_split_is_usual_where_no_even_one_is_over_so_many_stages():
    layouts = Layouts.of(pp=[4, 4, 8, 8, 8], virtual_stages=[1, 1, 1, 1, 4], global_batch=8,
                         schedule=["1f1b", "1f1b", "1f1b", "1f1b", "interleaved"],
                         layer_split=[Split.EVEN, Split.BALANCED, Split.EVEN, Split.BALANCED, Split.ENDS])  # fmt: skip
    assert odd(layouts, num_layers=36) == [0, 1, 0, 0, 0]
    assert odd(layouts, num_layers=94) == [0, 0, 0, 0, 0]
    assert odd(layouts, num_layers=32) == [0, 1, 0, 1, 1]
    ranks = Layouts.of(pp=[3, 8], layer_split=Split.BALANCED, global_batch=8)
    assert odd(ranks, num_layers=94) == [1, 0], "three ranks are as unusual as their split"


def test_as_many_sequences_on_as_many_more_context_ranks_are_no_other_answer():
    layouts = Layouts.of(cp=[1, 2, 4, 2, 4], micro_batch=[2, 4, 8, 1, 2], global_batch=8)
    assert kinds(layouts).tolist() == [0, 1, 2, 1, 2]
    assert kinds(on_fewest_context_ranks(layouts)).tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("question", [("qwen3-235b-a22b", 256, 1024), ("llama3-8b", 64, 512)])
def test_the_layout_to_run_does_not_hang_on_how_many_are_shown(question):
    model, gpus, batch = question
    few, many = (recommend(model, "dgx-h100", gpus=gpus, batch=batch, top=top).best for top in (2, 100))
    assert few.layout == many.layout


def test_a_chance_of_fitting_a_percent_less_holds_no_faster_layout_back():
    step_s, odd, apart = [0.99, 1.0, 1.004], np.array([2, 1, 1]), np.full(3, 0.05)
    assert taken(step_s, np.array([0.95, 0.984, 0.987]), odd, apart) == 1
    assert taken(step_s, np.array([0.95, 0.95, 0.987]), odd, apart) == 2
