"""The command line in this process, as a user meets it: no interpreter is started and nothing imported anew.

What only a process of its own shows (streams, signals, exit codes, what is imported) is in `process`.
"""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

from planner.cli import main
from tests.hang import HANG_S

__all__ = ["planner", "process"]


def planner(*args: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """What the command ends with and says. A traceback is the test's own."""
    out, err, before = io.StringIO(), io.StringIO(), gc.get_threshold()
    with (
        mock.patch.object(sys, "argv", ["planner", *args]),
        mock.patch.object(sys, "stdin", io.StringIO()),
        mock.patch.dict(os.environ, environment),
        redirect_stdout(out),
        redirect_stderr(err),
        chdir(cwd or Path.cwd()),
        pytest.raises(SystemExit) as left,
    ):
        main()
    gc.set_threshold(*before)
    assert isinstance(left.value.code, int)
    return subprocess.CompletedProcess(["planner", *args], left.value.code, out.getvalue(), err.getvalue())


def process(*args: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same by a process of its own."""
    command = [sys.executable, "-c", "from planner.cli import main; main()", *args]
    env = os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False, cwd=cwd, env=env)
