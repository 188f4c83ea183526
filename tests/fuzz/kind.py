"""A kind of file that a command reads from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Kind"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of file: its name in the case's folder, sound examples, and the commands that read it.

    beside: further files that it refers to; slow: a sound one takes over half a second; signed: the file holds its own
    digest, which a mutation may leave right.
    """

    name: str
    examples: tuple[Any, ...]
    commands: tuple[str, ...]
    beside: dict[str, str | bytes] | None = None
    slow: bool = False
    signed: bool = False
