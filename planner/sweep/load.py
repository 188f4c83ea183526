"""A sweep from its file, everything that it names checked before anything runs."""

from __future__ import annotations

from pathlib import Path

from planner.errors import FileFormatError, PlannerError
from planner.layouts import Recompute, Split, choice
from planner.schedules import get_schedule
from planner.search import Fixed
from planner.sweep.cases import cases
from planner.sweep.definition import SearchTable, SweepFile, read_definition
from planner.sweep.library import Library
from planner.sweep.questions import Sweep

__all__ = ["load_sweep"]

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
    return Sweep(
        path=path, file=file, cases=cases(file, str(path)), fixed=_fixed(file.search), library=Library()
    )


def _fixed(s: SearchTable) -> Fixed:
    return Fixed(
        tp=s.tp,
        pp=s.pp,
        dp=s.dp,
        cp=s.cp,
        ep=s.ep,
        micro_batch=s.micro_batch,
        virtual_stages=s.virtual_stages,
        zero=tuple(s.zero) if s.zero else None,
        recompute=tuple(choice(Recompute, r) for r in s.recompute) if s.recompute else None,
        schedule=tuple(get_schedule(name).name for name in s.schedule) if s.schedule else None,
        sequence_parallel=tuple(s.sequence_parallel) if s.sequence_parallel else None,
        layer_split=tuple(choice(Split, x) for x in s.layer_split) if s.layer_split else None,
        offload=s.allow_offload,
        allow_async=s.allow_async,
    )
