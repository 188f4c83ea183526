"""What a source says of its runs, in `measured_runs/software.toml`: software, cluster, kernel, memory, tables."""

from __future__ import annotations

from functools import cache
from typing import Any

from planner.base.files import read_toml, shipped_folder
from planner.validation.runs import MeasuredRun


@cache
def software() -> dict[str, dict[str, Any]]:
    """The file's tables: of each, what is said by `source/run` or its beginning."""
    return dict(read_toml(shipped_folder("measured_runs") / "software.toml"))


def said(run: MeasuredRun, table: str) -> Any:
    """What the source of a run says in a table, the most special that holds for it; None where it says nothing."""
    name = f"{run['source']}/{run['run']}"
    values = {of: value for of, value in software()[table].items() if name.startswith(of)}
    return values[max(values, key=len)] if values else None


def cluster_name(run: MeasuredRun) -> str:
    """The cluster that a run's source is known to have used, else the one of its row."""
    return str(said(run, "cluster") or run.named("cluster"))
