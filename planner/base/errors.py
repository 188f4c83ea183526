"""Typed errors. Each message is one line: the rule, the value, the remedy.

PlannerError
├── InputError            what a user gave is wrong: field, value, what is allowed
│   ├── UnknownNameError  no such model, cluster, schedule...: with the nearest names
│   ├── ArgumentError     an argument that a function lacks: also a TypeError, as Python's own
│   ├── FileFormatError   a file that does not parse or validate: path, field or line, what is allowed
│   ├── LayoutError       a layout that breaks a rule of parallelism
│   └── ScheduleError     an order of operations that is incomplete, doubled or can't run to its end
├── OutputError           a path that can't be written
├── MissingPackageError   an extra that isn't installed, with the pip command for it
└── ExecutionError        training that can't go on: a dead rank, ranks that wait for each other, a NaN loss
"""

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 2_000
"""Characters of a message; what a user gave may be far longer."""
_FEW, _MOST_NAMES = 8, 60
"""Names among which the nearest needn't be said, and those that a message always lists."""


def one_line(text: str) -> str:
    """The text in one line that is safe on a terminal: what doesn't print, such as ESC, is shown by its code."""
    line = " ".join(text[: 2 * _LONGEST].split())
    line = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)


def shown(value: object, most: int = 60) -> str:
    """A value as a message shows it: its repr, cut to so many characters."""
    try:
        text = repr(value[: 2 * most] if isinstance(value, str) else value)
    except (ValueError, RecursionError):  # integers of thousands of digits, tables nested as deep
        return "a huge value"
    return text if len(text) <= most else f"{text[: most - 3]}..."


class PlannerError(Exception):
    """Base of every error that planner raises on purpose; the message is one line for a person."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class InputError(PlannerError):
    """The user gave a wrong input."""


class UnknownNameError(InputError):
    """A name that is not in a registry; the message carries the nearest names, and all if they are few."""

    def __init__(self, kind: str, name: str, known: Iterable[str], remedy: str = "") -> None:
        names, wanted = sorted(known), name.lower()[:100]
        inside = sorted((n for n in names if name and wanted in n), key=len)
        near = dict.fromkeys((inside + get_close_matches(wanted, names, n=3, cutoff=0.4))[:6])
        parts = [f"nearest: {', '.join(near)}"] if near and len(names) > _FEW else []
        if len(names) <= _MOST_NAMES:
            parts.append(f"allowed: {', '.join(names)}")
        elif not near:
            parts.append(f"known: {', '.join(names[:_FEW])} and {len(names) - _FEW} more")
        super().__init__(f"unknown {kind} {shown(name)}; {'; '.join(parts)}{remedy and f'. {remedy}'}")


class ArgumentError(InputError, TypeError):
    """An argument that a function lacks."""


class FileFormatError(InputError):
    """A file that does not parse or validate."""


class LayoutError(InputError):
    """A layout that breaks a rule of parallelism."""


class ScheduleError(InputError):
    """An order of operations that is incomplete, doubled or can't run to its end."""


class OutputError(PlannerError):
    """A path that can't be written."""


class MissingPackageError(PlannerError):
    """A package of an extra that isn't installed."""


class ExecutionError(PlannerError):
    """Training that can't go on."""
