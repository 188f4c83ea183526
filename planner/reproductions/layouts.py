"""One layout's estimate for a paper's row, the paper's choices as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.hardware import Cluster, load_cluster, load_framework
from planner.layouts import Layouts
from planner.models import Transformer
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.legality import check_legal


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Seconds a step, peak bytes, whether they fit, MFU."""

    step_time_s: float
    memory_bytes: float
    fits: bool
    mfu: float


def one(model: Transformer, cluster: Cluster | str, framework: str | None = None, **choices: Any) -> Outcome:
    """The estimate of one legal layout."""
    hardware = load_cluster(cluster) if isinstance(cluster, str) else cluster
    layouts = Layouts.of(**choices)
    check_legal(model, hardware, layouts)
    result = estimate(Setup(model, hardware, load_framework(framework or hardware.framework)), layouts)
    return Outcome(
        step_time_s=float(result.step_time_s[0]),
        memory_bytes=float(result.memory_bytes[0]),
        fits=bool(result.fits[0]),
        mfu=float(result.mfu[0]),
    )
