"""`planner mcp`: the questions as tools of a Model Context Protocol server, for agents."""

import sys
from collections.abc import Mapping
from typing import Any

from planner.cli.options import WRITTEN

QUESTIONS = (
    "recommend", "estimate", "simulate", "compare", "partition", "schedule", "time", "fastest", "fewest", "largest",
    "network", "sites", "mixed", "towers", "place", "explain", "check", "laws", "models", "clusters",
)  # fmt: skip
"""Commands that an agent may ask: those that print an answer and change nothing."""
KINDS = {"text": "string", "whole number": "integer", "number": "number", "flag": "boolean",
         "number or text": ["number", "string"]}  # fmt: skip
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
        raise MissingPackageError("planner mcp needs mcp; in planner's folder: pip install '.[mcp]'") from None

    async def serve() -> None:
        made = server()
        async with stdio_server() as streams:
            await made.run(*streams, made.create_initialization_options())

    anyio.run(serve)


def fields_of(one: Mapping[str, Any]) -> Fields:
    """Fields of a described command: arguments and options, but for those that write or stand twice."""
    every = [*one["arguments"], *(o for o in one["options"] if o["group"] != WRITTEN)]
    named = {o["names"][0].split("/")[0].lstrip("-").replace("-", "_"): o for o in every}
    return {name: o for name, o in named.items() if not name.endswith("_word")}


def schema(fields: Fields) -> dict[str, Any]:
    """The fields as JSON Schema."""
    from planner.search.ranking import OBJECTIVES

    shapes: dict[str, dict[str, Any]] = {}
    for name, o in fields.items():
        kind = {"type": KINDS[o["kind"]]}
        shapes[name] = {"description": o["says"]} | ({"type": "array", "items": kind} if o["several"] else kind)
    if "objective" in shapes:
        shapes["objective"]["enum"] = list(OBJECTIVES)
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
    from planner.cli.describe import described

    told = described(application(QUESTIONS))["commands"]
    asked = {name: fields_of(one) for name, one in told.items()}

    async def tools(_context: Any, _page: Any) -> types.ListToolsResult:
        made = [types.Tool(name=n, description=told[n]["help"], input_schema=schema(asked[n])) for n in asked]
        return types.ListToolsResult(tools=made)

    async def call(_context: Any, wanted: Any) -> types.CallToolResult:
        given, fields = wanted.arguments or {}, asked.get(wanted.name, {})
        if unknown := [name for name in given if name not in fields] or [wanted.name] * (not fields):
            texts, failed = [f"{unknown[0]} is unknown; allowed: {', '.join(fields or asked)}"], True
        elif several := [n for n, value in given.items() if isinstance(value, list) and not fields[n]["several"]]:
            texts, failed = [f"{several[0]} is {given[several[0]]}; allowed: one value"], True
        else:
            line = [sys.executable, "-m", "planner", wanted.name, *words(fields, given)]
            done = await anyio.run_process(line, check=False)
            texts, failed = [done.stdout.decode(), done.stderr.decode().strip()], done.returncode not in (0, 1)
        content = [types.TextContent(type="text", text=text) for text in texts if text]
        return types.CallToolResult(content=[*content], is_error=failed)

    return Server("planner", version=__version__, on_list_tools=tools, on_call_tool=call)
