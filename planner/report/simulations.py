"""A simulated step, with its shared links, and schedules side by side, as tables and records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from planner.base.units import GIB, format_bytes, format_seconds
from planner.hardware import Cluster
from planner.layouts import Layouts
from planner.report.plain_table import View, plain_table, stacked
from planner.report.tables import chance_text, layout_text
from planner.setup import Setup

if TYPE_CHECKING:
    from planner.search.compare import Compared
    from planner.search.stage_split import StageSplit
    from planner.step.timeline.critical_path import CriticalPath
    from planner.step.timeline.shared_links import SharedStep
    from planner.step.timeline.step import StepSimulation

MOST_RANKS, MOST_LINKS = 16, 8


@dataclass(frozen=True, repr=False, eq=False)
class Simulated:
    """A simulated step, to be shown.

    path: the operations whose seconds the step is. closed_form_s: its seconds by the closed form, where there is one.
    fit_chance: how likely the fullest rank is within the accelerator's memory, 0 to 1.
    links: the step whose links are shared. file: whose order stands for the schedule's, None where none does.
    """

    setup: Setup
    layouts: Layouts
    step: StepSimulation
    path: CriticalPath
    closed_form_s: float | None
    fit_chance: float
    links: SharedStep | None
    file: Path | None

    @property
    def schedule(self) -> str:
        """The schedule's name, or the user's file."""
        return self.step.schedule.name if self.file is None else str(self.file)

    @property
    def layout(self) -> dict[str, Any]:
        """The choices by name."""
        return self.layouts.row(0) | {"schedule": self.schedule}

    @property
    def fits(self) -> bool:
        """Whether every rank is within the accelerator's memory."""
        return bool(self.step.peak_bytes.max() <= self.setup.cluster.accelerator.memory_bytes)


def links_record(x: SharedStep) -> dict[str, Any]:
    """The step, its links, those first that hold flows up for longest, and its traffic by kind."""
    used = x.ran.carried_bytes / x.fabric.capacity_bytes_per_s / x.step_time_s
    columns = (x.fabric.alike, used, x.ran.full_s, x.ran.held_s)
    links = [
        {"link": link, "alike": alike, "used": share, "full_s": full_s, "held_s": held_s}
        for link, alike, share, full_s, held_s in zip(x.fabric.names, *(c.tolist() for c in columns), strict=True)
        if share > 0.0
    ]
    return {
        "step_time_s": x.step_time_s,
        "alone_s": x.plain.step_time_s,
        "links": sorted(links, key=lambda of: (-round(of["held_s"], 6), -round(of["full_s"], 6))),
        "traffic": [
            {"kind": kind, "alone_s": alone_s, "shared_s": shared_s}
            for kind, (alone_s, shared_s) in x.traffic_s.items()
        ],
    }


def links_view(x: SharedStep, closed_form_s: float | None) -> View:
    """The same for a person."""
    r = links_record(x)
    beside = "" if closed_form_s is None else f" ({x.step_time_s / closed_form_s - 1.0:+.2%} to the closed form)"
    lines = [
        f"links shared: {format_seconds(x.step_time_s)}{beside}; if nothing met on them {format_seconds(r['alone_s'])}",
    ]
    if not r["links"]:
        return "\n".join([*lines, "nothing goes between nodes"])
    links = plain_table("link", "alike", "used", "full s", "held up s", numbers=(1, 2, 3, 4))
    for of in r["links"][:MOST_LINKS]:
        seconds = (f"{of[key]:.4g}" for key in ("full_s", "held_s"))
        links.add_row(of["link"], str(of["alike"]), f"{of['used']:.1%}", *seconds)
    traffic = plain_table("traffic", "alone s", "shared s", "held up", numbers=(1, 2, 3))
    for of in r["traffic"]:
        held = of["shared_s"] / of["alone_s"] - 1.0
        traffic.add_row(of["kind"], f"{of['alone_s']:.4g}", f"{of['shared_s']:.4g}", f"{held:+.1%}")
    if len(r["links"]) > MOST_LINKS:
        lines.append(f"the {MOST_LINKS} links that held flows up for longest, of {len(r['links'])} that differ")
    notes = (
        "used: of what a link carries in a step, by this job; full: with other jobs' flows\n"
        "held up: a flow of this job would send more; traffic: of the rank that waits longest"
    )
    return stacked("\n".join(lines), "", links, "", traffic, "", notes)


def simulation_record(x: Simulated) -> dict[str, Any]:
    """A simulated step: total, by rank, the critical path."""
    step = x.step
    return {
        "layout": x.layout,
        "step_time_s": step.step_time_s,
        "closed_form_s": x.closed_form_s,
        "with_links": None if x.links is None else links_record(x.links),
        "operations": len(step.timeline.order),
        "bubble": step.bubble,
        "fits": x.fits,
        "fit_chance": x.fit_chance,
        "ranks": {
            "busy_s": (step.timeline.busy_s / step.steps).tolist(),
            "exposed_comm_s": step.exposed_comm_s.tolist(),
            "update_s": (step.update_end_s - step.update_start_s).tolist(),
            "idle_s": step.idle_s.tolist(),
            "peak_gib": (step.peak_bytes / GIB).tolist(),
        },
        "stages": {
            "layers": step.loads.layers.tolist(),
            "forward_s": step.loads.forward_s.tolist(),
            "input_grad_s": step.loads.input_grad_s.tolist(),
            "weight_grad_s": step.loads.weight_grad_s.tolist(),
        },
        "critical_path": [{"stage": stage, "kind": kind, "seconds": seconds} for stage, kind, seconds in x.path.parts],
    }


def simulation_view(x: Simulated) -> View:
    """A simulated step for a person."""
    step = x.step
    capacity = x.setup.cluster.accelerator.memory_bytes
    words, own = layout_text(x.layouts.row(0)), x.step.schedule.name
    lines = [
        words if x.file is None else f"{words.removesuffix(f' {own}')} schedule {x.file}",
        f"  {format_seconds(step.step_time_s)} per step over {len(step.timeline.order):,} operations, "
        f"{step.bubble:.1%} of it idle; {format_bytes(float(step.peak_bytes.max()))} of {format_bytes(capacity)}"
        f" (fits in {chance_text(x.fit_chance)} of such cases)",
        f"  critical path: {x.path.sentence()}",
    ]
    if (closed := x.closed_form_s) is not None:
        lines.append(f"  closed form: {format_seconds(closed)} ({closed / step.step_time_s - 1:+.2%})")
    if step.steps > 1:
        lines.append(f"  never drained: the step is the period of the steady state; {step.schedule.staleness}")
    table = plain_table("rank", "layers", "busy s", "idle s", "exposed comm s", "update s", "peak GiB",
                        numbers=(0, 1, 2, 3, 4, 5, 6))  # fmt: skip
    order = step.timeline.order
    busy, update = step.timeline.busy_s / step.steps, step.update_end_s - step.update_start_s
    idle = np.where(np.abs(step.idle_s) < 1e-9 * step.step_time_s, 0.0, step.idle_s)
    shown = list(range(order.ranks))
    if order.ranks > MOST_RANKS:
        shown = shown[: MOST_RANKS // 2] + shown[-MOST_RANKS // 2 :]
    for before, r in zip([None, *shown], shown, strict=False):
        if before is not None and r != before + 1:
            table.add_row("...", *[""] * 6)
        stages = np.unique(order.stage[order.start[r] : order.start[r + 1]])
        table.add_row(
            str(r), str(int(step.loads.layers[stages].sum())), f"{busy[r]:.4g}", f"{idle[r]:.4g}",
            f"{step.exposed_comm_s[r]:.4g}", f"{update[r]:.4g}", f"{step.peak_bytes[r] / GIB:.2f}",
        )  # fmt: skip
    shared = () if x.links is None else ("", links_view(x.links, x.closed_form_s))
    return stacked("\n".join(lines), "", table, *shared)


def comparison_record(
    rows: list[Compared], refused: dict[str, str], cluster: Cluster, framework: str, runs: Sequence[str] | None,
    chance: Callable[[float], Any],
) -> dict[str, Any]:  # fmt: skip
    """Schedules side by side; runs: those that the framework has, None for all; chance: that so many bytes fit."""
    return {
        "framework": framework,
        "schedules": [
            {
                "layout": x.layouts.row(0),
                "framework_runs": runs is None or x.step.schedule.name in runs,
                "synchronous": x.step.schedule.synchronous,
                "step_time_s": x.step.step_time_s,
                "bubble": x.step.bubble,
                "peak_gib": float(x.step.peak_bytes.max()) / GIB,
                "fits": bool(x.step.peak_bytes.max() <= cluster.accelerator.memory_bytes),
                "fit_chance": float(chance(x.step.peak_bytes.max())),
                "weight_versions": x.step.weight_versions,
                "weight_copies": x.step.schedule.copies,
                "pipeline_gib_sent": x.pipeline_bytes / GIB,
                "needed_bandwidth_gbit_per_s": x.needed_bandwidth_bytes_per_s * 8e-9,
            }
            for x in rows
        ],
        "not_legal": refused,
    }


def comparison_view(r: Mapping[str, Any]) -> View:
    """The same for a person; `*` marks those that change the training."""
    table = plain_table("schedule", "v", "k", "step s", "idle", "GiB", "fits", "w", "sent", "Gb/s",
                        "has it", numbers=(1, 2, 3, 4, 5, 6, 7, 8, 9))  # fmt: skip
    for x in r["schedules"]:
        row, memory = x["layout"], Text(f"{x['peak_gib']:.1f}", style="" if x["fits"] else "red")
        table.add_row(
            row["schedule"] + ("" if x["synchronous"] else " *"), str(row["virtual_stages"]),
            str(row["sequence_slices"]), f"{x['step_time_s']:.4g}", f"{x['bubble']:.1%}", memory,
            chance_text(x["fit_chance"]), f"{x['weight_versions'] * x['weight_copies']:g}",
            f"{x['pipeline_gib_sent']:.2f}", f"{x['needed_bandwidth_gbit_per_s']:.3g}",
            "yes" if x["framework_runs"] else "",
        )  # fmt: skip
    lines = ["v virtual stages, k slices; fits: in so many of such cases; w: copies or versions of its weights that a "
             "rank holds; sent: GiB; Gb/s: needed of the pipeline's links; has it: "
             f"{r['framework']} runs it"]  # fmt: skip
    if not all(x["synchronous"] for x in r["schedules"]):
        lines.append("* changes the training: gradients are taken at older weights; searched only with --allow-async")
    by_reason: dict[str, list[str]] = {}
    for name, reason in r["not_legal"].items():
        by_reason.setdefault(reason, []).append(name)
    if by_reason:
        lines += ["", "Not legal here"] + [f"  {', '.join(n)}: {reason}" for reason, n in by_reason.items()]
    return stacked(table, "", "\n".join(lines))


def split_record(split: StageSplit) -> dict[str, Any]:
    """Layers, seconds and GiB of every stage."""
    return {
        "rank": split.rank.tolist(),
        "layers": split.layers.tolist(),
        "seconds": split.seconds.tolist(),
        "gib": (split.size_bytes / GIB).tolist(),
        "slowest_s": float(split.seconds.max()),
        "even_slowest_s": split.even_slowest_s,
        "even_fits": split.even_fits,
    }


def split_view(r: Mapping[str, Any]) -> View:
    """The same for a person."""
    table = plain_table("stage", "rank", "layers", "ms", "GiB", numbers=(0, 1, 2, 3, 4))
    columns = (r["rank"], r["layers"], r["seconds"], r["gib"])
    for stage, (rank, layers, seconds, gib) in enumerate(zip(*columns, strict=True)):
        table.add_row(str(stage), str(rank), str(layers), f"{seconds * 1e3:.2f}", f"{gib:.2f}")
    slowest, more = r["slowest_s"], r["slowest_s"] / r["even_slowest_s"] - 1.0
    against = f"{abs(more):.1%} {'more' if more > 0.0 else 'less'} than with an even split"
    against += "" if r["even_fits"] else ", which does not fit in memory"
    line = f"slowest stage {slowest * 1e3:.2f} ms per micro-batch, {against}"
    return stacked(table, "", line, "embedding with stage 0, head with the last; GiB of a stage's share of its rank")
