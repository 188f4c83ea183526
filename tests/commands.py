"""The command line in this process, as a user meets it: no interpreter is started and nothing imported anew.

What only a process of its own shows (streams, signals, exit codes, what is imported) is in `process`.
"""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

from planner.cli import main
from tests.hang import HANG_S

__all__ = ["planner", "process", "said"]


@contextmanager
def said(cwd: Path, environment: dict[str, str]) -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """What this process says meanwhile, on stdout and stderr, in another folder with more of an environment."""
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.dict(os.environ, environment), redirect_stdout(out), redirect_stderr(err), chdir(cwd):
        yield out, err


def planner(*args: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """What the command ends with and says. A traceback is the test's own."""
    before = gc.get_threshold()
    with (
        said(cwd or Path.cwd(), environment) as (out, err),
        mock.patch.object(sys, "argv", ["planner", *args]),
        mock.patch.object(sys, "stdin", io.StringIO()),
        pytest.raises(SystemExit) as left,
    ):
        main()
    gc.set_threshold(*before)
    gc.unfreeze()  # `main` ends as a process does, which collects nothing more
    assert isinstance(left.value.code, int)
    return subprocess.CompletedProcess(["planner", *args], left.value.code, out.getvalue(), err.getvalue())


def process(*args: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same by a process of its own."""
    command = [sys.executable, "-c", "from planner.cli import main; main()", *args]
    env = os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False, cwd=cwd, env=env)
