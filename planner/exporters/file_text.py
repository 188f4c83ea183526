"""Names and sentences made safe for the program that reads a file: one line each, no control characters."""

import json
import re
import textwrap
from collections.abc import Iterable

from planner.base.errors import one_line

WIDTH = 110


def comments(sentences: Iterable[str]) -> list[str]:
    """Comment lines, a sentence wrapped where it is long; what doesn't print, or would end a line, becomes a space."""
    out: list[str] = []
    for sentence in sentences:
        # A word longer than a line stays in one piece: a comment that breaks inside a name is hard to search for.
        lines = textwrap.wrap(one_line(sentence), WIDTH, break_long_words=False, break_on_hyphens=False) or [""]
        out += [f"# {lines[0]}".rstrip(), *(f"#   {line}" for line in lines[1:])]
    return out


def identifier(name: str) -> str:
    """A name as a function of Python may have it: llama3-8b is llama3_8b."""
    plain = re.sub(r"[^0-9a-zA-Z]+", "_", name).strip("_").lower() or "model"
    return plain if plain[0].isalpha() else f"model_{plain}"


def quoted(text: str) -> str:
    """A string as JSON, YAML, TOML and Python all read it: in double quotes, ASCII only."""
    return json.dumps(one_line(text))
