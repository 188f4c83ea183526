"""Typed errors. Each message is one line: the rule, the value, the remedy.

PlannerError
├── InputError            what a user gave is wrong: field, value, what is allowed
│   ├── UnknownNameError  no such model, cluster, schedule...: with the nearest names
│   ├── FileFormatError   a file that does not parse or validate: path, field or line, what is allowed
│   ├── LayoutError       a layout that breaks a rule of parallelism
│   └── ScheduleError     an order of operations that is incomplete, doubled or can't run to its end
├── OutputError           a path that can't be written
└── ExecutionError        training that can't go on: a dead rank, ranks that wait for each other, a NaN loss
"""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "ExecutionError",
    "FileFormatError",
    "InputError",
    "LayoutError",
    "OutputError",
    "PlannerError",
    "ScheduleError",
    "UnknownNameError",
]


def _one_line(text: str) -> str:
    return " ".join(text.split())


class PlannerError(Exception):
    """Base of every error that planner raises on purpose; the message is one line for a person."""

    def __init__(self, message: str) -> None:
        super().__init__(_one_line(message))


class InputError(PlannerError):
    """What the user gave is wrong."""


class UnknownNameError(InputError):
    """A name that is not in a registry; the message carries the nearest names."""

    def __init__(self, kind: str, name: str, known: Iterable[str], remedy: str = "") -> None:
        names = sorted(known)
        inside = [n for n in names if name and name.lower() in n]
        near = (inside + get_close_matches(name.lower(), names, n=3, cutoff=0.4))[:4] or names[:8]
        shown = f"allowed: {', '.join(names)}" if len(names) <= 8 else f"nearest: {', '.join(dict.fromkeys(near))}"
        super().__init__(f"unknown {kind} {name!r}; {shown}. {remedy}")


class FileFormatError(InputError):
    """A file that does not parse or validate."""


class LayoutError(InputError):
    """A layout that breaks a rule of parallelism."""


class ScheduleError(InputError):
    """An order of operations that is incomplete, doubled or can't run to its end."""


class OutputError(PlannerError):
    """A path that can't be written."""


class ExecutionError(PlannerError):
    """Training that can't go on."""
