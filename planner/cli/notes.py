"""Notes for stderr, held until the answer is out, so that a refusal stays one line."""

import sys

import typer

_held: list[str] = []


def note(text: str) -> None:
    """A line on stderr at the command's end, where it answers."""
    _held.append(text)


def begin() -> None:
    """At the command's start: no note of what this process did before it."""
    _held.clear()


def tell() -> None:
    """At the command's end: its notes, each once, unless an error ends it."""
    told, _held[:] = dict.fromkeys(_held), []
    for text in told if isinstance(sys.exc_info()[1], typer.Exit | None) else ():
        typer.echo(f"planner: {text}", err=True)
