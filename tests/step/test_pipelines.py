"""Schedules of a table of layouts, its ends, its ranks that may be fullest."""

import numpy as np

from planner.layouts import Layouts
from planner.step.given_stages import with_ends
from planner.step.pipelines import by_schedule, embedding_apart_from_head, end_shares, layers_at_once, pipeline
from planner.step.ranks import key_ranks
from planner.step.splits import Share, Stages
from tests.costs.stages import stages_of


def test_shares_of_the_ends():
    table = Layouts.of(schedule=["1f1b", "zb-v", "1f1b"], pp=[2, 2, 1], virtual_stages=[1, 2, 1], global_batch=8)
    # First rank's embedding and head, last rank's: a V ends on the rank where it began.
    assert end_shares(table).T.tolist() == [[1, 0, 0, 1], [1, 1, 0, 0], [1, 1, 1, 1]]
    assert embedding_apart_from_head(table).tolist() == [True, False, False]


def test_layers_whose_states_are_gathered_together():
    names = ["1f1b", "interleaved", "breadth-first", "modular"]
    table = Layouts.of(schedule=names, pp=2, virtual_stages=[1, 3, 3, 12], global_batch=8)
    assert layers_at_once(table, np.array(12.0)).tolist() == [1, 1, 4, 1]


def test_the_ranks_that_may_be_fullest():
    layouts = Layouts.of(pp=[1, 2, 4, 4], global_batch=8)
    stages = Stages(
        first=Share(layers=np.array([8.0, 4, 2, 2])), early=Share(layers=np.array([1.0, 1, 3, 3])),
        num_early=np.array([0.0, 0, 1, 0]), late=Share(layers=np.array([0.0, 0, 2, 2])),
        last=Share(layers=np.array([0.0, 4, 1, 2])),
    )  # fmt: skip
    ranks = key_ranks(layouts, with_ends(stages, layouts))
    first, second, last = (share for _, share in ranks)
    assert [np.asarray(number).tolist() for number, _ in ranks] == [0, [0, 1, 1, 1], [0, 1, 3, 3]]
    assert first.layers.tolist() == [8, 4, 2, 2]
    assert second.layers.tolist() == [0, 0, 3, 2]
    assert last.layers.tolist() == [8, 4, 1, 2]
    assert (second.first, second.last) == (0.0, 0.0)
    entered = Layouts.of(schedule=["1f1b", "chimera", "dualpipe", "bitpipe"], pp=[8, 8, 6, 2], global_batch=8)
    assert key_ranks(entered, with_ends(stages, entered))[1][0].tolist() == [1, 3, 2, 0]
    assert (first.first.tolist(), first.last.tolist()) == ([1, 1, 1, 1], [1, 0, 0, 0])
    assert (last.first.tolist(), last.last.tolist()) == ([1, 0, 0, 0], [1, 1, 1, 1])


def test_of_later_ranks_with_more_layers_the_first_may_be_the_fullest():
    """Balanced over 6 ranks: 2, 2, 2, 2, 3, 3 and 2 layers; entered from both ends the one in the middle holds most."""
    layouts = Layouts.of(pp=7, schedule=["1f1b", "chimera"], global_batch=8)
    two, three = (Share(layers=np.full(2, n)) for n in (2.0, 3.0))
    stages = Stages(first=two, early=two, num_early=np.full(2, 3.0), late=three, last=two)
    numbers, (_, second, later, _) = zip(*key_ranks(layouts, with_ends(stages, layouts)), strict=True)
    assert [np.asarray(number).tolist() for number in numbers] == [0, [1, 2], [4, 2], [6, 6]]
    assert (second.layers.tolist(), later.layers.tolist()) == ([2, 3], [3, 3])
    assert stages.layers(0, 7).tolist() == [2, 2, 2, 2, 3, 3, 2]


def test_layers_of_every_rank():
    stages = stages_of(Layouts.of(pp=[4, 3, 2, 1], global_batch=8), 11, np.zeros(4), np.zeros(4))
    assert [stages.layers(i, p).tolist() for i, p in enumerate([4, 3, 2, 1])] == [[3, 3, 3, 2], [4, 4, 3], [6, 5], [11]]


def test_rows_by_schedule_and_their_pipelines():
    table = Layouts.of(
        schedule=["1f1b", "1f1b", "gpipe", "1f1b"], pp=2, dp=[1, 2, 1, 4], micro_batch=2, global_batch=16,
        virtual_stages=1, sequence_slices=1,
    )  # fmt: skip
    rows = {schedule.name: np.arange(4)[chosen].tolist() for schedule, chosen in by_schedule(table)}
    assert rows == {"1f1b": [0, 1, 3], "gpipe": [2]}
    assert pipeline(table).m.tolist() == [8, 4, 8, 2]
    assert pipeline(table, [1, 3]).m.tolist() == [4, 2]
