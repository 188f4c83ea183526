"""A pipeline schedule drawn with durations of one's own: `planner schedule`, and `planner.schedule` in Python."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.api.answer import Shown
from planner.base.errors import InputError, LayoutError, ScheduleError
from planner.base.files import given_path, is_path, write_text
from planner.base.units import counted
from planner.choices.choice import real, whole
from planner.report.drawing import draw_timeline
from planner.report.pictures import timeline_figure
from planner.report.plain_table import View, plain_table
from planner.report.records import operation_frame
from planner.schedules import Order, Pipeline, Schedule, get_schedule
from planner.schedules.csv_file import read_schedule
from planner.step.timeline.critical_path import critical_path
from planner.step.timeline.timeline import Timeline, check_size, durations, run

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

COLUMNS = 80  # of a drawing in text, where no terminal says how wide it is


@dataclass(frozen=True, repr=False, eq=False)
class ScheduleTimeline(Shown):
    """A schedule's operations in time, in the unit of the durations; known: None for a file of the user's."""

    name: str
    known: Schedule | None
    pipe: Pipeline
    timeline: Timeline
    facts: Mapping[str, Any]

    @property
    def title(self) -> str:
        """The schedule and its size."""
        pipe = self.pipe
        text = f"{self.name}: {counted(pipe.p, 'rank')}, {counted(pipe.m, 'micro-batch')}"
        text += f", {pipe.v} virtual stages per rank" if pipe.v > 1 else ""
        return text + (f", {pipe.k} slices per sequence" if pipe.k > 1 else "")

    def to_dict(self) -> dict[str, Any]:
        """The record that `planner schedule NAME --json` prints."""
        rows = [[str(op) for op in row] for row in self.timeline.order.rows()]
        return {"schedule": self.name} | dict(self.facts) | {"rows": rows}

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each operation: rank, stage, kind, micro_batch, slice, start_s, end_s."""
        return operation_frame(self.timeline)

    def plot(self) -> Figure:
        """The drawing as a figure of matplotlib."""
        return timeline_figure(self.timeline, self.title, "")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it: .svg, .png or .html draw it, .csv is `to_csv`.

        Raises:
            InputError: Another suffix.
            LayoutError: PyTorch's runtime has no such operations.
            OutputError: The path can't be written.
        """
        target = given_path("path", path)
        if target.suffix == ".csv":
            self.to_csv(target)
        else:
            self.save_picture(target)

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write it in the form of PyTorch's pipeline runtime, whatever the path's suffix; raises as `save`."""
        from planner.exporters.schedule_csv import schedule_csv

        write_text(given_path("path", path), schedule_csv(self.timeline.order, self.known))

    def view(self, width: int = COLUMNS) -> tuple[View, ...]:
        """The drawing in so many columns of text, and the facts."""
        table = plain_table("", "")
        table.show_header = False
        for key, value in self.facts.items():
            shown = ", ".join(f"{x:.4g}" for x in value) if isinstance(value, list) else value
            table.add_row(key.replace("_", " "), f"{shown:.6g}" if isinstance(shown, float) else str(shown))
        return self.title, "", draw_timeline(self.timeline, width), table

    @property
    def lines(self) -> tuple[View, ...]:
        """The lines that `planner schedule NAME` prints."""
        return self.view()


def schedule(
    name: str | os.PathLike[str], *, pp: int | None = None, micro_batches: int | None = None,
    virtual_stages: int | None = None, slices: int | None = None, steps: int | None = None, forward: float = 1.0,
    input_grad: float = 1.0, weight_grad: float = 1.0, transfer: float = 0.0,
) -> ScheduleTimeline:  # fmt: skip
    """A pipeline schedule in time: its bubble, the activations that it holds, its weight versions.

    name: a schedule, or a CSV file with one of your own, which says its size. pp, micro_batches: 4 and 8 where they are
    not given. virtual_stages: model chunks per rank. slices: of a sequence. steps: how many are drawn, 2 unless given,
    of a pipeline that is never drained. forward, input_grad, weight_grad: time of a
    micro-batch through a rank. transfer: time of a message between ranks, beside the compute.

    Raises:
        InputError, UnknownNameError, FileFormatError: A number is out of range, or a name or a file is wrong.
        LayoutError, ScheduleError: The schedule can't run at that size, or the file's order deadlocks.
    """
    sizes = {"pp": pp, "micro_batches": micro_batches, "steps": steps, "virtual_stages": virtual_stages,
             "slices": slices}  # fmt: skip
    for size, value in sizes.items():
        if value is not None:  # else it is the schedule's own
            whole(size, value, most=100_000)
    for what, lasts in (("forward", forward), ("input_grad", input_grad), ("weight_grad", weight_grad)):
        real(what, lasts, least=1e-30, most=1e30)  # their sums, products and ratios are numbers too
    real("transfer", transfer, least=0.0, most=1e30)
    known, pipe, order = _order(str(name), sizes)
    parts = pipe.v * pipe.k
    try:
        timeline = run(order, durations(order, forward / parts, input_grad / parts, weight_grad / parts), transfer)
    except ScheduleError as error:
        raise ScheduleError(f"{name}: {error} (rank 0 is row 1)") from None
    facts = _facts(known, pipe, timeline, (forward, input_grad, weight_grad), transfer)
    return ScheduleTimeline(str(name), known, pipe, timeline, facts)


def _order(name: str, sizes: Mapping[str, int | None]) -> tuple[Schedule | None, Pipeline, Order]:
    """The schedule (None for a user's file), its size, and its operations; sizes: what is given of them."""
    if is_path(name, (".csv",)):
        order = read_schedule(Path(name))
        m, k = (int(x.max()) + 1 for x in (order.micro_batch, order.slice))
        pipe = Pipeline(p=order.ranks, m=m, v=order.virtual_stages, k=k)
        own = {"pp": pipe.p, "micro_batches": pipe.m, "virtual_stages": pipe.v, "slices": pipe.k, "steps": 1}
        for size, value in sizes.items():
            if value not in (None, own[size]):
                raise InputError(f"{size} is {value}; {name} has {own[size]}; leave it out")
        return None, pipe, order
    if Path(name).suffix:
        raise InputError(f"{name}: is no schedule's file; allowed: a path that ends in .csv, or a schedule's name")
    found, given = get_schedule(name), {size: value for size, value in sizes.items() if value is not None}
    steps = given.pop("steps", None)
    if steps is not None and not found.steady:
        raise InputError(f"steps is {steps}, and {found.name} is drained after each; allowed: without it")
    least = {"virtual_stages": found.least_size["virtual_stages"], "slices": found.least_size["sequence_slices"]}
    p, m, v, k = ({"pp": 4, "micro_batches": 8} | least | given).values()
    pipe = Pipeline(p=p, m=m, v=v, k=k)
    check_size(pipe, steps or 2 if found.steady else 1)
    for rule in found.rules(pipe):
        if np.any(rule.broken):
            got = f"pp {pipe.p}, micro-batches {pipe.m}, virtual stages {pipe.v}, slices {pipe.k}"
            raise LayoutError(f"{rule.text}; got {got}")
    return found, pipe, found.steps_order(pipe, steps or 2) if found.steady else found.order(pipe)


def _facts(
    known: Schedule | None, pipe: Pipeline, timeline: Timeline, times: tuple[float, float, float], c: float
) -> dict[str, Any]:
    """Facts shown beside the schedule's drawing; times in the unit of the durations."""
    span = known is not None and known.unsynchronised_end
    clock = "first operation to last of the slowest rank" if span else "first operation to last"
    if known is None:
        clock += " (a file can't ask for the slowest rank's, as zb-v does)"
    facts: dict[str, Any] = {
        "time": timeline.span_s if span else timeline.makespan_s,
        "clock": clock,
        "bubble_of_what_is_drawn" if known is not None and known.steady else "bubble": timeline.bubble_fraction(span),
        "peak_activations_by_rank": (timeline.peak(kept=0.5) / (pipe.v * pipe.k)).tolist(),
        "critical_path": critical_path(timeline).sentence(),
    }
    if known is None:
        return facts
    if c == 0.0:
        name = "bubble_closed_form" if known.closed_form(pipe, *times)[1] else "bubble_longest_path"
        facts[name] = float(known.bubble_fraction(pipe, *times))
    ranks = range(pipe.p)
    return facts | {
        "weight_versions_by_rank": [float(known.weight_versions(pipe, r)) for r in ranks],
        "weight_copies": known.copies,
        "messages_per_micro_batch": float(known.messages(pipe)),
        "staleness": known.staleness,
        "known_from": known.source,
    }
