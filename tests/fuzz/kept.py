"""What is the same in every case is done once: commands are built, shipped profiles parsed, a sweep's worker started.

A process of the user's own does each once too. No case shares anything that a command may change: parsed tables are
copied for each reader.
"""

from __future__ import annotations

import marshal
import tomllib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any
from unittest import mock

import typer.main

from planner.sweeps.answer import Chunk, ChunkAnswer, answer
from planner.sweeps.local import Local

__all__ = ["kept"]

LONGEST_TEXT = 100_000
_built = cache(typer.main.get_command)
_parse = tomllib.loads


@lru_cache(maxsize=512)
def _tables(text: str) -> bytes:
    return marshal.dumps(_parse(text))


def _loads(text: str, **options: Any) -> dict[str, Any]:
    """As `tomllib.loads`; what marshal has no form for (dates, deep nesting) is parsed each time."""
    if options or len(text) > LONGEST_TEXT:
        return _parse(text, **options)
    try:
        kept_tables = _tables(text)
    except ValueError as error:
        if isinstance(error, tomllib.TOMLDecodeError):
            raise
        return _parse(text)
    tables: dict[str, Any] = marshal.loads(kept_tables)
    return tables


def _here(self: Local, chunks: Iterator[Chunk]) -> Generator[ChunkAnswer]:
    """A sweep's chunks answered in this process: tests/sweep tests the processes of its own."""
    for chunk in chunks:
        yield answer(chunk)


@contextmanager
def kept() -> Iterator[None]:
    """While this is entered."""
    with (
        mock.patch.object(typer.main, "get_command", _built),
        mock.patch.object(tomllib, "loads", _loads),
        mock.patch.object(Local, "answers", _here),
    ):
        yield
