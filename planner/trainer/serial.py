"""The serial engine: all ranks in one process, one at a time, always in the same order.

Each rank is a thread, but only the one that holds the baton runs. It keeps it until it must wait for another rank,
then hands it to the next rank, counting up, that can go on. So a run has one possible order, results are the same
to the bit every time, and when no rank can go on that is known at once: a deadlock is an error that says who waits
for what, never a hang.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from planner.base.errors import ExecutionError
from planner.trainer.arrays import Array
from planner.trainer.communicator import Communicator, RankGroup

T = TypeVar("T")


class _StoppedError(Exception):
    """Another rank failed; this one only unwinds."""


@dataclass
class _Meeting:
    """A collective under way: what each rank brought, then what each takes away."""

    what: str
    brought: dict[int, Array] = field(default_factory=dict)
    result: dict[int, Array] = field(default_factory=dict)


def run_serial(xp: Any, num_ranks: int, program: Callable[[Communicator], T]) -> list[T]:
    """The program's result on every rank.

    Raises ExecutionError if no rank can go on; else whatever the first rank to fail raised, with a note that names the
    rank.
    """
    return _World(xp, num_ranks).run(program)


class _World:
    """The ranks' shared state; only the holder of the baton touches it."""

    def __init__(self, xp: Any, num_ranks: int) -> None:
        self.xp = xp
        self.num_ranks = num_ranks
        self.mail: dict[tuple[int, int, int], deque[Array]] = {}
        self.meetings: dict[tuple[tuple[int, ...], int], _Meeting] = {}
        self.failure: BaseException | None = None
        self.failed_rank = -1
        self._turn = [threading.Lock() for _ in range(num_ranks)]  # free: that rank has the baton, or is about to
        for turn in self._turn:
            turn.acquire()
        # What a waiting rank waits for, as a question and as a sentence; None: it can go on.
        self._waits: list[tuple[Callable[[], bool], str] | None] = [None] * num_ranks
        self._done = [False] * num_ranks

    def run(self, program: Callable[[Communicator], T]) -> list[T]:
        if self.num_ranks == 1:  # no one to wait for, and an interrupt reaches the work itself
            return [program(SerialCommunicator(self, 0))]
        results: list[Any] = [None] * self.num_ranks

        def body(rank: int) -> None:
            self._turn[rank].acquire()
            try:
                if self.failure is None:
                    results[rank] = program(SerialCommunicator(self, rank))
            except _StoppedError:
                pass
            except BaseException as error:
                self._fail(rank, error)
            self._done[rank] = True
            self._pass_baton(rank)

        threads = [threading.Thread(target=body, args=(r,), name=f"rank {r}") for r in range(self.num_ranks)]
        for thread in threads:
            thread.start()
        self._wake(0)
        try:
            for thread in threads:
                thread.join()
        except BaseException as error:  # an interrupt: let the ranks unwind
            self._fail(-1, error)
            for thread in threads:
                thread.join()
        if self.failure is not None:
            if self.failed_rank >= 0:
                self.failure.add_note(f"on rank {self.failed_rank} of {self.num_ranks}")
            raise self.failure
        return results

    def wait(self, rank: int, ready: Callable[[], bool], what: str) -> None:
        """Return when `ready`; until then others run."""
        if self.failure is not None:
            raise _StoppedError
        if ready():
            return
        self._waits[rank] = (ready, what)
        self._pass_baton(rank)
        self._turn[rank].acquire()
        self._waits[rank] = None
        if self.failure is not None:
            raise _StoppedError

    def _fail(self, rank: int, error: BaseException) -> None:
        if self.failure is None:
            self.failure, self.failed_rank = error, rank

    def _pass_baton(self, rank: int) -> None:
        """To the next rank that can go on; all that wait are woken to unwind where one failed."""
        others = [(rank + 1 + i) % self.num_ranks for i in range(self.num_ranks)]
        alive = [r for r in others if not self._done[r]]
        if not alive:
            return
        for r in alive:
            wait = self._waits[r]
            if self.failure is not None or wait is None or wait[0]():
                self._wake(r)
                return
        waits = [f"rank {r} for {w[1]}" for r in sorted(alive) if (w := self._waits[r])]
        self._fail(-1, ExecutionError(f"no rank can go on; waiting: {', '.join(waits)}"))
        self._wake(alive[0])

    def _wake(self, rank: int) -> None:
        self._turn[rank].release()


class SerialCommunicator(Communicator):
    """One rank of the serial engine. Sums go in the group's order, so they are the same on every run."""

    def __init__(self, world: _World, rank: int) -> None:
        super().__init__(world.xp, rank, world.num_ranks)
        self._world = world
        self._met: dict[tuple[int, ...], int] = {}

    def recv(self, source: int, tag: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """See `Communicator.recv`."""
        box = self._world.mail.setdefault((source, self.rank, tag), deque())
        self._world.wait(self.rank, lambda: bool(box), f"a message of rank {source} (tag {tag})")
        x = box.popleft()
        if x.shape != shape or x.dtype != dtype:
            raise ExecutionError(f"rank {source} sent {x.dtype}{x.shape} under tag {tag}, expected {dtype}{shape}")
        return x

    def barrier(self) -> None:
        """See `Communicator.barrier`."""
        if self.size > 1:
            self._meet(self.xp.zeros(1), RankGroup("all", tuple(range(self.size))), "barrier", lambda xs: xs)

    def flush(self) -> None:
        """Nothing to wait for: a message leaves at once."""

    def _send(self, x: Array, to: int, tag: int) -> None:
        self._world.mail.setdefault((self.rank, to, tag), deque()).append(x.copy())

    def _all_reduce(self, x: Array, group: RankGroup, operation: str) -> Array:
        def reduce(xs: list[Array]) -> list[Array]:
            total = self._total(xs, operation)
            return [total] + [total.copy() for _ in xs[1:]]

        return self._meet(x, group, f"all_reduce {operation}", reduce)

    def _all_gather(self, x: Array, group: RankGroup, axis: int) -> Array:
        return self._meet(x, group, "all_gather", lambda xs: [self.xp.concatenate(xs, axis=axis) for _ in xs])

    def _reduce_scatter(self, x: Array, group: RankGroup, axis: int) -> Array:
        def scatter(xs: list[Array]) -> list[Array]:
            return [part.copy() for part in self.xp.split(self._total(xs, "sum"), len(xs), axis=axis)]

        return self._meet(x, group, "reduce_scatter", scatter)

    def _all_to_all(self, x: Array, group: RankGroup, split_axis: int, join_axis: int) -> Array:
        def exchange(xs: list[Array]) -> list[Array]:
            parts = [self.xp.split(x, len(xs), axis=split_axis) for x in xs]
            return [self.xp.concatenate(mine, axis=join_axis) for mine in zip(*parts, strict=True)]

        return self._meet(x, group, f"all_to_all {split_axis} {join_axis}", exchange)

    def _total(self, xs: list[Array], operation: str) -> Array:
        total = xs[0].copy()
        for x in xs[1:]:
            total = self.xp.maximum(total, x) if operation == "max" else self.xp.add(total, x, out=total)
        return total

    def _meet(self, x: Array, group: RankGroup, what: str, finish: Callable[[list[Array]], list[Array]]) -> Array:
        """Bring an array, wait for the group, take the answer; the last to come works it out for all."""
        count = self._met.get(group.ranks, 0)
        self._met[group.ranks] = count + 1
        key = (group.ranks, count)
        what = f"{what} of {x.dtype}{x.shape} in group {group.name} {group.ranks}"
        meeting = self._world.meetings.setdefault(key, _Meeting(what))
        if meeting.what != what:
            raise ExecutionError(f"rank {self.rank} is at {what}, while others are at {meeting.what}")
        meeting.brought[self.rank] = x
        if len(meeting.brought) == len(group):
            answers = finish([meeting.brought[r] for r in group.ranks])
            meeting.result = dict(zip(group.ranks, answers, strict=True))
        self._world.wait(self.rank, lambda: bool(meeting.result), what)
        answer = meeting.result.pop(self.rank)
        meeting.brought.pop(self.rank)
        if not meeting.brought:
            del self._world.meetings[key]
        return answer
