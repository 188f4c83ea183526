"""The serial engine: collectives mean what they say, faults are named, nothing hangs."""

from __future__ import annotations

import numpy as np
import pytest

from planner.base.errors import ExecutionError
from planner.trainer.communicator import RankGroup
from planner.trainer.serial import run_serial

EVERYONE = RankGroup("tp", (0, 1, 2))


def test_collectives():
    def program(c):
        x = np.arange(6.0).reshape(2, 3) + 10 * c.rank
        return (
            c.all_reduce(x, EVERYONE),
            c.all_reduce(x, EVERYONE, "max"),
            c.all_gather(x, EVERYONE, axis=1),
            c.reduce_scatter(x, EVERYONE, axis=1),
        )

    base = np.arange(6.0).reshape(2, 3)
    for rank, (total, top, side, part) in enumerate(run_serial(np, 3, program)):
        np.testing.assert_array_equal(total, 3 * base + 30)
        np.testing.assert_array_equal(top, base + 20)
        np.testing.assert_array_equal(side, np.concatenate([base, base + 10, base + 20], axis=1))
        np.testing.assert_array_equal(part, (3 * base + 30)[:, rank : rank + 1])


def test_messages_go_by_tag_and_bytes_are_counted():
    def program(c):
        if c.rank == 0:
            c.send(np.ones(2), 1, tag=7)
            c.send(np.zeros(3), 1, tag=8)
        else:
            second = c.recv(0, 8, (3,), np.dtype(float))
            first = c.recv(0, 7, (2,), np.dtype(float))
            assert first.sum() == 2
            assert second.sum() == 0
        c.barrier()
        c.all_reduce(np.zeros(10), RankGroup("dp", (0, 1)))
        return dict(c.traffic.wire_bytes)

    sent = run_serial(np, 2, program)
    assert sent == [{("pp", "send"): 40, ("dp", "all_reduce"): 80}, {("dp", "all_reduce"): 80}]


def test_a_deadlock_says_who_waits_for_what():
    def program(c):
        c.recv(1 - c.rank, 3, (1,), np.dtype(float))

    with pytest.raises(ExecutionError, match=r"rank 0 for a message of rank 1 \(tag 3\), rank 1 for a message of rank"):
        run_serial(np, 2, program)


def test_ranks_at_different_collectives_are_an_error():
    def program(c):
        if c.rank:
            c.all_reduce(np.zeros(2), EVERYONE)
        else:
            c.all_gather(np.zeros(2), EVERYONE)

    with pytest.raises(ExecutionError, match=r"rank 1 is at all_reduce sum .* while others are at all_gather"):
        run_serial(np, 3, program)


def test_a_rank_that_fails_stops_all_and_is_named():
    def program(c):
        if c.rank == 2:
            raise ZeroDivisionError("here")
        c.barrier()

    with pytest.raises(ZeroDivisionError) as caught:
        run_serial(np, 3, program)
    assert caught.value.__notes__ == ["on rank 2 of 3"]
