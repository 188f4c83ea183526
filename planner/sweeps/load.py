"""A sweep from its file, everything that it names checked before anything runs."""

from __future__ import annotations

from pathlib import Path

from planner.base.errors import FileFormatError, PlannerError
from planner.sweeps.cases import cases
from planner.sweeps.definition import SweepFile, read_definition
from planner.sweeps.library import Library
from planner.sweeps.sweep import Sweep

ASSUMPTIONS = ("mtbf_hours", "restart_minutes", "checkpoint_bytes_per_parameter", "site_factor")
"""Those that no profile has; price, power and storage are fields of the hardware."""


def load_sweep(path: Path) -> Sweep:
    """A sweep's file with all that it names.

    Raises:
        FileFormatError: the first fault, one line with the file, the field, its value and what is allowed.
    """
    file = read_definition(path)
    try:
        sweep = _sweep(path, file)
        sweep.check()
    except PlannerError as error:
        text = str(error)
        raise FileFormatError(text if text.startswith(f"{path}: ") else f"{path}: {text}") from None
    return sweep


def _sweep(path: Path, file: SweepFile) -> Sweep:
    for name in file.assumptions:
        if name not in ASSUMPTIONS:
            raise FileFormatError(f"{path}: unknown field assumptions.{name}; allowed: {', '.join(ASSUMPTIONS)}")
    return Sweep(path=path, file=file, cases=cases(file, str(path)), library=Library(path.parent))
