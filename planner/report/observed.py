"""What logs of runs measured, beside what was predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from planner.base.units import format_seconds
from planner.report.plain_table import plain_table, stacked
from planner.report.tables import PARTS

WORDS = {
    "steps_per_s": "steps/s", "samples_per_s": "sequences/s", "tokens_per_s_per_gpu": "tokens/s/GPU"
}  # fmt: skip


def observed_view(records: Sequence[Mapping[str, Any]]) -> RenderableType:
    """A paragraph for each log, with a table where the run is known."""
    parts: list[RenderableType] = []
    for record in records:
        parts += ["", *_log(record), *(_beside(record) if "slower" in record else [])]
    return stacked(*parts[1:])


def _log(record: Mapping[str, Any]) -> list[RenderableType]:
    kind, median = record["kind"], record["median"]
    speed = f"{format_seconds(median)} a step" if kind == "time_s" else f"{median:,.5g} {WORDS[kind]}"
    more = [f"{record['tflops_per_gpu']:.4g} TFLOP/s/GPU"] if record["tflops_per_gpu"] else []
    more += [f"peak {record['memory_gib']:.2f} GiB"] if record["memory_gib"] else []
    return [
        Text(f"{record['log']}: {record['framework']}", style="bold"),
        f"  {', '.join([speed, *more])}",
        f"  the median of {record['steps']:,} steady iterations (spread {record['spread']:.1%}); "
        f"{record['warm_up']:,} before them are left out",
    ]


def _beside(record: Mapping[str, Any]) -> list[RenderableType]:
    table = plain_table("", "measured", "predicted", "off", numbers=(1, 2, 3))
    measured, predicted, off = record["measured_step_time_s"], record["predicted_step_time_s"], record["slower"]
    table.add_row("step", format_seconds(measured), format_seconds(predicted), f"{off:+.1%}")
    tokens = record["tokens_per_s_per_gpu"]
    table.add_row("tokens/s/GPU", f"{tokens:,.0f}", f"{tokens * (1 + off):,.0f}", f"{1 / (1 + off) - 1:+.1%}")
    if record["memory_gib"]:
        cells = (f"{record[k]:.2f}" for k in ("memory_gib", "predicted_memory_gib"))
        table.add_row("peak GiB", *cells, f"{record['memory_more']:+.1%}")
    low, high = (format_seconds(x) for x in record["interval_s"])
    said = f"  in 80 % of cases like this the step takes {low} to {high}; predicted beside products most goes to "
    head = Text("Look at first", style="bold")
    return [
        "", table, f"{said}{PARTS[record['largest_overhead']]}, {record['overhead_share']:.0%}", "", head,
        *(f"  {line}" for line in record["first"]),
    ]  # fmt: skip
