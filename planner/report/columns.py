"""Tables of pandas, which is loaded where one is asked for: many layouts, or the operations of a timeline."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.base.units import GIB
from planner.choices.enumerations import names
from planner.choices.table import CHOICES
from planner.schedules.operations import KINDS

if TYPE_CHECKING:
    import pandas

    from planner.step.estimate import Estimate
    from planner.step.timeline.timeline import Timeline


def layout_frame(result: Estimate, rows: Any) -> pandas.DataFrame:
    """Some layouts of a table, a row each: choices, seconds, MFU and GiB, then the step and the memory by part.

    Names are those of `planner.report.records`, with the parts' unit at the end.
    """
    import pandas

    table = result.layouts.take(rows)
    out: dict[str, Any] = {}
    for name, choice in CHOICES.items():
        known = names(choice.enumeration) if choice.enumeration else getattr(table, f"{name}_names", None)
        codes = getattr(table, name)
        if choice.codec:
            known, codes = np.unique(codes, return_inverse=True)
            known = [choice.plain(code) for code in known]
        out[name] = codes if known is None else np.array(known, dtype=object)[codes]
    out |= {
        "gpus": table.gpus,
        "micro_batches": table.micro_batches,
        "step_time_s": result.step_time_s[rows],
        "tokens_per_s_per_gpu": result.tokens_per_s_per_gpu[rows],
        "mfu": result.mfu[rows],
        "memory_gib": result.memory_bytes[rows] / GIB,
        "fits": result.fits[rows],
    }
    for part in fields(result.time):
        out[f"time_{part.name}"] = getattr(result.time, part.name)[rows]
    for part in fields(result.memory):
        out[f"memory_{part.name.removesuffix('_bytes')}_gib"] = getattr(result.memory, part.name)[rows] / GIB
    return pandas.DataFrame(out)


def operation_frame(timeline: Timeline) -> pandas.DataFrame:
    """Every operation of a timeline, a row each: where, what, and when in seconds."""
    import pandas

    order = timeline.order
    columns = {
        "rank": order.rank,
        "stage": order.stage,
        "kind": np.array(list(KINDS), dtype=object)[order.kind],
        "micro_batch": order.micro_batch,
        "slice": order.slice,
        "start_s": timeline.start_s,
        "end_s": timeline.end_s,
    }
    return pandas.DataFrame(columns)
