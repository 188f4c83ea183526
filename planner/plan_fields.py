"""What a plan's file says beside model and layout agrees with them: a file edited in one place only is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from planner.base.errors import FileFormatError, shown
from planner.models import Transformer, counts

PARTS = {"time_s": "step_time_s", "memory_parts_gib": "memory_gib"}
"""Objects of parts, and the figure that each adds up to."""
FIGURES = ("step_time_s", "mfu", "memory_gib", "tokens_per_s_per_gpu")
COUNTS = ("searched", "fitting", "ties_within_1_percent")


def check_fields(
    record: dict[str, Any], chosen: dict[str, Any], model: Transformer, row: dict[str, Any], path: Path
) -> None:
    """Raises FileFormatError for the first field that is not what model and layout (`row`) make it, with its value."""
    replicas, batch = row["dp"] * row["micro_batch"], row["global_batch"]
    agreed: dict[str, tuple[Any, str]] = {
        "model": (model.name, "the name in shape"),
        "seq_len": (int(model.seq_len), "that of shape"),
        "parameters": (int(counts.total_params(model)), "those of shape"),
        "gpus": (row["dp"] * row["tp"] * row["pp"] * row["cp"], "dp * tp * pp * cp of the layout"),
        "global_batch": (batch, "that of the layout"),
    }
    own = dict(agreed)
    if batch % replicas == 0:  # else the layout is not legal, which is for the caller to say
        own["micro_batches"] = (batch // replicas, "global_batch / (dp * micro_batch) of the layout")
    for holder, fields in ((record, agreed), (chosen, own)):
        for key, (value, reason) in fields.items():
            given = holder.get(key)
            if given is not None and (type(given) is not type(value) or given != value):
                raise FileFormatError(f"{path}: field {key} is {shown(given)}; allowed: {shown(value)}, {reason}")
    for key in COUNTS:
        if (given := record.get(key)) is not None and (type(given) is not int or given < 0):
            raise FileFormatError(f"{path}: field {key} is {shown(given)}; allowed: a whole number from 0")
    memory = record.get("memory_gib_per_gpu")
    if memory is not None and not (is_number(memory) and memory > 0):
        raise FileFormatError(f"{path}: field memory_gib_per_gpu is {shown(memory)}; allowed: a number above 0")


def check_figures(chosen: dict[str, Any], model: Transformer, row: dict[str, Any], path: Path) -> None:
    """Raises FileFormatError for the first figure of a layout that is no number above 0, or that others contradict."""
    for key in FIGURES:
        if key in chosen and not is_number(chosen[key]):
            raise FileFormatError(f"{path}: field {key} is {shown(chosen[key])}; allowed: a finite number")
        if key in chosen and chosen[key] <= 0:
            raise FileFormatError(f"{path}: field {key} is {shown(chosen[key])}; allowed: a number above 0")
    for key, total in PARTS.items():
        parts = chosen.get(key)
        if parts is None:
            continue
        if not isinstance(parts, dict) or not all(is_number(value) for value in parts.values()):
            raise FileFormatError(f"{path}: field {key} is {shown(parts)}; allowed: an object of finite numbers")
        if total in chosen and not math.isclose(sum(parts.values()), chosen[total], rel_tol=1e-6, abs_tol=1e-9):
            raise FileFormatError(f"{path}: field {key} adds up to {sum(parts.values()):.6g}, not to {total}")
    if "fits" in chosen and not isinstance(chosen["fits"], bool):
        raise FileFormatError(f"{path}: field fits is {shown(chosen['fits'])}; allowed: true or false")
    if "step_time_s" in chosen and "tokens_per_s_per_gpu" in chosen:
        tokens = row["global_batch"] * int(model.seq_len)
        rate = tokens / (row["dp"] * row["tp"] * row["pp"] * row["cp"] * chosen["step_time_s"])
        if not math.isclose(rate, chosen["tokens_per_s_per_gpu"], rel_tol=1e-6):
            raise FileFormatError(
                f"{path}: field tokens_per_s_per_gpu is {shown(chosen['tokens_per_s_per_gpu'])}; allowed: {rate:.6g}, "
                "the tokens of a step over step_time_s and gpus"
            )


def is_number(value: Any) -> bool:
    """Finite, and no truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
