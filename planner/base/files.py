"""The file edge: TOML and JSON read and validated, every fault one line with path, field, value and what is allowed."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import tomllib
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from planner.base.errors import FileFormatError, InputError, OutputError, shown

if TYPE_CHECKING:
    from pydantic import BaseModel

M = TypeVar("M", bound="BaseModel")


def is_path(name: str, suffixes: tuple[str, ...] = (".toml",)) -> bool:
    """Whether a value names a file rather than a shipped profile: it has a separator or a file's suffix."""
    return "/" in name or "\\" in name or name.endswith(suffixes)


def given_path(name: str, value: Any) -> Path:
    """A path that a caller gave. Raises InputError if the value is none; the message names the argument."""
    if isinstance(value, str | os.PathLike):
        return Path(value)
    raise InputError(f"{name} is {shown(value)}; allowed: the path of a file")


def shipped_folder(name: str) -> Path:
    """The path of a data folder that ships with the package: in the installed wheel, or atop the source tree."""
    package = Path(__file__).resolve().parents[1]
    installed = package / name
    return installed if installed.is_dir() else package.parent / name


MOST_BYTES = 64 * 2**20
"""Most bytes of a file that is read: far over any real one, well under a machine's memory."""


def _opened(path: Path, flags: int) -> int:
    """A descriptor of the file; opening a pipe that has no other end doesn't wait for one."""
    no_wait = getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags | no_wait | getattr(os, "O_BINARY", 0))
    if no_wait:
        os.set_blocking(descriptor, True)
    return descriptor


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """A file's bytes. A pipe (`/dev/stdin`, `<(command)`) is read to its end; one that nobody writes is empty.

    Raises FileFormatError if the file can't be read, or is larger than `most` bytes.
    """
    try:
        with open(_opened(path, os.O_RDONLY), "rb") as stream:
            data = stream.read(most + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a usable path"
        raise FileFormatError(f"{path}: can't be read: {reason}") from None
    if len(data) > most:
        raise FileFormatError(f"{path}: can't be read: it has over {most:,} bytes; allowed: fewer")
    return data


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """A UTF-8 file's text, without the byte order mark that spreadsheets and Windows begin it with.

    Raises FileFormatError if the file can't be read, is larger than `most` bytes, or is no UTF-8 text.
    """
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: can't be read: not UTF-8 text at byte {error.start}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file's tables; all text in them can be printed on a terminal.

    Raises FileFormatError if the file can't be read or parsed, or a text holds a character that doesn't print.
    """
    try:
        tables = tomllib.loads(read_text(path))
        _check_printable(path, tables)
    except RecursionError:
        raise FileFormatError(f"{path}: not valid TOML: its arrays or tables are nested too deeply") from None
    except ValueError as error:
        raise FileFormatError(f"{path}: not valid TOML: {error}") from None
    return tables


def _check_printable(path: Path, value: Any, *fields: str) -> None:
    """Keys and values reach the terminal, where ESC and its like would be commands."""
    if isinstance(value, str) and not "".join(value.split()).isprintable():
        allowed = "text without control characters"
        raise FileFormatError(f"{path}: field {'.'.join(fields)} is {shown(value)}; allowed: {allowed}")
    if isinstance(value, dict):
        for key, inner in value.items():
            if not key.isprintable():
                raise FileFormatError(
                    f"{path}: field {'.'.join((*fields, shown(key)))}: its name has characters that don't print"
                )
            _check_printable(path, inner, *fields, key)
    if isinstance(value, list):
        for number, inner in enumerate(value):
            _check_printable(path, inner, *fields, str(number))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file's object.

    Raises FileFormatError if the file can't be read or parsed, or holds something else than an object.
    """
    try:
        data = json.loads(read_text(path), object_pairs_hook=_no_doubles)
    except RecursionError:
        raise FileFormatError(f"{path}: not valid JSON: its lists or objects are nested too deeply") from None
    except ValueError as error:
        raise FileFormatError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        kinds = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
        raise FileFormatError(
            f"{path}: holds {kinds.get(type(data), 'a number')}; allowed: an object with named fields"
        )
    return data


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys stand once: JSON leaves open which of two counts."""
    if len(table := dict(pairs)) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"field {next(k for k in keys if keys.count(k) > 1)} stands twice in one object")
    return table


def read_csv(path: Path) -> list[list[str]]:
    """A CSV file's rows of cells, an empty list for an empty line.

    Raises FileFormatError if the file can't be read or parsed.
    """
    import csv

    try:
        return list(csv.reader(io.StringIO(read_text(path), newline=""), strict=True))
    except csv.Error as error:
        raise FileFormatError(f"{path}: not valid CSV: {error}") from None


def validate(kind: type[M], data: Any, path: Path | str) -> M:
    """The data as a pydantic model, or as a table of `planner.base.checks`.

    Raises:
        FileFormatError: the first fault, with the field's name, its value and what is allowed; a misspelt field
            comes with the nearest allowed one.
    """
    from pydantic_core import ValidationError

    try:
        return kind.model_validate(data)
    except ValidationError as error:
        faults = error.errors(include_url=False)
    # A misspelt field explains the missing one, so it comes first.
    fault = next((f for f in faults if f["type"] == "extra_forbidden"), faults[0])
    where = ".".join(str(part) for part in fault["loc"]) or "file"
    if fault["type"] == "extra_forbidden":
        missing = [str(f["loc"][-1]) for f in faults if f["type"] == "missing"]
        allowed = _siblings(kind.__pydantic_core_schema__, fault["loc"])
        near = get_close_matches(str(fault["loc"][-1]), missing + allowed, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(dict.fromkeys(near))}?" if near else f"allowed: {', '.join(allowed)}"
        raise FileFormatError(f"{path}: unknown field {where}; {hint}")
    if fault["type"] == "missing":
        raise FileFormatError(f"{path}: field {where} is missing")
    if not fault["loc"] and isinstance(fault["input"], dict):  # a rule between fields, which names them
        raise FileFormatError(f"{path}: allowed: {fault['msg']}")
    raise FileFormatError(f"{path}: field {where} is {shown(fault['input'])}; allowed: {_allowed(fault)}")


_ALLOWED = {
    "string_type": "text", "int_type": "a whole number", "float_type": "a number", "float_parsing": "a number",
    "bool_type": "true or false", "dict_type": "a table", "model_type": "a table", "list_type": "a list",
    "tuple_type": "a list", "finite_number": "a finite number", "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of fewer digits", "literal_error": "{expected}", "greater_than": "above {gt}",
    "greater_than_equal": "{ge} or more", "less_than": "below {lt}", "less_than_equal": "{le} at most",
    "string_too_short": "text of {min_length} characters or more",
    "string_too_long": "text of {max_length} characters at most", "too_short": "a list of {min_length} or more",
    "too_long": "a list of {max_length} at most", "invalid_key": "text for a name",
}  # fmt: skip
"""Allowed values in words, by pydantic's name of the fault; its context fills braces."""


def _allowed(fault: Any) -> str:
    if fault["type"] == "string_pattern_mismatch":
        return str(fault["ctx"]["pattern"].strip("^()$").replace("|", ", "))
    known = _ALLOWED.get(fault["type"])
    return known.format(**fault.get("ctx", {})) if known else str(fault["msg"].removeprefix("Value error, "))


def _siblings(schema: Any, loc: tuple[Any, ...]) -> list[str]:
    """The fields that the schema allows at the place of a fault."""
    found = {"values_schema": schema}
    for part in (None, *loc[:-1]):
        found = found.get("values_schema") or found.get("items_schema") or found["fields"][part]
        while "schema" in found:  # what checks, defaults and models stand around
            found = found["schema"]
    return list(found["fields"])


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode("utf-8", errors="backslashreplace"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a whole file or nothing: to a neighbour first, then renamed over. A link's target is written, not the link;
    a device or pipe such as `/dev/stdout` is written as it is.

    Raises OutputError if the path can't be written.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            with open(_opened(path, os.O_WRONLY), "wb") as stream:  # renaming over a device would replace it
                stream.write(data)
        else:
            if _leads_to_itself(path):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            replace_file(Path(os.path.realpath(path)), lambda stream: stream.write(data))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a usable path"
        raise OutputError(f"{path}: can't be written: {reason}") from None


def _leads_to_itself(path: Path) -> bool:
    """Whether the path is a link in a ring of links: it has no target, and renaming over it would replace the link."""
    return path.is_symlink() and Path(os.path.realpath(path)).is_symlink()


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a neighbour of the file, wait until it is on the disk, then rename it over the file.

    A file that exists keeps its mode; a new one gets what the umask allows.

    Raises OSError if the file can't be written; what was there before is still there.
    """
    temporary = path.parent / f".{os.urandom(8).hex()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        # What was secret is so in the neighbour, too.
        with os.fdopen(os.open(temporary, flags, 0o600 if path.exists() else 0o666), "wb") as stream:
            write(stream)
        move_over(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def move_over(written: Path, path: Path) -> None:
    """Rename a written file of the same file system over another, which it replaces in one step, keeping its mode.

    Raises OSError if it can't be moved; both are as before.
    """
    with written.open("rb+") as stream:
        os.fsync(stream.fileno())
    if path.exists():
        written.chmod(stat.S_IMODE(path.stat().st_mode))
    written.replace(path)


def make_folder(path: Path) -> None:
    """The folder, made with those above it where there is none. Raises OutputError if it can't be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a usable path"
        raise OutputError(f"{path}: can't be made: {reason}") from None


def check_writable(path: Path) -> None:
    """Raises OutputError if a file can't be written there: asked before long work whose result would be lost."""
    if path.is_dir():
        raise OutputError(f"{path}: can't be written: it is a folder")
    if _leads_to_itself(path):
        raise OutputError(f"{path}: can't be written: {os.strerror(errno.ELOOP)}")
    if not path.parent.is_dir():
        raise OutputError(f"{path}: can't be written: no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OutputError(f"{path}: can't be written: permission denied")
