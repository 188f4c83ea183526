"""The Python API: `Model`, `Cluster`, `recommend`, `estimate` and the other questions, and what they return.

Import these names from `planner`; docs/python-api.md lists those that stay. Each is loaded when asked for, so that a
command loads its own alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.api.inputs import Cluster, Model
    from planner.api.layout_estimate import LayoutEstimate, estimate
    from planner.api.limits import largest
    from planner.api.networks import network
    from planner.api.plan import Plan
    from planner.api.questions import compare, explain, export, fastest, sweep, time, validate, why
    from planner.api.recommended import recommend
    from planner.api.simulated import Simulation, simulate

__all__ = [
    "Cluster",
    "LayoutEstimate",
    "Model",
    "Plan",
    "Simulation",
    "compare",
    "estimate",
    "explain",
    "export",
    "fastest",
    "largest",
    "network",
    "recommend",
    "simulate",
    "sweep",
    "time",
    "validate",
    "why",
]

_MODULE = {
    "Cluster": "inputs", "Model": "inputs", "LayoutEstimate": "layout_estimate", "estimate": "layout_estimate",
    "largest": "limits", "network": "networks", "Plan": "plan", "recommend": "recommended", "Simulation": "simulated",
    "simulate": "simulated", **dict.fromkeys(
        ("compare", "explain", "export", "fastest", "sweep", "time", "validate", "why"), "questions"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'planner.api' has no attribute {name!r}")
    return getattr(import_module(f"planner.api.{_MODULE[name]}"), name)
