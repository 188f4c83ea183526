"""One parameter of a command that stands for several options: typer reads a command from its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from functools import wraps
from typing import Any

Command = Callable[..., None]


def unfolded(command: Command) -> Command:
    """Gives a command, for each parameter whose type is a record of options, the options of its fields."""
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            options = inspect.signature(kind, eval_str=True).parameters.values()
            command = in_place_of(command, parameter.name, options, kind)
    return command


def in_place_of(command: Command, name: str, options: Iterable[inspect.Parameter], make: Callable[..., Any]) -> Command:
    """The command with options in place of one parameter, which is then what `make` makes of their values."""
    options = list(options)

    @wraps(command)
    def run(**values: Any) -> None:
        command(**{name: make(**{option.name: values.pop(option.name) for option in options})}, **values)

    own = inspect.signature(command, eval_str=True)
    every: list[inspect.Parameter] = []
    for parameter in own.parameters.values():
        every += options if parameter.name == name else [parameter]
    return with_signature(run, own, every)


def with_signature(command: Command, own: inspect.Signature, every: Iterable[inspect.Parameter]) -> Command:
    """The command with other parameters than its own, all of them keywords but what stands for the rest."""
    named = [p if p.kind is p.VAR_KEYWORD else p.replace(kind=p.KEYWORD_ONLY) for p in every]
    command.__signature__ = own.replace(parameters=named)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in named}
    return command
