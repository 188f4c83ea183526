"""A simulated step as a trace: the schedule, the data-parallel collectives and the update around it, and memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from planner.base.units import GIB
from planner.exporters.perfetto import COMPUTE, Counter, Span, write_trace
from planner.schedules.dependencies import F, S
from planner.step.timeline.step import StepSimulation
from planner.step.timeline.step_streams import StreamStep
from planner.step.timeline.streams import LANES


def write_step_trace(path: Path, step: StepSimulation, links: StreamStep | None = None) -> None:
    """The step as a Perfetto trace, with links where they were simulated; every rank's memory is its counter.

    Raises OutputError if the path can't be written.
    """
    memory = Counter(name="memory (GiB)", values=step.held_bytes / GIB, base=step.static_bytes / GIB)
    if links is None:
        write_trace(path, step.timeline, spans=step_spans(step), counters=[memory])
    else:
        write_trace(path, links.timeline, spans=link_spans(links), counters=[memory])


def link_spans(links: StreamStep) -> list[Span]:
    """The operations of every rank's links, named by the operation that they follow or precede, and the update."""
    streams, n = links.streams, len(links.streams.order)
    spans = [
        Span(rank=int(streams.rank[i]), stream=LANES[streams.lane[i]],
             name=f"{streams.name[i]} {streams.order.operation(int(streams.cause[i]))}",
             start_s=float(streams.start_s[i]), end_s=float(streams.end_s[i]))
        for i in range(n, len(streams.start_s))
        if streams.end_s[i] > streams.start_s[i]
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
    """What every rank does beside its schedule: parameter gather and gradient reduction on the network, the update."""
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
