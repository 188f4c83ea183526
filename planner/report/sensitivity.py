"""Sensitivities as records and views."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from planner.base.units import format_seconds
from planner.report.plain_table import plain_table, stacked
from planner.report.training import finite

if TYPE_CHECKING:
    from planner.training_time.sensitivity import Sensitivity


def sensitivity_record(found: Sensitivity) -> dict[str, Any]:
    """Effects and operations as plain values; null where a quantity has no such figure."""
    effects = []
    for e in found.effects:
        effects.append({k: finite(v) if isinstance(v, float) else v for k, v in asdict(e).items()})
    operations = [asdict(o) | {"hides": o.intensity >= o.threshold} for o in found.operations]
    return {"effects": effects, "network_operations": operations}


def _share(value: float | None) -> str:
    return "-" if value is None or np.isnan(value) else f"{value:+.1%}"


def sensitivity_view(found: Sensitivity) -> RenderableType:
    """What helps most first, then each network operation against its link."""
    effects = plain_table("quantity", "step", "training", "twofold saves", "replanned", numbers=(1, 2, 3, 4))
    for e in found.effects:
        slopes = ["-" if np.isnan(x) else f"{x:+.3f}" for x in (e.elasticity, e.training)]
        effects.add_row(e.name, *slopes, _share(e.twofold), _share(e.replanned))
    operations = plain_table("operation", "link", "intensity", "threshold", "ratio", "shows", numbers=(2, 3, 4, 5))
    for o in found.operations:
        operations.add_row(
            o.name, o.link, f"{o.intensity:,.0f}", f"{o.threshold:,.0f}", f"{o.intensity / o.threshold:.2f}",
            format_seconds(o.exposed_s),
        )  # fmt: skip
    return stacked(
        Text("What would help", style="bold"),
        effects,
        "  step, training: elasticity, per cent of that time for one per cent of the quantity (training: failures and "
        "checkpoints counted); twofold saves: share of the training time that twice as much (of a latency or restart: "
        "half) saves, the layout as it is; replanned: with the best layout then",
        "",
        Text("Network operations against their links", style="bold"),
        operations,
        "  intensity: FLOP of the work beside an operation for each byte sent; threshold: the GPU's peak over the "
        "link's bandwidth; a ratio above 1 can hide; shows: seconds per step in our models",
    )
