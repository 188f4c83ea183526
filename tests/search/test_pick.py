"""The layout to run among those too close to tell apart: by hand."""

import numpy as np

from planner.layouts import Layouts
from planner.search.pick import kinds, on_fewest_context_ranks, plainest, unusual


def test_what_is_faster_and_fits_likelier_is_not_passed_over_for_fewer_unusual_choices():
    step_s, odd = np.array([1.0, 1.02, 1.01]), np.array([1, 0, 0])
    assert plainest(step_s, np.array([0.96, 0.96, 0.96]), odd) == 2
    assert plainest(step_s, np.array([0.97, 0.96, 0.96]), odd) == 0
    assert plainest(step_s, np.array([0.97, 0.98, 0.96]), odd) == 1


def test_chances_of_fitting_count_in_whole_percent():
    step_s, none_odd = np.array([1.0, 1.01]), np.array([0, 0])
    assert plainest(step_s, np.array([0.949, 0.951]), none_odd) == 0
    assert plainest(step_s, np.array([0.94, 0.95]), none_odd) == 1
    assert plainest(step_s, np.array([0.991, 1.0]), none_odd) == 0


def test_unusual_choices_are_counted():
    layouts = Layouts.of(
        pp=[1, 2, 2, 2, 2, 2], schedule=["1f1b", "1f1b", "zb-v", "interleaved", "interleaved", "interleaved"],
        virtual_stages=[1, 1, 2, 2, 12, 33], cp=[1, 1, 1, 4, 1, 1], global_batch=8,
    )  # fmt: skip
    assert unusual(layouts, 4096, 8).tolist() == [0, 0, 2, 3, 1, 3]
    assert unusual(layouts, 8192, 8).tolist() == [0, 0, 2, 2, 1, 3]
    assert unusual(layouts, 16384, 8).tolist() == unusual(layouts, 1 << 20, 8).tolist() == [0, 0, 2, 1, 1, 3]
    assert unusual(layouts, 1024, 8).tolist() == [0, 0, 2, 3, 1, 3]
    several = Layouts.of(cp=[1, 4, 1, 4], micro_batch=[1, 1, 2, 2], global_batch=8)
    assert unusual(several, 1 << 20, 8).tolist() == [0, 0, 0, 2]
    wide = Layouts.of(tp=[8, 16, 32, 64], global_batch=8)
    assert unusual(wide, 4096, 8).tolist() == [0, 1, 2, 3]
    assert unusual(wide, 4096, 72).tolist() == [0, 0, 0, 0]
    ranks = Layouts.of(tp=[1, 2, 8, 1], cp=[1, 1, 1, 4], global_batch=8)
    assert unusual(ranks, 1 << 20, 8).tolist() == [0, 0, 0, 0]
    assert unusual(ranks, 1 << 20, 8, splits_layers=False).tolist() == [0, 1, 3, 2]


def test_as_many_sequences_on_as_many_more_context_ranks_are_no_other_answer():
    layouts = Layouts.of(cp=[1, 2, 4, 2, 4], micro_batch=[2, 4, 8, 1, 2], global_batch=8)
    assert kinds(layouts).tolist() == [0, 1, 2, 1, 2]
    assert kinds(on_fewest_context_ranks(layouts)).tolist() == [0, 0, 0, 1, 1]
