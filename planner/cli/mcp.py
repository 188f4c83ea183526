"""`planner mcp`: the questions as tools of a Model Context Protocol server, for agents; and `planner --describe`: every
command with its arguments and options, as JSON for programs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from types import UnionType
from typing import Any, get_args, get_origin

import typer
from typer.models import ArgumentInfo

from planner.choices.table import CHOICES
from planner.cli.options import WRITTEN

QUESTIONS = (
    "recommend", "estimate", "simulate", "compare", "partition", "schedule", "time", "fastest", "fewest", "largest",
    "network", "sites", "mixed", "explain", "check", "laws", "models", "clusters",
)  # fmt: skip
"""Commands that an agent may ask: those that print an answer and change nothing."""
KINDS = {"text": "string", "whole number": "integer", "number": "number", "flag": "boolean"}
Fields = Mapping[str, Mapping[str, Any]]


def command() -> None:
    """Answer an agent over standard input and output, by the Model Context Protocol: a tool for each question.

    No tool writes a file. A tool reads the files that its arguments name, as you could.

    Example: planner mcp
    """
    from planner.base.errors import MissingPackageError

    try:
        import anyio
        from mcp.server.stdio import stdio_server
    except ImportError:
        raise MissingPackageError("planner mcp needs mcp: pip install 'planner[mcp]'") from None

    async def serve() -> None:
        made = server()
        async with stdio_server() as streams:
            await made.run(*streams, made.create_initialization_options())

    anyio.run(serve)


def fields_of(one: Mapping[str, Any]) -> Fields:
    """What a described command may be asked with: arguments and options, but for those that write or stand twice."""
    every = [*one["arguments"], *(o for o in one["options"] if o["group"] != WRITTEN)]
    named = {o["names"][0].split("/")[0].lstrip("-").replace("-", "_"): o for o in every}
    return {name: o for name, o in named.items() if not name.endswith("_word")}


def schema(fields: Fields) -> dict[str, Any]:
    """The fields as JSON Schema."""
    shapes = {}
    for name, o in fields.items():
        kind = {"type": KINDS[o["kind"]]}
        shapes[name] = {"description": o["says"]} | ({"type": "array", "items": kind} if o["several"] else kind)
    needed = [name for name, o in fields.items() if o["needed"]]
    return {"type": "object", "properties": shapes, "required": needed, "additionalProperties": False}


def words(fields: Fields, given: Mapping[str, Any]) -> list[str]:
    """The command line of given values: each in one word with its option, or after `--`, so that none is an option."""
    options, plain = ["--json"], []
    for name, field in fields.items():
        spelled, values = field["names"][0].split("/"), given.get(name)  # a flag's second spelling unsets it
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, bool):
                options += spelled[:1] if value else spelled[1:]
            elif value is not None:
                plain += [str(value)] * (not spelled[0].startswith("-"))
                options += [f"{spelled[0]}={value}"] * spelled[0].startswith("-")
    return [*options, "--", *plain]


def server() -> Any:
    """The server. A question is a process of its own, which ends when the agent no longer waits."""
    import anyio
    from mcp import types
    from mcp.server import Server

    from planner import __version__
    from planner.cli import application
    from planner.cli.mcp import described

    told = described(application(QUESTIONS))["commands"]
    asked = {name: fields_of(one) for name, one in told.items()}

    async def tools(_context: Any, _page: Any) -> types.ListToolsResult:
        made = [types.Tool(name=n, description=told[n]["help"], input_schema=schema(asked[n])) for n in asked]
        return types.ListToolsResult(tools=made)

    async def call(_context: Any, wanted: Any) -> types.CallToolResult:
        given, fields = wanted.arguments or {}, asked.get(wanted.name, {})
        if unknown := [name for name in given if name not in fields] or [wanted.name] * (not fields):
            texts, failed = [f"{unknown[0]} is unknown; allowed: {', '.join(fields or asked)}"], True
        else:
            line = [sys.executable, "-m", "planner", wanted.name, *words(fields, given)]
            done = await anyio.run_process(line, check=False)
            texts, failed = [done.stdout.decode(), done.stderr.decode().strip()], done.returncode not in (0, 1)
        content = [types.TextContent(type="text", text=text) for text in texts if text]
        return types.CallToolResult(content=[*content], is_error=failed)

    return Server("planner", version=__version__, on_list_tools=tools, on_call_tool=call)


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
        "exit_codes": {"0": "answered", "1": "nothing fits", "2": "wrong input", "130": "interrupted"},
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
        "kind": NAMES.get(one, "text"),
        "least": declared.min,
        "most": declared.max,
        "needed": default is inspect.Parameter.empty,
        "several": several,
        "default": default if isinstance(default, (bool, int, float, str)) else None,
        "says": declared.help or "",
        "group": declared.rich_help_panel or "",
    }
