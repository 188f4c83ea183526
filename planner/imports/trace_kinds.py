"""Kinds of traced operations and of allocations, from `trace_kinds.toml`; files of either, packed or not."""

import gzip
import re
import zlib
from functools import cache, lru_cache
from pathlib import Path
from typing import BinaryIO, cast

from planner.base.files import read_toml


@cache
def rules(table: str) -> dict[str, re.Pattern[str]]:
    """The expressions of a table by their kinds, in the order in which they are tried."""
    shipped = read_toml(Path(__file__).with_name("trace_kinds.toml"))
    return {kind: re.compile(text, re.MULTILINE) for kind, text in shipped[table].items()}


@lru_cache(maxsize=4096)
def kind_of(table: str, name: str) -> str:
    """The first kind whose expression is found in a name."""
    return next(kind for kind, rule in rules(table).items() if rule.search(name))


def opened(path: Path) -> BinaryIO:
    """A file's bytes, unpacked if gzip packed them. Raises OSError."""
    with path.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path)) if packed else path.open("rb")


def kind_of_file(path: Path) -> str:
    """`trace`, `snapshot` or, of all else, `log`, by a file's first bytes."""
    if not path.is_file():  # a pipe, of which no byte may be lost
        return "log"
    try:
        with opened(path) as stream:
            head = stream.read(512)
    except (OSError, EOFError, zlib.error):
        return "log"
    if head.startswith(b"\x80"):
        return "snapshot"
    return "trace" if re.match(rb'\s*(\{\s*"|\[\s*\{\s*")', head) else "log"
