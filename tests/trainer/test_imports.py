"""The trainer imports on a machine with neither CuPy nor MPI, and says what is missing when asked for it."""

import subprocess
import sys

from tests.hang import HANG_S

PROGRAM = """
import pkgutil, sys
sys.modules |= {"mpi4py": None, "mpi4py.MPI": None, "cupy": None}
import planner.trainer
for module in pkgutil.iter_modules(planner.trainer.__path__, "planner.trainer."):
    __import__(module.name)
from planner.base.errors import InputError
from planner.trainer.arrays import xp_for
from planner.trainer.mpi import load_mpi
for ask in (load_mpi, lambda: xp_for("gpu"), lambda: xp_for("tpu")):
    try:
        ask()
    except InputError as error:
        print(error)
"""


def test_without_cupy_and_mpi():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=HANG_S)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("engine is 'mpi' but MPI can't be loaded")
    assert lines[0].endswith("pip install '.[mpi]'")
    assert lines[1] == "device is 'gpu' but CuPy is not installed; pip install '.[gpu]', or use cpu"
    assert lines[2] == "device is 'tpu'; allowed: cpu, gpu"
