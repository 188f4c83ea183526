"""The exact timeline of one layout's step: what `simulate` returns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from planner.api.answer import Shown
from planner.api.frameworks import layout_under
from planner.api.inputs import ClusterLike, LayoutChoices, ModelLike, setup_of
from planner.base.errors import InputError, shown
from planner.base.files import given_path, write_text
from planner.base.units import GIB, parse_number
from planner.choices.choice import parsed, word
from planner.costs.memory.fit_chance import chance_in
from planner.exporters.perfetto import step_trace
from planner.hardware import Cluster
from planner.hardware.declared import declared
from planner.hardware.read import WITH
from planner.layouts import Layouts
from planner.question import batch_or_usual, check_elsewhere
from planner.report import simulations, tables
from planner.report.pictures import svg_element, timeline_figure
from planner.report.plain_table import View
from planner.report.records import operation_frame
from planner.schedules import Order
from planner.schedules.csv_file import read_schedule
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.legality import check_legal
from planner.step.slice_program import cut
from planner.step.timeline.critical_path import critical_path
from planner.step.timeline.shared_links import share_links
from planner.step.timeline.step import simulate as simulate_step

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

MOST_DRAWN = 2000  # operations: above, a picture in a notebook is megabytes that nobody can read


@dataclass(frozen=True, repr=False, eq=False)
class Simulation(Shown, simulations.Simulated):
    """Every operation of every rank in one step: when it runs, what a rank waits for, what it holds.

    Prints as `planner simulate` does; in a notebook, with the timeline drawn.

    Attributes:
        setup: model, cluster and framework.
        layouts: the layout, a table of length one.
        step: the timeline and what surrounds it.
    """

    slices: Sequence[int] | None = None

    @property
    def step_time_s(self) -> float:
        """Seconds of an optimizer step."""
        return self.step.step_time_s

    @property
    def peak_gib(self) -> list[float]:
        """The most that each rank holds."""
        return [float(x) for x in self.step.peak_bytes / GIB]

    @property
    def bubble(self) -> float:
        """Idle share of all ranks' step, 0 to 1."""
        return self.step.bubble

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline: .svg, .png or .html draw it, .json is a trace for Perfetto or Chrome.

        Raises:
            InputError: another suffix.
            OutputError: the path can't be written.
        """
        target = given_path("path", path)
        if target.suffix == ".json":
            write_text(target, step_trace(self.step, self.links))
        else:
            self.save_picture(target)

    def to_dict(self) -> dict[str, Any]:
        """The record that `planner simulate --json` prints; docs/json.md has the keys."""
        return simulations.simulation_record(self) | ({} if self.slices is None else {"slices": list(self.slices)})

    def to_pandas(self) -> pandas.DataFrame:
        """A row an operation: rank, stage, kind, micro_batch, slice, start_s, end_s."""
        return operation_frame(self.step.timeline)

    def plot(self) -> Figure:
        """The timeline as a figure of matplotlib."""
        return timeline_figure(self.step.timeline, f"{self._title}: {self.schedule}", "s")

    @property
    def _title(self) -> str:
        return tables.question_title(self.setup, int(self.layouts.gpus[0]), self.layout["global_batch"])

    @property
    def lines(self) -> tuple[View, ...]:
        """The lines that `planner simulate` prints."""
        sizes = ", ".join(f"{n:,}" for n in self.slices or ())
        cuts = (f"slices of {sizes} tokens", "") if sizes else ()
        return self._title, "", *cuts, simulations.simulation_view(self)

    def _repr_html_(self) -> str:
        drawn = len(self.step.timeline.order) <= MOST_DRAWN
        picture = svg_element(lambda: timeline_figure(self.step.timeline, "", "s")) if drawn else ""
        return f'<div style="overflow-x:auto">{picture}</div>{super()._repr_html_()}'


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How a step is simulated besides its layout.

    schedule_file: a CSV with a schedule of one's own instead of the layout's. slices: how the sequence is cut
    (`planner.step.slice_program.cut`); empty is that all slices take alike. links: traffic between nodes shares links;
    slow_down: with links, compute beside them is 1 + this slower; background: flows of other jobs on pods' links
    (`beside`), with links.
    """

    schedule_file: Path | None = None
    slices: str = ""
    links: bool = False
    slow_down: float = 0.0
    background: str = ""

    @cached_property
    def order(self) -> Order | None:
        """The schedule of one's own; None where no file has one. Raises as `read_schedule`."""
        return None if self.schedule_file is None else read_schedule(self.schedule_file)


def simulate_layouts(setup: Setup, layouts: Layouts, how: Timing | None = None) -> Simulation:
    """The timeline of a table of one layout; raises as `simulate`."""
    how = how or Timing()
    if how.background:
        setup = replace(setup, cluster=beside(setup.cluster, how.background))
    order = how.order
    check_legal(setup.model, setup.cluster, layouts, scheduled=order is None)
    slices = cut(setup, layouts, how.slices) if how.slices else None
    step = simulate_step(setup, layouts, order=order, slices=slices)
    closed = None
    if order is None:
        closed = float(np.asarray(estimate(setup, layouts).step_time_s)[0])
    links = None
    if how.links or how.slow_down or how.background:
        if order is not None or slices is not None:
            raise InputError("--links is given with --schedule-file or --slices; allowed: one of them")
        links = share_links(setup, layouts, how.slow_down)
    chance = float(chance_in(setup, layouts.row(0)["precision"], step.peak_bytes.max()))
    path = critical_path(step.timeline)
    return Simulation(setup, layouts, step, path, closed, chance, links, how.schedule_file, slices)


def beside(cluster: Cluster, background: str) -> Cluster:
    """The cluster with so many flows of other jobs on each pod's links: "16", or "flows=16,gbit_per_s=200".

    Raises InputError for another form, a number out of range, a figure that says it too, or links between pods that
    hold nothing up.
    """
    parts = [part.split("=", 1) if "=" in part else ["flows", part] for part in background.split(",")]
    known = {"flows": "neighbour_flows", "gbit_per_s": "neighbour_bandwidth_bytes_per_s"}
    given = [figure for figure in cluster.name.partition(WITH)[2].split(", ") if figure.startswith("neighbour_")]
    allowed = "a number of flows, such as 16, or flows=16,gbit_per_s=200"
    figures = parsed("--background", background, lambda _: {k: parse_number(text, float) for k, text in parts}, allowed)
    if "flows" not in figures or figures.keys() - known or len(figures) < len(parts):
        raise InputError(f"--background is {shown(background)}; allowed: {allowed}")
    for key, value in figures.items():
        d = declared(Cluster)[known[key]][1]
        if not d.least <= value <= d.most or (d.whole and value % 1.0):
            kind = "a whole number" if d.whole else "a number"
            raise InputError(f"--background {key} is {value:g}; allowed: {kind} from {d.least:,} to {d.most:,.0f}")
    if given:
        raise InputError(f"--background is {shown(background)} beside --figure {given[0]}; allowed: one of them")
    if cluster.oversubscription == 1.0:
        raise InputError(
            f"--background is {shown(background)} where oversubscription is 1, which holds nothing up; allowed: with "
            "--figure oversubscription above 1 (and pod_nodes)"
        )
    each = figures["gbit_per_s"] / 8e-9 if "gbit_per_s" in figures else cluster.neighbour_bandwidth_bytes_per_s
    return replace(cluster, neighbour_flows=int(figures["flows"]), neighbour_bandwidth_bytes_per_s=each)


def simulate_one(setup: Setup, how: Timing | None = None, **choices: Any) -> Simulation:
    """The timeline of a question's layout; choices: by name, as `layout_under`. Raises as `simulate`.

    A schedule of one's own says how many virtual stages there are, unless they are given.
    """
    if how is not None and how.order is not None and choices.get("virtual_stages", 1) == 1:
        choices["virtual_stages"] = how.order.virtual_stages
    return simulate_layouts(setup, layout_under(setup, **choices), how)


def simulate(
    model: ModelLike,
    cluster: ClusterLike,
    *,
    batch: int | None = None,
    schedule_file: str | os.PathLike[str] | None = None,
    slices: str = "",
    links: bool = False,
    background: str = "",
    framework: str | None = None,
    **choices: Unpack[LayoutChoices],
) -> Simulation:
    """The exact timeline of one layout's step; arguments as of `planner.estimate`.

    schedule_file: a CSV with a schedule of one's own, a row a rank (docs/schedules.md), instead of the layout's.
    slices: how the sequence is cut: work, even, auto (TeraPipe's program under its schedule), or the tokens of each,
    "11040,8416,7080,6232"; empty is that all slices take alike. links: traffic between nodes shares links;
    background: with other jobs' flows on each pod's links, "16" or "flows=16,gbit_per_s=200".

    Raises:
        InputError, UnknownNameError, FileFormatError, LayoutError: as `planner.estimate`.
        ScheduleError: a schedule that is incomplete, deadlocks, or is not of the layout's size.
    """
    file = None if schedule_file is None else given_path("schedule_file", schedule_file)
    shared = word("background", background)
    how = Timing(schedule_file=file, slices=word("slices", slices), links=links, background=shared)
    setup = setup_of(model, cluster, framework)
    check_elsewhere(choices)
    each = batch_or_usual(batch, setup.model.seq_len, choices.get("dp", 1))
    return simulate_one(setup, how, global_batch=each, **choices)
