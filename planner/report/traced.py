"""Traces and memory snapshots in words: a device's step and memory by part, beside the prediction."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.text import Text

from planner.base.units import format_seconds
from planner.report.plain_table import View, bold, plain_table, stacked

WORDS = {
    "products": "matrix products", "other": "norms, activations, copies, loss", "idle": "idle: nothing runs",
    "computing": "kernels but the optimizer's", "sends": "sends, waiting for stages",
    "parameters": "the model's making", "states": "parameters, optimizer states", "gathered": "gathered parameters",
    "forward": "forward pass: activations", "backward": "backward pass: gradients",
}  # fmt: skip


def traced_view(record: Mapping[str, Any]) -> View:
    """The traces' devices, their mean step beside the prediction, the snapshots."""
    parts: list[View] = []
    for trace in record.get("traces", ()):
        parts += ["", *_device(trace)]
    if rows := record.get("step_parts_s"):
        off = record["most_off"]
        parts += ["", _beside(rows, format_seconds), "", bold("Look at first")]
        parts.append(f"  {WORDS.get(off, off)}: {record['may_mean']}")
    for one in record.get("snapshots", ()):
        peaks = f"peak {one['peak_gib']:.2f} GiB, reserved {one['reserved_gib']:.2f} GiB"
        table = plain_table("asked for by", "GiB at the peak", numbers=(1,))
        for kind, size in one["kinds_gib"].items():
            table.add_row("elsewhere" if kind == "other" else WORDS.get(kind, kind), f"{size:.2f}")
        if one["places_gib"]:
            table.add_row("by line of code, the largest:", "")
        for place, size in one["places_gib"].items():
            table.add_row(Text(f"  {place}"), f"{size:.2f}")
        parts += ["", bold(f"{one['snapshot']}: GPU {one['device']}, {peaks}"), table]
        if rows := one.get("memory_parts_gib"):
            parts += ["", _beside(rows, "{:.2f} GiB".format)]
    return stacked(*parts[1:])


def _device(trace: Mapping[str, Any]) -> list[View]:
    step = trace["step_s"]
    table = plain_table("of a step", "alone", "share", "summed", "operations", numbers=(1, 2, 3, 4))
    for name, (alone, summed, count) in trace["parts"].items():
        cells = (format_seconds(alone), f"{alone / step:.1%}", format_seconds(summed), f"{count:,.0f}")
        table.add_row(Text(WORDS.get(name, name)), *cells)
    table.add_row(WORDS["idle"], format_seconds(trace["idle_s"]), f"{trace['idle_s'] / step:.1%}", "", "")
    table.add_row("step", format_seconds(step), "", "", "", style="bold")
    marked = f"{trace['steps']} marked steps" if trace["steps"] else "no step is marked: taken as one"
    head = f"{trace['trace']}: rank {trace['rank']}, {trace['device']}, {marked}"
    gaps = f"  {trace['gaps']:,.0f} gaps over 10 us per step, the longest {format_seconds(trace['longest_gap_s'])}"
    late = f"  It takes {trace['late']:.0%} longer than the median beside communication: others wait for it."
    return [bold(head), table, gaps, *([late] if trace["late"] else [])]


def _beside(rows: Mapping[str, Sequence[float]], shown: Callable[[float], str]) -> View:
    table = plain_table("", "measured", "predicted", "off", numbers=(1, 2, 3))
    for name, (measured, predicted) in rows.items():
        off = ("-" if predicted < measured else "+") + shown(abs(predicted - measured))
        table.add_row(WORDS.get(name, name), shown(measured), shown(predicted), off)
    return table
