"""Results as plain dictionaries with stable keys (docs/json.md), as tables of pandas; figures with their source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.base.records import parts
from planner.base.units import GIB
from planner.choices.enumerations import names
from planner.choices.table import CHOICES
from planner.hardware import Cluster
from planner.models import Transformer, counts
from planner.schedules.operations import KINDS
from planner.search.found import largest_part

if TYPE_CHECKING:
    import pandas

    from planner.search import Recommendation
    from planner.setup import Setup
    from planner.step.estimate import Estimate
    from planner.step.timeline.timeline import Timeline


def model_record(model: Transformer) -> dict[str, Any]:
    """A model's shape and its parameter counts."""
    return asdict(model) | {
        "parameters": int(counts.total_params(model)),
        "active_parameters": int(counts.active_params(model)),
    }


def question_record(setup: Setup, gpus: int, global_batch: int | None = None) -> dict[str, Any]:
    """The question; with the batch where it was given."""
    model, cluster = setup.model, setup.cluster
    return {
        "model": model.name,
        "shape": asdict(model),
        "parameters": int(counts.total_params(model)),
        "seq_len": int(model.seq_len),
        "cluster": cluster.name,
        **({"cluster_file": cluster.own_file} if cluster.own_file else {}),
        "framework": setup.framework.name,
        **({"framework_file": setup.framework.own_file} if setup.framework.own_file else {}),
        "gpus": int(gpus),
        "memory_gib_per_gpu": cluster.accelerator.memory_bytes / GIB,
    } | ({} if global_batch is None else {"global_batch": global_batch})


def estimate_record(result: Estimate, i: int, cluster: Cluster) -> dict[str, Any]:
    """One layout: its choices, seconds and bytes with their parts, efficiency."""
    step = float(result.step_time_s[i])
    gpus = int(result.layouts.gpus[i])
    price = cluster.accelerator.price_per_hour
    overhead, share = largest_part(result, i)
    return {
        "layout": result.layouts.row(i),
        "gpus": gpus,
        "micro_batches": int(result.layouts.micro_batches[i]),
        "step_time_s": step,
        "simulated": bool(result.simulated[i]),
        "closed_form_s": float(result.closed_form_s[i]),
        "tokens_per_s_per_gpu": float(result.tokens_per_s_per_gpu[i]),
        "mfu": float(result.mfu[i]),
        "memory_gib": float(result.memory_bytes[i]) / GIB,
        "fits": bool(result.fits[i]),
        "fit_chance": float(result.fit_chance[i]),
        "time_s": parts(result.time, i, "_s"),
        "memory_parts_gib": parts(result.memory, i, "_bytes", GIB),
        "largest_overhead": overhead,
        "largest_overhead_share": share,
        "cost_usd_per_step": None if price is None else price * gpus * step / 3600.0,
    }


def recommendation_record(found: Recommendation, cluster: Cluster) -> dict[str, Any]:
    """A search: counts, the best layouts, the front of time against memory, why the rest lost."""

    def one(i: int | None) -> dict[str, Any] | None:
        return None if i is None else estimate_record(found.estimate, int(i), cluster)

    return {
        "searched": found.legal,
        "fitting": found.fitting,
        "ties_within_1_percent": found.ties,
        "best": [one(i) for i in found.best],
        "fastest": one(found.fastest),
        "roomiest": one(found.roomiest),
        "pareto_front": [one(i) for i in found.front],
        "nearest_miss": one(found.nearest_miss),
        "faster_over_memory": one(found.faster_over_memory),
    }


def figure_sources(record: Any, prefix: str = "") -> list[tuple[str, str, str]]:
    """Dotted name as `--figure` takes it, value in its unit as text, and source (or nothing) of a cluster's figures."""
    rows: list[tuple[str, str, str]] = []
    for f in fields(record):
        value, declared = getattr(record, f.name), f.metadata.get("declared")
        # Two figures that stand together, such as a protocol for small messages: asked for where both are known.
        together = f.name == "own_file" or (declared and declared.beside)
        if f.name in ("sources", "room_bytes") or (together and value is None):
            continue
        names = declared.names(f.name) if declared else {f.name: 1.0}
        key = next((name for name in names if name in record.sources), next(iter(names)))
        if is_dataclass(value):
            rows += figure_sources(value, f"{prefix}{f.name}.")
        else:
            table = value if isinstance(value, Mapping) else {"": value}
            for name, one in table.items():
                shown = one if one is None or names[key] == 1.0 else one / names[key]
                dotted = f"{key}.{name}" if name else key
                text = "not stated" if shown is None else f"{shown:.4g}" if isinstance(shown, float) else str(shown)
                rows.append((prefix + dotted, text, record.sources.get(dotted, record.sources.get(key, ""))))
    return rows


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
