"""The critical path of 1F1B on two ranks, by hand."""

import pytest

from planner.schedules import Pipeline, get_schedule
from planner.step.timeline.critical_path import critical_path
from planner.step.timeline.timeline import durations, run


def test_what_a_step_waited_for():
    """F 1 s, B 2 s, half a second between ranks.

    Rank 0: F0 0-1, F1 1-2, B0 5-7, B1 8-10. Rank 1: F0 1.5-2.5, B0 2.5-4.5, F1 4.5-5.5, B1 5.5-7.5.
    """
    order = get_schedule("1f1b").order(Pipeline(p=2, m=2))
    path = critical_path(run(order, durations(order, 1.0, 1.0, 1.0), 0.5))
    assert path.operations.tolist() == [0, 4, 5, 6, 7, 3]  # all of rank 1, rank 0's first and last
    assert path.parts == [(1, "B", 4.0), (1, "F", 2.0), (0, "B", 2.0), (0, "F", 1.0)]
    assert (path.waiting_s, path.total_s) == (1.0, 10.0)
    assert path.sentence(2) == "40% stage 1's backward, 20% stage 1's forward and 2 more"
    assert path.sentence(4).endswith("20% stage 0's backward, 10% stage 0's forward")


def test_fused_operations_are_on_it_together():
    """An order whose passes run as one: the parts are as long as the path, less what it waits for."""
    for name, v in (("dualpipev", 2), ("zb-v", 2), ("1f1b-v", 2)):
        order = get_schedule(name).order(Pipeline(p=3, m=9, v=v))
        for late in (0.0, 0.3):
            path = critical_path(run(order, durations(order, 1.0, 1.5, 0.5), late))
            assert sum(s for *_, s in path.parts) + path.waiting_s == pytest.approx(path.total_s, rel=1e-12)
            seen = set(path.operations.tolist())
            assert len(seen) == len(path.operations)
            for i in seen:
                assert not order.fused[i] or i + 1 in seen
