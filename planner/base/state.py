"""State that planner saves to go on later: a JSON object with a digest, so that no change goes unseen."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.base.errors import FileFormatError
from planner.base.files import read_json, write_text

DIGEST = "sha256"


def digest(state: Mapping[str, Any], *data: bytes | memoryview) -> bytes:
    """SHA-256 of an object as JSON, and of bytes after it."""
    found = hashlib.sha256(json.dumps(state).encode())
    for each in data:
        found.update(each)
    return found.digest()


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write an object of finite plain values with its digest, whole or not at all; the same state is the same file.

    Raises OutputError if the path can't be written.
    """
    write_text(path, json.dumps({**state, DIGEST: digest(state).hex()}, allow_nan=False) + "\n")


def read_state(path: Path) -> dict[str, Any]:
    """The state that `write_state` wrote. Raises FileFormatError if the file can't be read, or was changed."""
    state = read_json(path)
    if state.pop(DIGEST, None) != digest(state).hex():
        raise FileFormatError(f"{path}: damaged: its {DIGEST} is not of what it holds")
    return state
