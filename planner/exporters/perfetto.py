"""A timeline as a Chrome trace in JSON, which Perfetto opens (https://ui.perfetto.dev).

A rank is a process, a stream of it a thread: its operations, then what else is given (the gather of parameters, the
reduction of gradients, the update). Arrows lead from the operation that sends to the one on another rank that waits
for it. Counters step when an operation starts. Times are microseconds from the first event, in whole nanoseconds, so
that slices that touch don't overlap by rounding.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.base.units import GIB
from planner.schedules.dependencies import F, S
from planner.schedules.operations import KINDS, NAMES
from planner.step.timeline.flows import COMPUTE
from planner.step.timeline.shared_links import SharedStep
from planner.step.timeline.step import StepSimulation
from planner.step.timeline.timeline import Timeline

Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Span:
    """A slice beside a rank's schedule, on one of its streams, where slices must not overlap."""

    rank: int
    stream: str
    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Counter:
    """A quantity that every rank holds: its value at each operation's start, shape (n,), on top of a rank's base.

    It keeps a value until the next operation starts, and falls to the base, shape (p,), when the last one ends.
    """

    name: str
    values: Array
    base: Any = 0.0


def trace_json(timeline: Timeline, *, spans: Iterable[Span] = (), counters: Iterable[Counter] = ()) -> str:
    """The trace as text, one event a line."""
    events = trace_events(timeline, spans=spans, counters=counters)
    lines = ",\n".join(json.dumps(event, separators=(",", ":"), allow_nan=False) for event in events)
    return f'{{"displayTimeUnit":"ms","traceEvents":[\n{lines}\n]}}\n'


def trace_events(timeline: Timeline, *, spans: Iterable[Span] = (), counters: Iterable[Counter] = ()) -> list[Event]:
    """The events of a trace.

    spans: what ranks do beside their operations. counters: what they hold, such as `Timeline.held`.
    """
    spans = list(spans)
    streams = list(dict.fromkeys([COMPUTE, *(span.stream for span in spans)]))
    zero_s = min([float(timeline.start_s.min()), *(span.start_s for span in spans)])
    groups = _Groups(timeline, zero_s)
    return [
        *_names(timeline.order.ranks, streams),
        *groups.slices(),
        *(_span(span, streams.index(span.stream), zero_s) for span in spans),
        *groups.arrows(),
        *(event for counter in counters for event in groups.counts(counter)),
    ]


def _nanoseconds(seconds: Any) -> Any:
    return np.rint(np.asarray(seconds) * 1e9).astype(np.int64)


def _names(ranks: int, streams: list[str]) -> list[Event]:
    """Events that name processes and threads, and order them."""
    out: list[Event] = []
    for r in range(ranks):
        out.append({"ph": "M", "name": "process_name", "pid": r, "args": {"name": f"rank {r}"}})
        out.append({"ph": "M", "name": "process_sort_index", "pid": r, "args": {"sort_index": r}})
        for tid, stream in enumerate(streams):
            out.append({"ph": "M", "name": "thread_name", "pid": r, "tid": tid, "args": {"name": stream}})
            out.append({"ph": "M", "name": "thread_sort_index", "pid": r, "tid": tid, "args": {"sort_index": tid}})
    return out


def _span(span: Span, tid: int, zero_s: float) -> Event:
    start, end = (int(_nanoseconds(x - zero_s)) for x in (span.start_s, span.end_s))
    return {
        "ph": "X", "name": span.name, "cat": span.stream, "pid": span.rank, "tid": tid, "ts": start / 1e3,
        "dur": (end - start) / 1e3,
    }  # fmt: skip


class _Groups:
    """Operations as they are drawn: those that run as one are one slice."""

    def __init__(self, timeline: Timeline, zero_s: float) -> None:
        order = timeline.order
        self.timeline = timeline
        self.first = np.flatnonzero(~np.concatenate([[False], order.fused[:-1]]))
        self.last = np.append(self.first[1:], len(order)) - 1
        self.of = np.repeat(np.arange(len(self.first)), self.last - self.first + 1)
        self.rank = order.rank[self.first]
        self.start = _nanoseconds(timeline.start_s[self.first] - zero_s)
        self.end = _nanoseconds(timeline.end_s[self.last] - zero_s)

    def slices(self) -> list[Event]:
        """One event a group."""
        operations = [operation for row in self.timeline.order.rows() for operation in row]
        columns = (c.tolist() for c in (self.first, self.last, self.rank, self.start, self.end))
        out: list[Event] = []
        for first, last, rank, start, end in zip(*columns, strict=True):
            operation = operations[first]
            out.append({
                "ph": "X", "name": "".join(str(each) for each in operations[first : last + 1]),
                "cat": NAMES[operation.kind] if first == last else "forward and backward", "pid": rank, "tid": 0,
                "ts": start / 1e3, "dur": (end - start) / 1e3,
                "args": {"stage": operation.stage, "micro_batch": operation.micro_batch, "slice": operation.slice},
            })  # fmt: skip
        return out

    def arrows(self) -> list[Event]:
        """A start and an end for every operation that waits for another rank."""
        order, waits = self.timeline.order, self.timeline.waits
        receiver, column = np.nonzero((waits >= 0) & (order.rank[waits] != order.rank[:, None]))
        sender = waits[receiver, column]
        forward = (order.kind[receiver] == KINDS.index("F")).tolist()
        source, target = self.of[sender], self.of[receiver]
        # A viewer joins an arrow to the slice that encloses its end: the last nanosecond still is inside.
        leaves = np.maximum(self.end[source] - 1, self.start[source])
        columns = (c.tolist() for c in (self.rank[source], leaves, self.rank[target], self.start[target]))
        out: list[Event] = []
        for number, (is_forward, (a, leave, b, arrive)) in enumerate(
            zip(forward, zip(*columns, strict=True), strict=True)
        ):
            shared = {"name": "activations" if is_forward else "gradients", "cat": "send", "id": number, "tid": 0}
            out.append({"ph": "s", **shared, "pid": a, "ts": leave / 1e3})
            out.append({"ph": "f", "bp": "e", **shared, "pid": b, "ts": arrive / 1e3})
        return out

    def counts(self, counter: Counter) -> list[Event]:
        """A counter of every rank: its largest value within each group, where that changes; the base at the end."""
        base = np.broadcast_to(np.asarray(counter.base, dtype=float), self.timeline.order.ranks)
        top = np.maximum.reduceat(np.asarray(counter.values, dtype=float), self.first) + base[self.rank]
        new_rank = np.diff(self.rank, prepend=-1) != 0
        shown = np.flatnonzero(new_rank | (np.diff(top, prepend=np.nan) != 0))
        lasts = np.append(np.flatnonzero(new_rank)[1:], len(self.rank)) - 1
        columns = [
            np.concatenate(pair).tolist()
            for pair in (
                (self.rank[shown], self.rank[lasts]), (self.start[shown], self.end[lasts]), (top[shown], base)
            )
        ]  # fmt: skip
        return [
            {"ph": "C", "name": counter.name, "pid": rank, "ts": at / 1e3, "args": {"value": value}}
            for rank, at, value in zip(*columns, strict=True)
        ]


def step_trace(step: StepSimulation, links: SharedStep | None = None) -> str:
    """The step as a Perfetto trace, with links where they were simulated; every rank's memory is its counter."""
    memory = Counter(name="memory (GiB)", values=step.held_bytes / GIB, base=step.static_bytes / GIB)
    if links is None:
        return trace_json(step.timeline, spans=step_spans(step), counters=[memory])
    return trace_json(links.timeline, spans=link_spans(links), counters=[memory])


def link_spans(links: SharedStep) -> list[Span]:
    """The traffic of every rank between nodes, by kind, named by the operation that waits for it, and the update."""
    order, kind, cause = links.plain.timeline.order, links.kind.tolist(), links.cause.tolist()
    spans = [
        Span(rank=int(links.rank[i]), stream=kind[i],
             name=kind[i] if cause[i] < 0 else f"{kind[i]} {order.operation(cause[i])}",
             start_s=float(links.ran.start_s[i]), end_s=float(links.ran.end_s[i]))
        for i in np.flatnonzero((links.kind != COMPUTE) & (links.ran.end_s > links.ran.start_s)).tolist()
    ]  # fmt: skip
    update = links.plain.update_end_s - links.plain.update_start_s
    last = [float(x) for x in links.update_start_s]
    return spans + [
        Span(rank=r, stream=COMPUTE, name="update", start_s=at, end_s=at + float(update[r]))
        for r, at in enumerate(last)
    ]


def host_spans(step: StepSimulation) -> list[Span]:
    """Activations on the host link: they have left as a forward pass ends, and come back as the backward one begins."""
    order, timeline = step.timeline.order, step.timeline
    seconds = np.broadcast_to(step.moved_s, len(step.loads.layers))[order.stage]
    out = []
    for i in np.flatnonzero((seconds > 0.0) & (order.kind < S)).tolist():
        name, rank, lasts = f"{order.operation(i)}", int(order.rank[i]), float(seconds[i])
        start, end = float(timeline.start_s[i]), float(timeline.end_s[i])
        if order.kind[i] == F:
            out.append(Span(rank=rank, stream="to the host", name=name, start_s=end - lasts, end_s=end))
        else:
            out.append(Span(rank=rank, stream="from the host", name=name, start_s=start, end_s=start + lasts))
    return out


def step_spans(step: StepSimulation) -> list[Span]:
    """Spans of every rank beside its schedule: parameter gather and gradient reduction on the network, the update."""
    order, timeline = step.timeline.order, step.timeline
    first, done = timeline.start_s[order.start[:-1]], timeline.end_s[order.start[1:] - 1]
    # All at once before the first operation, or chunk by chunk, of which the first is waited for from the start.
    whole = step.gather_s > 0.0
    gather = np.where(whole, first - (step.gather_s - step.gather_hidden_s), 0.0)
    gathered = np.where(whole, gather + step.gather_s, timeline.start_s.min())
    table = (
        ("data-parallel network", "gather parameters", gather, gathered),
        ("data-parallel network", "reduce gradients", step.reduce_start_s, step.reduce_end_s),
        (COMPUTE, "update", step.update_start_s.clip(min=done), step.update_end_s),
    )
    return host_spans(step) + [
        Span(rank=rank, stream=stream, name=name, start_s=start, end_s=end)
        for stream, name, starts, ends in table
        for rank, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True))
        if end > start
    ]
