"""A call with an argument missing or unknown is a typed error that names what the function takes."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

from planner.base.errors import ArgumentError

F = TypeVar("F", bound=Callable[..., Any])


def checked(call: F) -> F:
    """The same function, whose callers get ArgumentError where Python has TypeError for the arguments' names."""
    takes = signature(call)

    @wraps(call)
    def checking(*given: Any, **named: Any) -> Any:
        try:
            takes.bind(*given, **named)
        except TypeError as error:
            names = ", ".join(name for name in takes.parameters if name != "self")
            raise ArgumentError(f"{call.__qualname__.removesuffix('.__init__')}: {error}; it takes {names}") from None
        return call(*given, **named)

    return checking  # type: ignore[return-value]
