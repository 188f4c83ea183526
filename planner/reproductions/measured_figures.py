"""Figures of measured runs as our cost models predict them: of one run, or of all of them together."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from planner.base.errors import UnknownNameError
from planner.validation.accuracy import shipped_files, unseen_files
from planner.validation.predict import Predictions, predict
from planner.validation.runs import cluster_name, read_runs

NEAR_EIGHTY = 0.8


@lru_cache(maxsize=16)
def _predicted(sources: tuple[str, ...]) -> Predictions:
    """The predictions of the runs of these sources, of all where none is named."""
    every = [run for path in (*shipped_files(), *unseen_files()) for run in read_runs(path)]
    runs = [run for run in every if not sources or run["source"] in sources]
    if not runs:
        raise UnknownNameError("source", sources[0], sorted({str(run["source"]) for run in every}))
    return predict(runs)


def run_figure(*, quantity: str, source: str, run: str) -> tuple[float, str]:
    """A figure of one measured run: seconds of a step, speed (steps per second), MFU by the measured one, GiB.

    Raises PlannerError for an unknown source or run.
    """
    p = _predicted((source,))
    names = [str(one["run"]) for one in p.runs]
    if run not in names:
        raise UnknownNameError("run", run, names)
    i = names.index(run)
    step = float(p.step_time_s[i])
    figures = {"seconds": step, "speed": 1.0 / step, "GiB": float(p.memory_bytes[i]) / 2.0**30}
    return figures[quantity], ""


def all_runs_figure(
    *, quantity: str, sources: Sequence[str] = (), having: Mapping[str, Sequence[Any]] | None = None
) -> tuple[float, str]:
    """A figure of all measured runs, or of some sources' runs. having: cells that a run may have, by column.

    quantity: error (mean of |predicted / measured - 1|), out of memory below 80 % (runs that ran out although
    predicted under four fifths of the memory).
    """
    p = _predicted(tuple(sources))
    if quantity == "error":
        usable = np.isfinite(p.step_time_s) & np.isfinite(p.measured_s) & p.ok
        off = np.abs(p.step_time_s[usable] / p.measured_s[usable] - 1.0)
        return float(off.mean()), f"{usable.sum()} runs"
    from planner.hardware import load_cluster

    names = [cluster_name(run) for run in p.runs]
    memory = {name: load_cluster(name).accelerator.memory_bytes for name in {*names}}
    room = np.array([memory[name] for name in names])
    asked = (having or {}).items()
    meant = np.array([all(run[column] in cells for column, cells in asked) for run in p.runs])
    known = np.isfinite(p.memory_bytes) & meant
    below = known & (p.memory_bytes < NEAR_EIGHTY * room)
    failed = below & ~p.ok
    note = f"{below.sum()} runs predicted below 80 %; {(known & ~p.ok).sum()} of {known.sum()} ran out of memory"
    return float(failed.sum()), note
