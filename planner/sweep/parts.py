"""The part files of a sweep under way: one a chunk, each whole or absent, in a folder beside the results.

A part is written elsewhere and renamed, so a process killed at any moment leaves only whole parts. The manifest says
which sweep they belong to; parts of another are never mixed in. A lock that ends with its process keeps two runs apart.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from planner.base.errors import InputError, OutputError
from planner.base.files import write_text
from planner.sweep.answer import ChunkAnswer
from planner.sweep.versions import difference

MANIFEST = "manifest.json"
LOCK = "lock"


def parts_folder(output: Path) -> Path:
    """Where the parts of a sweep's results are kept until it is done."""
    return output.with_name(f"{output.name}.parts")


class Parts:
    """The parts of one sweep. `layouts` by the number of each chunk that is done."""

    def __init__(self, folder: Path, rows: Mapping[int, int]) -> None:
        self.folder = folder
        self._rows = rows
        self.layouts: dict[int, int] = {}

    def _path(self, chunk: int) -> Path:
        return self.folder / f"part-{chunk:08d}.json"

    def find(self) -> None:
        """Look for whole parts; what is damaged or half-written is removed, to be done again."""
        for path in sorted(self.folder.iterdir()):
            if path.name.startswith("."):
                path.unlink()
        for chunk in self._rows:
            if not (path := self._path(chunk)).exists():
                continue
            try:
                self.layouts[chunk] = self.read(chunk).layouts
            except (ValueError, KeyError, TypeError):
                path.unlink()

    def save(self, answer: ChunkAnswer) -> None:
        """Keep a chunk's rows; the same chunk twice is the same file."""
        part = {"chunk": answer.chunk, "layouts": answer.layouts, "rows": answer.rows}
        write_text(self._path(answer.chunk), json.dumps(part, allow_nan=False))
        self.layouts[answer.chunk] = answer.layouts

    def read(self, chunk: int) -> ChunkAnswer:
        """A chunk's rows.

        Raises:
            ValueError, KeyError, TypeError: the file is damaged.
        """
        part = json.loads(self._path(chunk).read_bytes())
        if part["chunk"] != chunk or len(part["rows"]) != self._rows[chunk]:
            raise ValueError(f"{self._path(chunk)} is not part {chunk}")
        return ChunkAnswer(chunk=chunk, rows=part["rows"], layouts=int(part["layouts"]))

    def answers(self) -> Iterator[ChunkAnswer]:
        """Every chunk that is done, in order."""
        return (self.read(chunk) for chunk in sorted(self.layouts))

    def remove(self) -> None:
        """Forget all: the results are written."""
        # The manifest first: without it a folder is nobody's, whatever remains in it.
        (self.folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.folder)


@contextmanager
def opened(folder: Path, manifest: Mapping[str, Any], rows: Mapping[int, int], restart: bool) -> Iterator[Parts]:
    """The parts in a folder, made if there is none, locked for this process.

    manifest: which sweep this is, by "sweep" (a digest) and "versions"; rows: cases of each chunk by its number.

    Raises:
        InputError: the folder holds parts of another sweep or of other versions, or another process works in it.
        OutputError: the folder can't be made or written.
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
        parts = Parts(folder, rows)
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
            path.unlink()


def _check(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Nothing, if the folder is new or holds parts of the same sweep; then the manifest is in place."""
    path = folder / MANIFEST
    text = json.dumps(manifest, indent=2) + "\n"
    if not path.exists():
        # Killed before the manifest was written, or while the folder was removed: nothing in it counts.
        _empty(folder)
        write_text(path, text)
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        apart = difference(manifest["versions"], found["versions"])
        same = found["sweep"] == manifest["sweep"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path}: damaged; --restart begins anew") from None
    if apart:
        raise InputError(f"{folder}: begun with other versions: {apart}; install these, or --restart to begin anew")
    if not same:
        raise InputError(
            f"{folder}: holds parts of another sweep (the definition, or a file that it names, has changed since); "
            "--restart begins anew, another -o keeps both"
        )
