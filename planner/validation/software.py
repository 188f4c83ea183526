"""What a source says of all its runs, in `measured_runs/software.toml`: software, cluster, kernel, memory, tables."""

from __future__ import annotations

from functools import cache
from typing import Any

from planner.files import read_toml, shipped_folder
from planner.validation.runs import Run

__all__ = ["cluster_name", "said", "software"]


@cache
def software() -> dict[str, dict[str, Any]]:
    """The file's tables: of each, what is said by the source's name or its beginning."""
    return dict(read_toml(shipped_folder("measured_runs") / "software.toml"))


def said(run: Run, table: str) -> Any:
    """What the source of a run says in a table; None where it says nothing."""
    values = [value for source, value in software()[table].items() if run["source"].startswith(source)]
    return values[0] if values else None


def cluster_name(run: Run) -> str:
    """The cluster that a run's source is known to have used, else the one of its row."""
    return str(said(run, "cluster") or run["cluster"])
