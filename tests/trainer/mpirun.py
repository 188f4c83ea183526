"""Starting processes under mpirun, where it is installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hang import HANG_S

MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
WITHOUT = MPIRUN is None or importlib.util.find_spec("mpi4py") is None


def needs_mpi(test: Any) -> Any:
    """Mark a test that starts ranks under mpirun."""
    return pytest.mark.extra(pytest.mark.skipif(WITHOUT, reason="needs mpi4py and mpirun: pip install '.[mpi]'")(test))


def mpirun(num_ranks: int, arguments: list[str], timeout_s: float = HANG_S) -> subprocess.CompletedProcess[str]:
    """Run this Python with those arguments on so many ranks."""
    command = [str(MPIRUN), "--allow-run-as-root", "--oversubscribe", "-n", str(num_ranks), sys.executable]
    root = Path(__file__).parents[2]
    return subprocess.run(command + arguments, capture_output=True, text=True, timeout=timeout_s, cwd=root, check=False)
