"""Notes for stderr, held until the answer is out, so that a refusal stays one line."""

import sys
from typing import Any

import typer

_held: list[str] = []


def note(text: str) -> None:
    """A line on stderr at the command's end, where it answers."""
    _held.append(text)


def note_of_config(name: str, model: Any, seq_len: int | None, towers: bool) -> None:
    """Say on stderr where a Hugging Face config's longest sequence stands for the training's, and what is left out."""
    from planner.base.files import read_json
    from planner.models import config_file

    config = config_file(name)
    if config is None:
        return
    if seq_len is None:
        told = f"{model.seq_len:,} tokens per sequence are its max_position_embeddings, no training length"
        note(f"{name}: {told}; --seq-len sets the training's")
    if read_json(config).get("vision_config") and not towers:
        note(f"{name}: its language model alone is counted, without the vision encoder; planner towers plans both")


def begin() -> None:
    """At the command's start: no note of what this process did before it."""
    _held.clear()


def tell() -> None:
    """At the command's end: its notes, each once, unless an error ends it."""
    told, _held[:] = dict.fromkeys(_held), []
    for text in told if isinstance(sys.exc_info()[1], typer.Exit | None) else ():
        typer.echo(f"planner: {text}", err=True)
