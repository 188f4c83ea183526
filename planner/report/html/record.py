"""A report's content as the JSON that the page's script draws. Numbers are rounded to six digits: more is not known."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.base.units import GIB, counted, gpus_text
from planner.models import counts
from planner.models.flops import shown_mfu
from planner.report.html.timelines import packed, timeline_record
from planner.report.plan_report import Curve, PlanReport, shown_layouts
from planner.report.records import estimate_record, figure_sources
from planner.report.tables import PARTS, chance_text, counted_lines, layout_text, reason_lines
from planner.report.training import finite, goal_lines, taken_by

if TYPE_CHECKING:
    from planner.step.timeline.step import StepSimulation
    from planner.training_time.fastest import Fastest

MOST_OPERATIONS = 6_000  # of the best layout's timeline
FEW_OPERATIONS = 800  # of the others'
CLOUD = 400  # other layouts drawn as dots
FAMILIES = {
    "matmul": "compute", "attention": "compute", "scan": "compute", "pointwise": "compute", "embedding_head": "compute",
    "recompute": "again", "host": "wait", "imbalance": "wait", "bubble": "wait", "optimizer": "update",
}  # fmt: skip
"""The kinds of a step's parts; those not named are communication."""


def report_record(report: PlanReport) -> dict[str, Any]:
    """Everything on the page."""
    found, cluster = report.found, report.setup.cluster
    capacity = cluster.accelerator.memory_bytes
    rows = shown_layouts(found)
    best = int(found.best[0]) if len(found.best) else None
    record = {
        "version": report.version,
        "title": report.title,
        "command": report.command,
        "asked": _question_rows(report),
        "capacity_gib": capacity / GIB,
        "why": [*report.reasons, *reason_lines(found)],
        "counted": counted_lines(found),
        "searched": found.legal,
        "front_points": len(found.front),
        "runs_on": _runs_on(report),
        "time_parts": [[key, label, FAMILIES.get(key, "comm")] for key, label in PARTS.items()],
        "memory_parts": [f.name.removesuffix("_bytes") for f in fields(found.estimate.memory)],
        "layouts": [_layout(report, i, best) for i in rows],
        "timelines": packed([_timeline(report, i, best) for i in rows]),
        "cloud": _cloud(report, rows),
        "answers": [answer_record(answer) for answer in report.answers],
        "accuracy": _accuracy(report),
        "curve": None if report.curve is None else _curve(report.curve, report),
        "mfu_shown": [*shown_mfu(report.setup.model), not report.setup.model.num_window_layers],
        "figures": [list(row) for row in figure_sources(cluster)],
        "exports": report.exports,
    }
    return {key: _rounded(value) for key, value in record.items()}


def _rounded(value: Any) -> Any:
    """Floats to six digits, at any depth."""
    if isinstance(value, dict):
        return {key: _rounded(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(v) for v in value]
    if isinstance(value, float):
        return finite(float(f"{value:.6g}"))
    return value


def _question_rows(report: PlanReport) -> list[tuple[str, str]]:
    """The question, as pairs for a list."""
    model, cluster, request = report.setup.model, report.setup.cluster, report.found.request
    network = cluster.network
    return [
        ("Model", f"{model.name}, {float(counts.total_params(model)) / 1e9:,.3g} billion parameters"),
        ("Sequence", f"{int(model.seq_len):,} tokens"),
        (
            "Cluster",
            f"{request.gpus:,} x {cluster.accelerator.name} of {cluster.name}, {cluster.gpus_per_node} per node",
        ),
        (
            "Network",
            f"{network.name}, {cluster.nics_per_node} x {network.bandwidth_bytes_per_s * 8e-9:g} Gb/s per node",
        ),
        (
            "Global batch",
            f"{counted(request.global_batch, 'sequence')}, {request.global_batch * int(model.seq_len):,} tokens",
        ),
        ("Framework", report.setup.framework.name),
        ("Numbers", f"{request.precision.name.lower()}, attention {request.attention.name.lower()}"),
    ]


def _runs_on(report: PlanReport) -> list[str]:
    """The GPUs of the question, and the nodes that they are."""
    gpus, each = report.found.request.gpus, report.setup.cluster.gpus_per_node
    nodes = -(-gpus // each)
    whole = f"{nodes:,} node{'s' if nodes > 1 else ''} of {each}" if gpus >= each else f"of a node of {each}"
    return [gpus_text(gpus), f"{report.setup.cluster.accelerator.name}, {whole}; {report.setup.framework.name}"]


def _layout(report: PlanReport, i: int, best: int | None) -> dict[str, Any]:
    """One layout that can be selected."""
    found = report.found
    record = estimate_record(found.estimate, i, report.setup.cluster)
    roles = ["best"] if i == best else ["top"] if i in found.best else []
    roles += ["fastest"] if i == found.fastest != best else []
    roles += ["roomiest"] if i == found.roomiest != best else []
    roles += ["front"] if i in found.front else []
    roles += ["miss"] if i == found.nearest_miss else []
    roles += ["faster"] if i == found.faster_over_memory else []
    return _in_words(record) | {"roles": roles, "interval_s": report.intervals_s[i]}


def answer_record(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer to `--why`, with its layout in words."""
    return answer | {"layout": answer["layout"] and _in_words(answer["layout"])}


def _in_words(record: dict[str, Any]) -> dict[str, Any]:
    """A layout's record, with its line and its chance to fit as people read them."""
    return record | {"text": layout_text(record["layout"]), "fits_in": chance_text(record["fit_chance"])}


def _timeline(report: PlanReport, i: int, best: int | None) -> Any:
    step, most = report.steps.get(i), MOST_OPERATIONS if i == best else FEW_OPERATIONS
    return None if step is None else _rounded(timeline_record(step, most))


def timeline_text(step: StepSimulation) -> str:
    """One layout's timeline alone, as letters."""
    return packed([_rounded(timeline_record(step, MOST_OPERATIONS))])


def _cloud(report: PlanReport, rows: list[int]) -> list[float]:
    """Memory and step time of some of the other layouts, those in the picture's range: m, t, m, t..."""
    x, shown = report.others, report.found.estimate
    if x is None:
        return []
    slowest = float(shown.step_time_s[rows].max()) if rows else 0.0
    near = np.flatnonzero((x.memory_bytes < 1.3 * x.capacity_bytes) & (x.step_time_s <= slowest))
    near = near[np.linspace(0, len(near) - 1, min(CLOUD, len(near))).astype(int)] if len(near) else near
    points = np.stack([x.memory_bytes[near] / GIB, x.step_time_s[near]], axis=1)
    return [float(f"{v:.4g}") for v in points.reshape(-1).tolist()]


def _accuracy(report: PlanReport) -> dict[str, Any]:
    """The sentence, the errors as a histogram, and scores by source."""
    accuracy = report.accuracy
    out: dict[str, Any] = {"sentence": report.trust, "architecture": accuracy.architecture, "sources": []}
    if not len(accuracy.errors):
        return out
    counts_, edges = np.histogram(np.clip(accuracy.errors, -0.4, 0.4), bins=40, range=(-0.4, 0.4))
    low, middle, high = np.quantile(accuracy.errors, [0.1, 0.5, 0.9]).tolist()
    columns = ("rows", "timed_rows", "mape", "bias", "max_error", "rank_correlation")
    return out | {
        "counts": counts_.tolist(),
        "edges": edges.tolist(),
        "band": [low, middle, high],
        "runs": len(accuracy.errors),
        "sources": [[name, *(s[c] for c in columns)] for name, s in accuracy.sources.items()],
    }


def _curve(curve: Curve, report: PlanReport) -> dict[str, Any]:
    """The shortest time against accelerators and cost, the laws and what is assumed."""
    out: dict[str, Any] = {
        "none": curve.none,
        "laws": [line.strip() for line in goal_lines(curve.case)],
        "assumed": [
            [a.option, "not known" if a.value is None else f"{a.value:,.6g}", a.unit, a.source]
            for a in curve.case.assumptions.figures.values()
            if a.used
        ],
        "here_gpus": report.found.request.gpus,
        "own": None if curve.own is None else taken_by(curve.own) | {"tokens": float(curve.own.tokens[0])},
    }
    if curve.found is None:
        return out
    found = curve.found
    return out | {
        "searched": found.searched,
        "by_gpus": [
            _point(found, int(i)) | {"binds": [b.name, b.gain]}
            for i, b in zip(found.by_gpus, found.binding, strict=True)
        ],
        "knee": found.knee_gpus,
    }


def _point(found: Fastest, i: int) -> dict[str, Any]:
    return taken_by(found.run, i) | {
        "batch": int(found.estimate.layouts.global_batch[i]),
        "mfu": float(found.estimate.mfu[i]),
        "text": layout_text(found.estimate.layouts.row(i)),
    }
