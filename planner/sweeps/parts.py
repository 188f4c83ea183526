"""The part files of a sweep under way: one a chunk, each whole or absent, in a folder beside the results.

A part is written elsewhere and renamed, so a process killed at any moment leaves only whole parts. The manifest says
which sweep they belong to; parts of another are never mixed in. A lock that ends with its process keeps two runs apart.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from planner.base.errors import FileFormatError, InputError, OutputError
from planner.base.state import read_state, write_state
from planner.sweeps.answer import ChunkAnswer
from planner.sweeps.columns import Column
from planner.sweeps.versions import difference

MANIFEST = "manifest.json"
LOCK = "lock"
PLAIN: dict[str, Callable[[Any], bool]] = {
    "int64": lambda x: type(x) is int and -(2**63) <= x < 2**63,
    "float64": lambda x: type(x) in (int, float) and abs(x) <= sys.float_info.max,
    "bool": lambda x: type(x) is bool,
    "string": lambda x: type(x) is str and x.encode(errors="replace").decode() == x,
}
"""Whether a column of a kind can hold a part's value."""


def parts_folder(output: Path) -> Path:
    """The folder in which the parts of a sweep's results are kept until it is done."""
    return output.with_name(f"{output.name}.parts")


class Parts:
    """The parts of one sweep. `layouts` by the number of each chunk that is done."""

    def __init__(self, folder: Path, rows: Mapping[int, int], columns: Sequence[Column]) -> None:
        self.folder = folder
        self._rows = rows
        self._columns = columns
        self.layouts: dict[int, int] = {}

    def _path(self, chunk: int) -> Path:
        return self.folder / f"part-{chunk:08d}.json"

    def find(self) -> None:
        """Look for whole parts; what is damaged or half-written is removed, to be done again."""
        for path in sorted(self.folder.iterdir()):
            if path.name.startswith("."):
                _remove(path)
        for chunk in self._rows:
            if not (path := self._path(chunk)).exists():
                continue
            try:
                self.layouts[chunk] = self.read(chunk).layouts
            except FileFormatError:
                _remove(path)

    def save(self, answer: ChunkAnswer) -> None:
        """Keep a chunk's rows; the same chunk twice is the same file."""
        part = {"chunk": answer.chunk, "layouts": answer.layouts, "rows": answer.rows}
        write_state(self._path(answer.chunk), part)
        self.layouts[answer.chunk] = answer.layouts

    def read(self, chunk: int) -> ChunkAnswer:
        """A chunk's rows. Raises FileFormatError if the file is damaged."""
        part = read_state(self._path(chunk))
        rows, layouts = part.get("rows"), part.get("layouts")
        whole = part.get("chunk") == chunk and isinstance(rows, list) and len(rows) == self._rows[chunk]
        if not whole or type(layouts) is not int or not all(self._is_row(row) for row in rows or ()):
            raise FileFormatError(f"{self._path(chunk)}: damaged: it is not part {chunk} of this sweep")
        return ChunkAnswer(chunk=chunk, rows=rows or [], layouts=layouts)

    def _is_row(self, row: Any) -> bool:
        """Whether a row has a value that each column can hold, or none where the column says nothing of its case."""
        whole = isinstance(row, list) and len(row) == len(self._columns)
        pairs = zip(row, self._columns, strict=True) if whole else ()
        return whole and all(not column.axis if x is None else PLAIN[column.kind](x) for x, column in pairs)

    def answers(self) -> Iterator[ChunkAnswer]:
        """Every chunk that is done, in order."""
        return (self.read(chunk) for chunk in sorted(self.layouts))

    def remove(self) -> None:
        """Forget all: the results are written."""
        # The manifest first: without it a folder is nobody's, whatever remains in it.
        (self.folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.folder)


@contextmanager
def opened(
    folder: Path, manifest: Mapping[str, Any], rows: Mapping[int, int], columns: Sequence[Column], restart: bool
) -> Iterator[Parts]:
    """The parts in a folder, made if there is none, locked for this process.

    manifest: which sweep this is, by "sweep" (a digest) and "versions"; rows: cases of each chunk by its number;
    columns: of every row.

    Raises InputError if the folder holds parts of another sweep or of other versions, or another process works in it;
    OutputError if the folder can't be made or written.
    """
    try:
        folder.mkdir(exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise OutputError(f"{folder}: can't be written: {error.strerror}") from None
    try:
        _lock(lock, folder)
        if restart:
            _empty(folder)
        _check(folder, manifest)
        parts = Parts(folder, rows, columns)
        parts.find()
        yield parts
    finally:
        os.close(lock)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows has none; two runs at once would do the same work twice, to the same result
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"{folder}: another planner sweep works in it; wait for it, or give another -o") from None
    except OSError:  # some network file systems have no locks: as on Windows
        return
    if not (folder / LOCK).exists() or os.fstat(descriptor).st_ino != (folder / LOCK).stat().st_ino:
        raise InputError(f"{folder}: another planner sweep has just finished in it; run the command again")


def _empty(folder: Path) -> None:
    (folder / MANIFEST).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.name != LOCK:
            _remove(path)


def _remove(path: Path) -> None:
    """Raises OutputError where it can't be removed: a folder is nothing that a sweep wrote."""
    try:
        path.unlink()
    except OSError as error:
        raise OutputError(f"{path}: can't be removed: {error.strerror}; give another -o") from None


def _check(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Puts the manifest in place. Raises InputError if the folder holds parts of another sweep or other versions."""
    path = folder / MANIFEST
    if not path.exists():
        # Killed before the manifest was written, or while the folder was removed: nothing in it counts.
        _empty(folder)
        write_state(path, manifest)
        return
    try:
        found = read_state(path)
    except FileFormatError as error:
        raise InputError(f"{error}; --restart begins anew") from None
    versions = found.get("versions")
    if apart := difference(manifest["versions"], versions if isinstance(versions, dict) else {}):
        raise InputError(f"{folder}: begun with other versions: {apart}; install these, or --restart to begin anew")
    if found.get("sweep") != manifest["sweep"]:
        raise InputError(
            f"{folder}: holds parts of another sweep (the definition, or a file that it names, has changed since); "
            "--restart begins anew, another -o keeps both"
        )
