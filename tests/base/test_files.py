"""What a user relies on when planner writes a file: its mode, and the old file or the new one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.base.files import replace_file, write_text


@pytest.fixture
def umask() -> Iterator[None]:
    """A umask that is neither the usual one nor the mode that planner once gave to every file."""
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_a_new_file_has_the_mode_that_the_umask_allows(tmp_path: Path) -> None:
    write_text(tmp_path / "new", "text")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


@pytest.mark.parametrize("mode", [0o700, 0o600, 0o664])
def test_a_file_written_again_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "script.sh"
    path.write_text("old")
    path.chmod(mode)
    write_text(path, "new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", mode)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def half(stream: object) -> None:
        stream.write(b"ne")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        replace_file(path, half)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"plan.json": "old"}
