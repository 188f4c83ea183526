"""Measured runs: one CSV format, read with faults that name file, line and column."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import FileFormatError

__all__ = ["COLUMNS", "Run", "read_runs"]

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
NEEDED = ("source", "run", "model", "cluster", "n_gpus", "precision", "global_batch", "tp", "pp", "outcome")
CHOICES = {"outcome": ("ok", "oom"), "step_time_kind": ("", "measured", "derived")}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One measured run: its cells by column (None where empty), and where it stands."""

    path: Path
    line: int
    cells: dict[str, Any]

    def __getitem__(self, column: str) -> Any:
        return self.cells[column]


def _number(text: str, column: str) -> int | float:
    value = float(text)
    if not math.isfinite(value) or value < 0 or (column != "zero" and value == 0):
        raise ValueError
    if column in WHOLE:
        if value != int(value) or value > 1e15:
            raise ValueError
        return int(value)
    return value


def _cell(path: Path, line: int, column: str, text: str) -> Any:
    """A cell's value by its column's type."""
    text = text.strip()
    if column in CHOICES and text not in CHOICES[column]:
        allowed = ", ".join(c or "empty" for c in CHOICES[column])
        raise FileFormatError(f"{path}: line {line}: column {column} is {text!r}; allowed: {allowed}")
    if not text:
        if column in NEEDED:
            raise FileFormatError(f"{path}: line {line}: column {column} is empty; a value is needed")
        return None
    if column in TEXT:
        return text
    if column in FLAG:
        if text.lower() not in ("true", "false"):
            raise FileFormatError(f"{path}: line {line}: column {column} is {text!r}; allowed: true or false")
        return text.lower() == "true"
    try:
        return _number(text, column)
    except ValueError:
        kind = "a whole number" if column in WHOLE else "a number"
        least = "from 0" if column == "zero" else "above 0"
        raise FileFormatError(f"{path}: line {line}: column {column} is {text!r}; allowed: {kind} {least}") from None


def read_runs(path: Path) -> list[Run]:
    """The runs of a CSV file in the format of `planner validate --help`.

    Raises:
        FileFormatError: the file can't be read, a column is missing or unknown, a cell is of the wrong type.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
            header = [name.strip() for name in next(reader, [])]
            missing = [c for c in COLUMNS if c not in header]
            if missing:
                raise FileFormatError(f"{path}: line 1: missing column {missing[0]}; needed: {', '.join(COLUMNS)}")
            wrong = [c for c in header if c not in COLUMNS or header.count(c) > 1]
            if wrong:
                raise FileFormatError(f"{path}: line 1: column {wrong[0]!r} is unknown or stands twice")
            runs = []
            for row in reader:
                if not any(cell.strip() for cell in row):
                    continue
                line = reader.line_num
                if len(row) != len(header):
                    raise FileFormatError(f"{path}: line {line}: {len(row)} cells; allowed: {len(header)}")
                pairs = zip(header, row, strict=True)
                runs.append(Run(path=path, line=line, cells={c: _cell(path, line, c, t) for c, t in pairs}))
            return runs
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileFormatError(f"{path}: can't be read as CSV: {getattr(error, 'strerror', None) or error}") from None
