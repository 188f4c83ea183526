"""`planner --describe`: every command with its arguments and options, as JSON for programs and agents."""

import inspect
from types import UnionType
from typing import Any, get_args, get_origin

import typer
from typer.models import ArgumentInfo

from planner.choices.table import CHOICES

NAMES = {str: "text", int: "whole number", float: "number", bool: "flag"}


def described(app: typer.Typer) -> dict[str, Any]:
    """Commands and choices of a layout.

    A parameter has its names, kind, range, default and sentence; `needed` and `several`: whether it must be given, and
    may be given more than once. What a command prints with `--json` is documented in docs/json.md.
    """
    return {
        "commands": {str(one.name): _command(one.callback) for one in app.registered_commands},
        "choices": {
            c.name: {"short": c.short, "allowed": c.allowed, "default": c.plain(c.default), "says": c.says}
            for c in CHOICES.values()
        },
        "exit_codes": {
            "0": "answered",
            "1": "nothing is as was asked for: it doesn't fit, doesn't end or keeps no deadline",
            "2": "wrong input",
            "130": "interrupted",
        },
    }


def _command(command: Any) -> dict[str, Any]:
    """A command's help, its arguments in their order, and its options, from its signature as typer reads it."""
    out: dict[str, Any] = {"help": inspect.getdoc(command), "arguments": [], "options": []}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        kind, declared = get_args(parameter.annotation) or (None, None)  # typer.Context is no option
        if declared is not None and not declared.hidden:
            place = "arguments" if isinstance(declared, ArgumentInfo) else "options"
            out[place].append(_parameter(name, kind, declared, parameter.default))
    return out


def _parameter(name: str, kind: Any, declared: Any, default: Any) -> dict[str, Any]:
    plain = next(one for one in get_args(kind) if one is not type(None)) if get_origin(kind) is UnionType else kind
    several = get_origin(plain) is list
    one = get_args(plain)[0] if several else plain
    # Within Annotated typer keeps the first name where a default would be.
    names = [text for text in (declared.default, *(declared.param_decls or ())) if isinstance(text, str)]
    return {
        "names": [name] if isinstance(declared, ArgumentInfo) else names or [f"--{name.replace('_', '-')}"],
        "kind": "number or text" if declared.parser and not several and one in (int, float) else NAMES.get(one, "text"),
        "least": declared.min,
        "most": declared.max,
        "needed": default is inspect.Parameter.empty,
        "several": several,
        "default": default if isinstance(default, (bool, int, float, str)) else None,
        "says": declared.help or "",
        "group": declared.rich_help_panel or "",
    }
