"""The key plots of a report for slides: one picture (PNG), or a page a plot (PDF), by matplotlib."""

from __future__ import annotations

import io
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.base import records
from planner.base.arrays import Array
from planner.base.units import DAY, GIB, format_bytes, format_seconds
from planner.report.pictures import COLOURS, drawing_style
from planner.report.plan_report import PlanReport, shown_layouts
from planner.report.plots import BLUE, Panel, figure_of, parts
from planner.report.tables import layout_text, mfu_text
from planner.report.training import count_text
from planner.schedules.operations import KINDS, NAMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from planner.search import Recommendation
    from planner.step.timeline.step import StepSimulation
    from planner.training_time.fastest import Fastest
    from planner.training_time.goal import Goal

MOST_DRAWN = 12_000  # operations of a timeline: more would be a grey band
RED, GREY = "#b42318", "#94a0ae"
STYLE: Any = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.wspace": 0.06,
    "figure.constrained_layout.hspace": 0.06,
}


def slides(report: PlanReport, suffix: str) -> bytes:
    """The picture (.png) or the pages (.pdf); where nothing fits in memory they show the nearest miss."""
    with drawing_style(STYLE):
        return _png(report) if suffix == ".png" else _pdf(report)


def _row(report: PlanReport) -> int:
    """The layout that the plots are of."""
    return int(report.found.best[0]) if len(report.found.best) else shown_layouts(report.found)[0]


def _panels(report: PlanReport, i: int) -> list[Panel]:
    """What the plots draw, each on axes that it is given."""
    found, x, curve = report.found, report.found.estimate, report.curve
    out: list[Panel] = [
        partial(front_panel, found=found, capacity_gib=report.cluster.accelerator.memory_bytes / GIB, i=i),
        *parts(
            {"time_s": records.parts(x.time, i, "_s"), "memory_parts_gib": records.parts(x.memory, i, "_bytes", GIB)}
        ),
    ]
    if i in report.steps:
        out.append(partial(timeline_panel, step=report.steps[i]))
    if curve is not None and curve.found is not None:
        out.append(partial(curve_panel, found=curve.found, goal=curve.case.goal, asked=found.asked.gpus))
    if len(report.accuracy.errors):
        out.append(partial(accuracy_panel, errors=report.accuracy.errors))
    return out


def _png(report: PlanReport) -> bytes:
    from matplotlib.figure import Figure

    i = _row(report)
    panels = _panels(report, i)
    figure = Figure(figsize=(16, 9))
    axes = figure.subplots(2, 3)
    figure.suptitle("\n".join(_headline(report, i)), x=0.01, ha="left", fontsize=14)
    for axis, panel in zip(axes.flat, panels, strict=False):
        panel(axis)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=120)
    return out.getvalue()


def _pdf(report: PlanReport) -> bytes:
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    i, out = _row(report), io.BytesIO()
    with PdfPages(out, metadata={"CreationDate": None, "Title": report.title}) as pages:
        for panel in _panels(report, i):
            figure = Figure(figsize=(13.33, 7.5))
            figure.suptitle("\n".join(_headline(report, i)), x=0.02, ha="left", fontsize=15)
            panel(figure.subplots())
            pages.savefig(figure)
    return out.getvalue()


def _headline(report: PlanReport, i: int) -> list[str]:
    """The question, the layout, its figures."""
    x = report.found.estimate
    verdict = "Run this" if x.fits[i] else "Nothing fits; nearest miss"
    interval = report.intervals_s[i]
    trust = "" if interval is None else f" (80 %: {interval[0]:.4g} to {interval[1]:.4g} s)"
    return [
        report.title,
        f"{verdict}: {layout_text(x.layouts.row(i))}",
        f"{format_seconds(float(x.step_time_s[i]))} per step{trust}, {mfu_text(float(x.mfu[i]), report.model)}, "
        f"{format_bytes(float(x.memory_bytes[i]))} of {format_bytes(report.cluster.accelerator.memory_bytes)}",
    ]


def front_figure(found: Recommendation, memory_bytes: float) -> Figure:
    """Step time against memory, alone."""
    return figure_of("", partial(front_panel, found=found, capacity_gib=memory_bytes / GIB, i=int(found.best[0])))


def front_panel(axis: Any, found: Recommendation, capacity_gib: float, i: int) -> None:
    """Step time against memory: the front, and the layout."""
    x = found.estimate
    rows = found.front[x.step_time_s[found.front] <= 4 * x.step_time_s[i]] if len(found.front) else np.array([i])
    memory, step = x.memory_bytes[rows] / GIB, x.step_time_s[rows]
    axis.step(memory, step, where="pre", color=BLUE, linewidth=1.2, alpha=0.7)
    axis.plot(memory, step, "o", color=BLUE, markersize=5, label="front")
    label = "recommended" if x.fits[i] else "nearest miss"
    axis.plot(
        x.memory_bytes[i] / GIB, x.step_time_s[i], "D", color=BLUE if x.fits[i] else RED, markersize=10, label=label
    )
    axis.axvline(capacity_gib, color=RED, linestyle="--", linewidth=1, label="the GPU's memory")
    axis.set_xlim(left=0)
    axis.set(title="Time against memory", xlabel="memory of the fullest rank, GiB", ylabel="seconds per step")
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)


def timeline_panel(axis: Any, step: StepSimulation) -> None:
    """The simulated step, or its beginning where it is long, rank by rank."""
    timeline, order = step.timeline, step.timeline.order
    until = float(timeline.end_s.max())
    if len(order) > MOST_DRAWN:
        until = float(np.sort(timeline.end_s)[MOST_DRAWN])
    rank = order.rank
    for code in np.unique(order.kind).tolist():
        kind = KINDS[code]
        for r in range(order.ranks):
            at = np.flatnonzero((order.kind == code) & (rank == r) & (timeline.start_s < until))
            spans = [(timeline.start_s[j], timeline.end_s[j] - timeline.start_s[j]) for j in at]
            axis.broken_barh(
                spans, (r - 0.4, 0.8), facecolors=COLOURS[kind], linewidth=0, label=NAMES[kind] if r == 0 else None
            )
    part = (
        "" if len(order) <= MOST_DRAWN else f", its first {format_seconds(until)} of {format_seconds(step.step_time_s)}"
    )
    axis.set_xlim(0, until)
    axis.set_ylim(order.ranks - 0.5, -0.5)
    axis.set(title=f"One step{part}", xlabel="seconds", ylabel="pipeline rank")
    axis.set_yticks(range(0, order.ranks, -(-order.ranks // 16)))
    axis.legend(frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.14), fontsize=9)


def curve_panel(axis: Any, found: Fastest, goal: Goal, asked: int) -> None:
    """The shortest training time against accelerators."""
    gpus, days = found.run.gpus[found.by_gpus], found.run.wall_s[found.by_gpus] / DAY
    axis.loglog(gpus, days, "o-", color=BLUE, markersize=5)
    if found.knee_gpus < len(gpus) - 1:
        axis.plot(gpus[found.knee_gpus], days[found.knee_gpus], "D", color=BLUE, markersize=10, label="knee")
    axis.axvline(asked, color=GREY, linestyle="--", linewidth=1, label=f"asked: {asked:,}")
    for along in (axis.xaxis, axis.yaxis):
        along.set_major_formatter(lambda value, _: f"{value:,.10g}")
    title = f"Shortest time to train, {count_text(goal.target.tokens)} tokens"
    axis.set(title=title, xlabel="GPUs", ylabel="days")
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)


def accuracy_panel(axis: Any, errors: Array) -> None:
    """Errors of predicted step times on measured runs."""
    low, high = np.quantile(100 * errors, [0.1, 0.9])
    axis.hist(100 * np.clip(errors, -0.4, 0.4), bins=40, range=(-40, 40), color=BLUE)
    axis.axvspan(low, high, color=BLUE, alpha=0.12, label=f"80 %: {low:+.1f} to {high:+.1f} %")
    axis.set(
        title=f"Errors on {len(errors):,} measured runs",
        xlabel="predicted over measured step time, less 1, %",
        ylabel="runs",
    )
    axis.legend(frameon=False, fontsize=9)
