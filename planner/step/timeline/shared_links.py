"""`share_links(setup, layouts)`: a layout's step whose traffic between nodes shares links with all that runs beside it.

The timeline is that of `planner.step.timeline.step` where nothing meets. Some seconds of its operations, gathers and
reductions are traffic (`planner.step.timeline.link_traffic`). These become flows; the rest takes what it took.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from planner.base.arrays import Array, Ints, record
from planner.base.errors import InputError, LayoutError, ScheduleError
from planner.costs.network.fabric import Fabric
from planner.layouts import Layouts
from planner.schedules.dependencies import dependencies
from planner.setup import Setup
from planner.step.chunk_gathers import has_chunks
from planner.step.step_costs import StepCosts, step_costs
from planner.step.timeline.flows import COMPUTE, Pieces, Ran, Segment, run_flows
from planner.step.timeline.link_traffic import LinkTraffic, link_traffic
from planner.step.timeline.step import StepSimulation, simulate
from planner.step.timeline.timeline import Timeline

MOST_OPERATIONS, MOST_PIECES = 100_000, 200_000


@record
class SharedStep:
    """A step whose links are shared; `plain` is the same where nothing meets, whose memory and loads hold here too.

    Pieces of work, shape (n,): rank, kind ("compute" or a kind of traffic), cause (the operation that each is of, -1
    for a rank's gathers and reductions), seconds alone. start_s, end_s: of the order's operations.
    update_start_s: when each rank's update may start, shape (p,).
    """

    plain: StepSimulation
    fabric: Fabric
    ran: Ran
    rank: Ints
    kind: NDArray[np.str_]
    cause: Ints
    alone_s: Array
    start_s: Array
    end_s: Array
    update_start_s: Array
    step_time_s: float

    @property
    def timeline(self) -> Timeline:
        """The compute lanes as a timeline."""
        return replace(self.plain.timeline, start_s=self.start_s, end_s=self.end_s)

    @property
    def traffic_s(self) -> dict[str, tuple[float, float]]:
        """Seconds of each kind of traffic on the rank that has most, alone and as it went."""
        out = {}
        took = self.ran.end_s - self.ran.start_s
        for kind in sorted(set(self.kind.tolist()) - {COMPUTE}):
            of = self.kind == kind
            each = [np.bincount(self.rank[of], weights=x[of]) for x in (self.alone_s, took)]
            most = int(np.argmax(each[1]))
            out[kind] = float(each[0][most]), float(each[1][most])
        return out


def share_links(setup: Setup, layouts: Layouts, slow_down: float = 0.0) -> SharedStep:
    """The timeline of one layout on links that its traffic shares, with other jobs' where the cluster has neighbours.

    slow_down: compute runs 1 + slow_down times slower while its rank sends or receives.

    Raises LayoutError for more than one layout, an illegal one, a pipeline that is never drained, ranks that wait for
    one another, or sharded parameters that are gathered chunk by chunk; InputError if slow_down is below 0;
    ScheduleError for too many operations.
    """
    if not 0.0 <= slow_down < np.inf:
        raise InputError(f"slow_down is {slow_down}; allowed: a number from 0")
    alone = replace(setup, cluster=replace(setup.cluster, oversubscription=1.0, neighbour_flows=0))
    plain, costs = simulate(alone, layouts), step_costs(alone, layouts)
    _check(plain, costs)
    traffic = link_traffic(alone, setup.cluster, layouts, plain, costs)
    pieces, first, last, gathered = _pieces(plain, traffic)
    ran = run_flows(pieces, traffic.fabric, slow_down)
    order = plain.timeline.order
    start, end = ran.start_s[first], ran.end_s[last]
    rank, p = np.array([ranks[0] for ranks in pieces.ranks]), plain.pipe.p
    done = np.zeros(p)
    np.maximum.at(done, rank, ran.end_s)
    # As the closed form has it: it shares nothing.
    done = done + np.where(plain.tied_s > 0.0, step_costs(setup, layouts).traffic.tied_s, 0.0)
    ready = done if plain.schedule.unsynchronised_end else np.full(p, done.max())
    finish = ready + plain.update_end_s - plain.update_start_s
    begin = start[order.start[:-1]] - ran.end_s[gathered]
    step = float((finish - begin).max() if plain.schedule.unsynchronised_end else finish.max())
    return SharedStep(
        plain=plain, fabric=traffic.fabric, ran=ran, rank=rank, kind=np.array(pieces.kind),
        cause=np.array(pieces.cause), alone_s=np.array(pieces.seconds), start_s=start, end_s=end,
        update_start_s=ready, step_time_s=step,
    )  # fmt: skip


def _check(plain: StepSimulation, costs: StepCosts) -> None:
    """Raises LayoutError and ScheduleError for what is not simulated."""
    name = plain.schedule.name
    if plain.schedule.barriers:
        raise LayoutError(f"links are not simulated for {name}, whose ranks wait for one another")
    if plain.schedule.steady:
        raise LayoutError(f"links are not simulated for {name}, whose pipeline is never drained")
    if has_chunks(costs)[0]:
        raise LayoutError(
            f"links are not simulated for {name} with zero {costs.case.layouts.zero[0]}, whose gathers of chunks are "
            "on the timeline without --links too"
        )
    if (many := len(plain.timeline.order)) > MOST_OPERATIONS:
        raise ScheduleError(f"links of {many:,} operations are not simulated; allowed: up to {MOST_OPERATIONS:,}")


def _pieces(plain: StepSimulation, traffic: LinkTraffic) -> tuple[Pieces, Ints, Ints, list[int]]:
    """The step as pieces: a rank's gather, its operations, and the reduction that starts beside them or after them.

    Then the first and the last piece of each operation, and that of each rank before whose end it starts nothing.
    """
    order, out = plain.timeline.order, Pieces(traffic.bundles)
    ends = np.zeros((2, len(order)), dtype=np.int64)
    lasts = traffic.compute_s.tolist()
    parts = {kind: x.of_operation.tolist() for kind, x in traffic.kinds.items()}
    # A layer's traffic comes after its compute, where that doesn't make too many pieces.
    mixed = [any(part[i] > 0.0 for kind, part in parts.items() if kind != "pipeline") for i in range(len(order))]
    most = max(MOST_PIECES // max(2 * sum(mixed), 1), 1)
    times = np.where(mixed, np.clip(plain.loads.layers[order.stage], 1, most), 1).tolist()
    before, rank = [[j for j in row if j >= 0] for row in dependencies(order).tolist()], order.rank.tolist()
    segments = [
        _of_pass(rank[i], traffic.senders[i], {kind: part[i] for kind, part in parts.items()}, lasts[i], times[i])
        for i in range(len(order))
    ]
    units = [unit.tolist() for unit in np.split(np.arange(len(order)), np.flatnonzero(~order.fused)[:-1] + 1)]
    gathered = [
        _rank(out, ends, plain, traffic, r, own, segments) for r, own in groupby(units, key=lambda unit: rank[unit[0]])
    ]
    for unit in units:
        own = {int(ends[1, i]) for i in unit}
        out.waits[ends[0, unit[0]]] += sorted({int(ends[1, j]) for i in unit for j in before[i]} - own)
    return out, ends[0], ends[1], gathered


def _of_pass(rank: int, sender: int, parts: dict[str, float], seconds: float, times: int) -> list[Segment]:
    """A pass: the transfer that it waits for, then so many times compute and the traffic of a layer."""
    own = [(kind, rank, part / times) for kind, part in parts.items() if kind != "pipeline" and part > 0.0]
    layer = [(COMPUTE, -1, max(seconds, 0.0) / times), *own]
    return [("pipeline", sender, x) for kind, x in parts.items() if kind == "pipeline"] + layer * times


def _rank(
    out: Pieces, ends: Ints, plain: StepSimulation, traffic: LinkTraffic, r: int, units: Iterator[list[int]],
    segments: list[list[Segment]],
) -> int:  # fmt: skip
    """Add a rank's pieces; the one before whose end it starts nothing. What hides of its gather is waited for where it
    can hide no longer; what hides of its reduction starts as early as it may."""
    near, kinds = 1e-9 * plain.step_time_s, traffic.kinds
    gather = _whole(r, float(plain.gather_s[r]), {kind: float(x.gather_s[r]) for kind, x in kinds.items()})
    ended = float(plain.gather_s[r] - plain.gather_hidden_s[r])
    needed = ended + float(traffic.gather_window_s[r])
    # What shows however fast the network is isn't traffic: the gather goes on beside it.
    costs = ended <= float(traffic.gather_cost_s[r]) + near
    shown, hidden = ([(COMPUTE, -1, ended)], gather) if costs else _cut(gather, ended)
    before = gathered = out.add(shown, r, -1, [])
    rest = out.add(hidden, r, -1, [] if costs else [before]) if plain.gather_hidden_s[r] > 0.0 else -1
    reduction = _whole(r, float(plain.reduce_s[r]), {kind: float(x.reduce_s[r]) for kind, x in kinds.items()})
    done = float(plain.timeline.end_s[plain.timeline.order.start[r + 1] - 1])
    reduces = done - float(traffic.reduce_window_s[r])
    hides = (done - float(plain.reduce_start_s[r])) / max(float(plain.reduce_s[r]), 1e-30)
    early, late = (
        [(kind, sender, part * seconds) for kind, sender, seconds in reduction] for part in (hides, 1.0 - hides)
    )
    for unit in units:
        begin, finish = float(plain.timeline.start_s[unit[0]]), float(plain.timeline.end_s[unit[0]])
        waits = [before]
        if rest >= 0 and begin >= needed - near:
            waits, rest = [before, rest], -1
        if reduces < begin - near:
            started = out.add([(COMPUTE, -1, max(reduces - ended, 0.0)), *early], r, -1, [before])
            reduces = np.inf
        here, first = [x for i in unit for x in segments[i]], len(out.seconds)
        if reduces < finish - near:
            ahead, here = _cut(here, reduces - begin)
            before = out.add(ahead, r, unit[0], waits)
            started = out.add(early, r, -1, [before])
            reduces, waits = np.inf, [before]
        before, ended = out.add(here, r, unit[0], waits), finish
        ends[0, unit], ends[1, unit] = first, before
    out.add(late, r, -1, [before] if reduces < np.inf else [before, started])
    return gathered


def _whole(rank: int, seconds: float, parts: dict[str, float]) -> list[Segment]:
    """So many seconds of a rank, of which the last are traffic."""
    rest = max(seconds - sum(parts.values()), 0.0)
    return [(COMPUTE, -1, rest), *((kind, rank, part) for kind, part in parts.items() if part > 0.0)]


def _cut(segments: Sequence[Segment], at: float) -> tuple[list[Segment], list[Segment]]:
    """Segments up to so many seconds, and after."""
    out: tuple[list[Segment], list[Segment]] = ([], [])
    for kind, sender, seconds in segments:
        now = min(max(at, 0.0), seconds)
        out[0].append((kind, sender, now))
        out[1].append((kind, sender, seconds - now))
        at -= seconds
    return out
