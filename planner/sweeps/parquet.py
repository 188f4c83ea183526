"""A sweep's results as one Parquet file: the same bytes whoever computed the rows, in whatever order."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.base.errors import FileFormatError, MissingPackageError, OutputError
from planner.base.files import move_over
from planner.sweeps.cases import MOST_CASES
from planner.sweeps.columns import ANSWER, AXES, Column

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_A_GROUP = 50_000
KEY = b"planner"
KINDS = {"int64": "int64", "float64": "double", "bool": "bool", "string": "string"}
"""Parquet's names of the kinds of columns."""


def need_pyarrow() -> str:
    """Its version, where it is there, by which it may lay the same rows out in other bytes; asked before long work.

    Raises MissingPackageError if it is not installed; says how.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingPackageError("a sweep needs pyarrow; pip install pyarrow") from None
    return str(pa.__version__)


def _schema(columns: Sequence[Column], about: Mapping[str, Any]) -> pa.Schema:
    import pyarrow as pa

    described = [
        pa.field(
            c.name,
            pa.type_for_alias(c.kind),
            metadata={"unit": c.unit, "meaning": c.meaning, "axis": str(c.axis).lower()},
        )
        for c in columns
    ]
    return pa.schema(described, metadata={KEY: json.dumps(about, sort_keys=True).encode()})


def write_results(
    path: Path, folder: Path, columns: Sequence[Column], rows: Iterable[Sequence[Any]], about: Mapping[str, Any]
) -> None:
    """Write rows, in the order given, and rename the whole file into place; memory is bounded by a row group.

    folder: on the same file system, where the file grows; about: what the file says of itself, as JSON.

    Raises OutputError if the path can't be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(columns, about)
    growing = folder.absolute() / "results.parquet"  # a relative "a:b" is taken for an address
    try:
        with pq.ParquetWriter(growing, schema, compression="zstd", write_page_checksum=True) as writer:
            for group in _groups(rows):
                arrays = [_array(c, f) for c, f in zip(zip(*group, strict=True), schema, strict=True)]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        move_over(growing, Path(os.path.realpath(path)))
    except OSError as error:
        raise OutputError(f"{path}: can't be written: {error.strerror or error}") from None


def _array(values: Sequence[Any], field: Any) -> Any:
    """A column of a group; whole numbers among floats become floats, however large."""
    import pyarrow as pa

    floats = field.type == pa.float64()
    return pa.array([x if x is None else float(x) for x in values] if floats else values, type=field.type)


def _groups(rows: Iterable[Sequence[Any]]) -> Iterable[list[Sequence[Any]]]:
    group = []
    for row in rows:
        group.append(row)
        if len(group) == ROWS_A_GROUP:
            yield group
            group = []
    if group:
        yield group


def read_about(path: Path) -> dict[str, Any] | None:
    """The metadata of a file of results, None for anything else: `sweep` (its digest), `versions`, `cases`,
    `layouts`, `definition`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return _about(pq.read_schema(path.absolute()).metadata)
    except (OSError, pa.ArrowException):
        return None


def _about(metadata: Mapping[bytes, bytes] | None) -> dict[str, Any] | None:
    kinds = {"sweep": str, "versions": dict, "cases": int, "layouts": int, "definition": dict}
    try:
        about = json.loads((metadata or {})[KEY])
    except (KeyError, ValueError, RecursionError):
        return None
    whole = isinstance(about, dict) and all(type(about.get(name)) is kind for name, kind in kinds.items())
    return about if whole else None


def read_results(path: Path) -> pa.Table:
    """A sweep's results.

    Raises FileFormatError for a file that is not there, that no sweep wrote, or that is not as it was written.
    """
    need_pyarrow()
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise FileFormatError(f"{path}: can't be read: not a file")
        with pq.ParquetFile(path.absolute(), page_checksum_verification=True) as file:
            if file.metadata.num_rows > MOST_CASES:
                raise FileFormatError(f"{path}: has {file.metadata.num_rows:,} rows; allowed: {MOST_CASES:,}")
            table = file.read()
    except FileNotFoundError:
        raise FileFormatError(f"{path}: can't be read: No such file or directory") from None
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or "not a Parquet file, or a damaged one"
        raise FileFormatError(f"{path}: can't be read: {reason}") from None
    if _about(table.schema.metadata) is None:
        raise FileFormatError(f"{path}: is not the results of planner sweep")
    _check_columns(path, table)
    return table


def _check_columns(path: Path, table: pa.Table) -> None:
    """Raises FileFormatError unless every sweep's columns are there, once and of their kind, and no axis has a gap."""
    names = table.column_names
    for column in (Column("case", "int64", "", ""), *AXES.values(), *ANSWER):
        if column.name in names or column.name != "design":
            found = [str(table.schema.field(i).type) for i, name in enumerate(names) if name == column.name]
            if found != [KINDS[column.kind]]:
                there = ", ".join(found) or "not there"
                raise FileFormatError(f"{path}: column {column.name} is {there}; allowed: {KINDS[column.kind]}, once")
    for i, field in enumerate(table.schema):
        if (field.metadata or {}).get(b"axis") == b"true" and table.column(i).null_count:
            raise FileFormatError(f"{path}: column {field.name} has no value in some row; allowed: one in each")
