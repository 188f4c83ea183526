"""planner: which parallel layout, how long, what limits it, and how accurate the answer is.

    from planner import Cluster, Model, recommend

    plan = recommend(Model("llama-13b"), Cluster("dgx-a100-80gb"), gpus=64, batch=2048)
    plan.best.step_time_s

The names in `__all__` stay; docs/python-api.md describes them. They are loaded when asked for, so that importing
the package, and `planner --help`, load nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.api import (
        Cluster,
        LayoutEstimate,
        Model,
        Plan,
        Simulation,
        compare,
        estimate,
        explain,
        export,
        fastest,
        largest,
        network,
        recommend,
        simulate,
        sweep,
        time,
        validate,
        why,
    )
    from planner.base.errors import (
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
    "Cluster",
    "ExecutionError",
    "FileFormatError",
    "InputError",
    "LayoutError",
    "LayoutEstimate",
    "MissingPackageError",
    "Model",
    "OutputError",
    "Plan",
    "PlannerError",
    "ScheduleError",
    "Simulation",
    "UnknownNameError",
    "__version__",
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

DEPRECATED = {"export_plan": "export", "run_sweep": "sweep"}
"""Names that warn, and go with the next minor version; docs/python-api.md has the rule."""


def __getattr__(name: str) -> Any:
    if name in DEPRECATED:
        from warnings import warn

        warn(f"planner.{name} is now planner.{DEPRECATED[name]}", DeprecationWarning, stacklevel=2)
        name = DEPRECATED[name]
    if name not in __all__:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    from planner.base import errors

    value = getattr(errors, name, None)
    if value is None:
        from planner import api

        value = getattr(api, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
