"""Pieces of work, one after another, of which some send over links that they share: when each starts and ends.

Time goes from one piece's end to the next. Between two ends every flow goes at its max-min fair rate
(`planner.costs.network.max_min`), so nothing is approximated. A rank computes slower, by a stated factor, while a flow
that it sends or receives is under way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from planner.base.arrays import Array, record
from planner.base.errors import ScheduleError
from planner.costs.network.fabric import Bundle, Fabric
from planner.costs.network.max_min import max_min

COMPUTE = "compute"
Segment = tuple[str, int, float]
"""Compute or a kind of traffic, the rank that sends (-1: none does), seconds of it alone."""


@dataclass
class Pieces:
    """Pieces of work while they are made: what each waits for, the ranks that it is on, compute or its kind of traffic,
    the operation that it is of (-1: none), seconds of it alone, its bundle of flows or -1; and bundles' numbers.
    """

    bundles: dict[Bundle, int]
    waits: list[list[int]] = field(default_factory=list)
    ranks: list[tuple[int, ...]] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    cause: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    bundle: list[int] = field(default_factory=list)

    def add(self, segments: Sequence[Segment], rank: int, cause: int, waits: list[int]) -> int:
        """Pieces one after another, the first of which waits for some; the last one's number."""
        for kind, sender, seconds in segments:
            flows = sender >= 0 and seconds > 0.0
            self.bundle.append(self.bundles[kind, sender, rank] if flows else -1)
            self.ranks.append((rank, sender) if flows and sender != rank else (rank,))
            self.kind.append(kind if flows else COMPUTE)
            self.cause.append(cause)
            self.seconds.append(seconds)
            self.waits.append(waits)
            waits = [len(self.seconds) - 1]
        return waits[0]


@record
class Ran:
    """Start and end of every piece in seconds, shape (n,).

    Of every link, shape (links,): bytes that it carried for the job, seconds in which it was full, and of these those
    in which the job's flows on it would have sent more.
    """

    start_s: Array
    end_s: Array
    carried_bytes: Array
    full_s: Array
    held_s: Array


class LinkShares:
    """Rates of the flows that run at once, over what each would have alone, and how long which of them ran together."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        bundles = len(fabric.most_bytes_per_s)
        self.others = tuple(range(bundles - fabric.others, bundles))
        self.known: dict[tuple[int, ...], Array] = {}
        self.lasted: dict[tuple[int, ...], float] = {}

    def of(self, bundles: tuple[int, ...]) -> Array:
        """Shares of such bundles at once, each 0 to 1, and of those of other jobs behind them."""
        if bundles not in self.known:
            at, f = [*bundles, *self.others], self.fabric
            rate = max_min(f.flows[:, at], f.capacity_bytes_per_s, f.most_bytes_per_s[at])
            self.known[bundles] = rate / np.maximum(f.most_bytes_per_s[at], 1e-300)
        return self.known[bundles]

    def use(self) -> tuple[Array, Array, Array]:
        """`Ran.carried_bytes`, `full_s` and `held_s`."""
        f = self.fabric
        carried, full, held = np.zeros((3, len(f.names)))
        for bundles, seconds in self.lasted.items():
            own, share = list(bundles), self.of(bundles)
            flows = f.flows[:, [*own, *self.others]]
            load = flows * (share * f.most_bytes_per_s[[*own, *self.others]])
            is_full = load.sum(axis=1) >= f.capacity_bytes_per_s * (1.0 - 1e-9)
            slow = np.any(flows[:, : len(own)][:, share[: len(own)] < 1.0 - 1e-9] > 0.0, axis=1)
            carried += seconds * load[:, : len(own)].sum(axis=1)
            full += seconds * is_full
            held += seconds * (is_full & slow)
        return carried, full, held


def run_flows(pieces: Pieces, fabric: Fabric, slow_down: float = 0.0) -> Ran:
    """The times of pieces whose flows share links; raises ScheduleError if pieces wait for one another in a circle."""
    run = _Run(pieces, LinkShares(fabric), slow_down)
    later: list[list[int]] = [[] for _ in pieces.waits]
    for i, waits in enumerate(pieces.waits):
        for before in waits:
            later[before].append(i)
    missing = [len(waits) for waits in pieces.waits]
    ready = [i for i, count in enumerate(missing) if count == 0]
    while ready or run.queue:
        run.begin(ready)
        ready = []
        for i in run.next_ended():
            for follower in later[i]:
                missing[follower] -= 1
                if missing[follower] == 0:
                    ready.append(follower)
    if min(run.end) < 0.0:
        raise ScheduleError("the schedule deadlocks with its transfers; draw it with planner schedule to see where")
    carried, full, held = run.shares.use()
    return Ran(start_s=np.array(run.start), end_s=np.array(run.end), carried_bytes=carried, full_s=full, held_s=held)


class _Run:
    """What is under way: pieces' starts, ends (-1: not yet), seconds of work left, and paces since some moment."""

    def __init__(self, pieces: Pieces, shares: LinkShares, slow_down: float) -> None:
        n = len(pieces.seconds)
        self.pieces, self.shares, self.slow_pace = pieces, shares, 1.0 / (1.0 + slow_down)
        self.start, self.end, self.since, self.due = ([-1.0] * n for _ in range(4))
        self.left, self.pace = list(pieces.seconds), [1.0] * n
        self.queue: list[tuple[float, int]] = []
        self.now = 0.0
        self.sending: list[int] = []
        self.computing: dict[int, int] = {}
        self.busy: dict[int, int] = {}

    def begin(self, ready: list[int]) -> None:
        """Start what is ready, and give all flows, and what computes beside them, their new pace."""
        for i in ready:
            self.start[i] = self.since[i] = self.now
            if self.pieces.bundle[i] >= 0:
                self.sending.append(i)
                self._count(i, 1)
                continue
            if self.pieces.cause[i] >= 0:
                self.computing[self.pieces.ranks[i][0]] = i
            self._go(i, 1.0)
        self.sending.sort(key=lambda i: (self.pieces.bundle[i], i))
        self.bundles = tuple(self.pieces.bundle[i] for i in self.sending)
        for i, share in zip(self.sending, self.shares.of(self.bundles).tolist(), strict=False):
            if share != self.pace[i] or self.due[i] < 0.0:
                self._go(i, share)
        if self.slow_pace < 1.0:
            for rank, i in self.computing.items():
                pace = self.slow_pace if self.busy.get(rank) else 1.0
                if pace != self.pace[i]:
                    self._go(i, pace)

    def next_ended(self) -> list[int]:
        """Pieces that end next, all at once; time has gone on to then."""
        ended: list[int] = []
        while self.queue and (not ended or self.queue[0][0] == self.now):
            at, i = heappop(self.queue)
            if self.end[i] >= 0.0 or self.due[i] != at:
                continue
            if not ended:
                self.shares.lasted[self.bundles] = self.shares.lasted.get(self.bundles, 0.0) + at - self.now
            self.end[i] = self.now = at
            ended.append(i)
            if self.pieces.bundle[i] >= 0:
                self.sending.remove(i)
                self._count(i, -1)
            elif self.pieces.cause[i] >= 0:
                del self.computing[self.pieces.ranks[i][0]]
        return ended

    def _count(self, i: int, more: int) -> None:
        for rank in self.pieces.ranks[i]:
            self.busy[rank] = self.busy.get(rank, 0) + more

    def _go(self, i: int, pace: float) -> None:
        """Piece i goes on at another pace."""
        self.left[i] -= (self.now - self.since[i]) * self.pace[i]
        self.since[i], self.pace[i] = self.now, pace
        self.due[i] = self.now + max(self.left[i], 0.0) / pace
        heappush(self.queue, (self.due[i], i))
