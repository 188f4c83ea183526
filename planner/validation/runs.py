"""Measured runs: one CSV format, read with faults that name file, line and column; and what a source says of its runs
in `measured_runs/software.toml`: software, cluster, kernel, memory, tables."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from planner.base.errors import FileFormatError, InputError, shown
from planner.base.files import is_path, read_text, read_toml, shipped_folder
from planner.base.units import parse_number

TEXT = (
    "source", "run", "model", "family", "cluster", "precision", "schedule", "recompute", "attention",
    "step_time_kind", "outcome", "note",
)  # fmt: skip
WHOLE = (
    "layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "seq_len", "experts", "top_k", "n_gpus",
    "global_batch", "micro_batch", "tp", "pp", "dp", "cp", "ep", "virtual_stages", "seq_splits", "zero",
)  # fmt: skip
REAL = ("step_time_s", "tflops_per_gpu", "mfu", "peak_memory_gib")
FLAG = ("sequence_parallel", "fused_norm")
COLUMNS = TEXT + WHOLE + REAL + FLAG
# Those of NEEDED must be there and filled; all others may be left out: docs/measured-runs.md.
OPTIONAL_WHOLE = ("etp", "dp_replicate", "recompute_layers")
FROM_ZERO = ("zero", "recompute_layers")
OPTIONAL_TEXT = ("framework", "layer_split", "train")
OPTIONAL_FLAG = ("cuda_graphs", "as_planned")
OPTIONAL = (*OPTIONAL_TEXT, *OPTIONAL_WHOLE, *OPTIONAL_FLAG)
NEEDED = ("source", "run", "model", "cluster", "n_gpus", "precision", "global_batch", "tp", "pp", "outcome")
NAMING = ("run", "note")
"""Columns that only name a measurement."""
LONGEST_TEXT = 1_000
CHOICES = {"outcome": ("ok", "oom"), "step_time_kind": ("", "measured", "derived")}


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """One measured run: its cells by column (None where empty), and where it stands."""

    path: Path
    line: int
    cells: dict[str, Any]

    def __getitem__(self, column: str) -> Any:
        return self.cells[column]

    def named(self, column: str) -> str:
        """A cell that names a model or a profile; a file is looked for beside the table."""
        name = str(self[column])
        return str(self.path.parent / name) if is_path(name, (".toml", ".json")) else name


def _cell(path: Path, line: int, column: str, text: str) -> Any:
    """A cell's value by its column's type."""
    text, where = text.strip(), f"{path}: line {line}: column {column} is"
    if not text and column not in CHOICES and column in NEEDED:
        raise FileFormatError(f"{where} empty; needed in every row: {', '.join(NEEDED)}")
    if not text and "" in CHOICES.get(column, ("",)):
        return None
    value, allowed = _value(column, text)
    if value is None:
        raise FileFormatError(f"{where} {shown(text)}; allowed: {allowed}")
    return value


def _value(column: str, text: str) -> tuple[Any, str]:
    """A text as a column's value, None where it can't be one; and what is allowed."""
    if column in CHOICES:
        return text if text in CHOICES[column] else None, ", ".join(c or "empty" for c in CHOICES[column])
    if column in (*TEXT, *OPTIONAL_TEXT):
        prints = text.isprintable() and len(text) <= LONGEST_TEXT
        return text if prints else None, f"up to {LONGEST_TEXT} characters that print"
    if column in FLAG + OPTIONAL_FLAG:
        return {"true": True, "false": False}.get(text.lower()), "true or false"
    whole, least = column in WHOLE + OPTIONAL_WHOLE, "from 0" if column in FROM_ZERO else "above 0"
    allowed = f"{'a whole number' if whole else 'a number'} {least}"
    try:
        value = parse_number(text, float)
    except ValueError:
        return None, allowed
    fits = 0 <= value < math.inf and (value > 0 or column in FROM_ZERO)
    if not whole:
        return value if fits else None, allowed
    return int(value) if fits and value <= 1e15 and value == int(value) else None, allowed


def runs_of(paths: Iterable[Path], wanted: str = "") -> list[MeasuredRun]:
    """The runs of tables, each as `read_runs`; wanted: for what. Raises InputError if there are none."""
    files = list(paths)
    runs = [run for path in files for run in read_runs(path)]
    if not runs:
        raise InputError(f"{', '.join(map(str, files))}: no runs in the file{wanted}")
    return runs


def measured_once(runs: Sequence[MeasuredRun]) -> list[bool]:
    """Whether each run is no repetition of one before it, the same in every column but `NAMING`."""
    first: dict[Any, int] = {}
    known = [frozenset(pair for pair in run.cells.items() if pair[0] not in NAMING) for run in runs]
    return [first.setdefault(cells, i) == i for i, cells in enumerate(known)]


def read_runs(path: Path, text: str | None = None) -> list[MeasuredRun]:
    """The runs of a CSV file in the format of `planner validate --help`; text: what it will have, not what it has.

    Raises FileFormatError if the file can't be read, a column is missing or unknown, or a cell is of the wrong type.
    """
    reader = csv.reader(io.StringIO(read_text(path) if text is None else text, newline=""))
    try:
        return _runs(path, reader)
    except csv.Error as error:
        raise FileFormatError(f"{path}: line {reader.line_num}: not valid CSV: {error}") from None


def _runs(path: Path, reader: Any) -> list[MeasuredRun]:
    header = [name.strip() for name in next(reader, [])]
    missing = [c for c in NEEDED if c not in header]
    if len(header) == 1 and ";" in header[0]:
        raise FileFormatError(f"{path}: line 1: columns are parted by ';'; allowed: commas")
    if missing:
        raise FileFormatError(f"{path}: line 1: missing column {missing[0]}; needed: {', '.join(NEEDED)}")
    wrong = [c for c in header if c not in COLUMNS + OPTIONAL or header.count(c) > 1]
    if wrong:
        raise FileFormatError(f"{path}: line 1: column {shown(wrong[0])} is unknown or stands twice")
    runs = []
    known: dict[tuple[str, str], Any] = {}  # most cells repeat another of their column
    for row in reader:
        if not any(cell.strip() for cell in row):
            continue
        line = reader.line_num
        if len(row) != len(header):
            raise FileFormatError(f"{path}: line {line}: {len(row)} cells; allowed: {len(header)}")
        cells: dict[str, Any] = dict.fromkeys(COLUMNS + OPTIONAL)
        for pair in zip(header, row, strict=True):
            if pair not in known:
                known[pair] = _cell(path, line, *pair)
            cells[pair[0]] = known[pair]
        runs.append(MeasuredRun(path=path, line=line, cells=cells))
    return runs


@cache
def software() -> dict[str, dict[str, Any]]:
    """The file's tables: of each, what is said by `source/run` or its beginning."""
    return dict(read_toml(shipped_folder("measured_runs") / "software.toml"))


def said(run: MeasuredRun, table: str) -> Any:
    """The value that a run's source gives in a table, the most specific that holds; None where it gives none."""
    return _said(f"{run['source']}/{run['run']}", table)


@cache
def _said(name: str, table: str) -> Any:
    values = {of: value for of, value in software()[table].items() if name.startswith(of)}
    return values[max(values, key=len)] if values else None


def cluster_name(run: MeasuredRun) -> str:
    """The cluster that a run's source is known to have used, else the one of its row."""
    return str(said(run, "cluster") or run.named("cluster"))
