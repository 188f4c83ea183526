"""The file edge: TOML and JSON read and validated, every fault one line with path, field, value and what is allowed."""

from __future__ import annotations

import io
import json
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from planner.errors import FileFormatError, OutputError

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = [
    "check_writable",
    "is_path",
    "read_csv",
    "read_json",
    "read_toml",
    "shipped_folder",
    "validate",
    "write_text",
]

M = TypeVar("M", bound="BaseModel")


def is_path(name: str, suffixes: tuple[str, ...] = (".toml",)) -> bool:
    """Whether a value names a file rather than a shipped profile: it has a separator or a file's suffix."""
    return "/" in name or "\\" in name or name.endswith(suffixes)


def shipped_folder(name: str) -> Path:
    """Where a folder of data that ships with the package lies: in the installed wheel, or atop the source tree."""
    package = Path(__file__).resolve().parent
    installed = package / name
    return installed if installed.is_dir() else package.parent / name


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise FileFormatError(f"{path}: can't be read: {reason}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file's tables.

    Raises:
        FileFormatError: the file can't be read or parsed.
    """
    try:
        return tomllib.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: not valid TOML: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file's object.

    Raises:
        FileFormatError: the file can't be read or parsed, or holds something else than an object.
    """
    try:
        data = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise FileFormatError(f"{path}: holds a {type(data).__name__}; allowed: an object with named fields")
    return data


def read_csv(path: Path) -> list[list[str]]:
    """A CSV file's rows of cells, an empty list for an empty line.

    Raises:
        FileFormatError: the file can't be read or parsed.
    """
    import csv

    try:
        # Spreadsheets begin UTF-8 files with a byte order mark.
        return list(csv.reader(io.StringIO(_read(path).removeprefix("\ufeff"), newline=""), strict=True))
    except csv.Error as error:
        raise FileFormatError(f"{path}: not valid CSV: {error}") from None


def validate(kind: type[M], data: Any, path: Path | str) -> M:
    """The data as a pydantic model.

    Raises:
        FileFormatError: the first fault, with the field's name, its value and what is allowed; a misspelt field
            comes with the nearest allowed one.
    """
    from pydantic import ValidationError

    try:
        return kind.model_validate(data)
    except ValidationError as error:
        faults = error.errors(include_url=False)
    # A misspelt field explains the missing one, so it comes first.
    fault = next((f for f in faults if f["type"] == "extra_forbidden"), faults[0])
    where = ".".join(str(part) for part in fault["loc"]) or "file"
    if fault["type"] == "extra_forbidden":
        missing = [str(f["loc"][-1]) for f in faults if f["type"] == "missing"]
        allowed = _siblings(kind, fault["loc"])
        near = get_close_matches(str(fault["loc"][-1]), missing + allowed, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(dict.fromkeys(near))}?" if near else f"allowed: {', '.join(allowed)}"
        raise FileFormatError(f"{path}: unknown field {where}; {hint}")
    if fault["type"] == "missing":
        raise FileFormatError(f"{path}: field {where} is missing")
    try:
        shown = repr(fault["input"])
    except ValueError:  # Python refuses to print integers of thousands of digits
        shown = "a huge number"
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    raise FileFormatError(f"{path}: field {where} is {shown}; allowed: {fault['msg']}")


def _siblings(kind: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    """The fields allowed at the place of a fault."""
    from pydantic import BaseModel

    current: Any = kind
    for part in loc[:-1]:
        field = getattr(current, "model_fields", {}).get(part)
        if field is None:
            break
        current = field.annotation
    if isinstance(current, type) and issubclass(current, BaseModel):
        return list(current.model_fields)
    return list(kind.model_fields)


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing: to a neighbour first, then renamed over.

    Raises:
        OutputError: the path can't be written.
    """
    import tempfile

    temporary: Path | None = None
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as stream:
            temporary = Path(stream.name)
            stream.write(text)
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise OutputError(f"{path}: can't be written: {error.strerror}") from None


def check_writable(path: Path) -> None:
    """Nothing, if a file can be written there; asked before long work whose result would be lost.

    Raises:
        OutputError: no such folder, a folder in the file's place, or no permission.
    """
    import os

    if path.is_dir():
        raise OutputError(f"{path}: can't be written: it is a folder")
    if not path.parent.is_dir():
        raise OutputError(f"{path}: can't be written: no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OutputError(f"{path}: can't be written: permission denied")
