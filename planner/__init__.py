"""planner: which parallel layout, how long, what limits it, and how accurate the answer is.

    from planner import Cluster, Model, recommend

    plan = recommend(Model("llama-13b"), Cluster("dgx-a100-80gb"), gpus=64, batch=2048)
    plan.best.step_time_s

The names in `__all__` stay; docs/python-api.md describes them. They are loaded when asked for, so that importing
the package, and `planner --help`, load nothing else.
"""

from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.api.inputs import Cluster, Model
    from planner.api.layout_estimate import LayoutEstimate, estimate
    from planner.api.limits import largest, network
    from planner.api.plan import Plan
    from planner.api.questions import compare, explain, export, fastest, sweep, time, why
    from planner.api.recommended import recommend
    from planner.api.schedules import schedule
    from planner.api.simulated import Simulation, simulate
    from planner.api.towers import towers
    from planner.api.validated import validate
    from planner.base.errors import (
        ArgumentError,
        ExecutionError,
        FileFormatError,
        InputError,
        LayoutError,
        MissingPackageError,
        OutputError,
        PlannerError,
        ScheduleError,
        UnknownNameError,
    )

__version__ = "0.1.0"

__all__ = [
    "ArgumentError", "Cluster", "ExecutionError", "FileFormatError", "InputError", "LayoutError", "LayoutEstimate",
    "MissingPackageError", "Model", "OutputError", "Plan", "PlannerError", "ScheduleError", "Simulation",
    "UnknownNameError", "__version__", "compare", "estimate", "explain", "export", "fastest", "largest", "network",
    "recommend", "schedule", "simulate", "sweep", "time", "towers", "validate", "why",
]  # fmt: skip

_MODULE = {
    "Cluster": "api.inputs", "Model": "api.inputs", "LayoutEstimate": "api.layout_estimate",
    "estimate": "api.layout_estimate", "largest": "api.limits", "network": "api.limits", "Plan": "api.plan",
    "recommend": "api.recommended", "schedule": "api.schedules", "Simulation": "api.simulated",
    "simulate": "api.simulated", "towers": "api.towers", "validate": "api.validated",
    **dict.fromkeys(("compare", "explain", "export", "fastest", "sweep", "time", "why"), "api.questions"),
}  # fmt: skip
"""The module that each name is loaded from; errors are `planner.base.errors`'."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    value = getattr(import_module(f"planner.{_MODULE.get(name, 'base.errors')}"), name)
    if isinstance(value, FunctionType):
        value = import_module("planner.base.arguments").checked(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
