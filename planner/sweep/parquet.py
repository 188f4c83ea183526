"""A sweep's results as one Parquet file: the same bytes whoever computed the rows, in whatever order."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.base.errors import FileFormatError, MissingPackageError, OutputError
from planner.sweep.columns import Column

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_A_GROUP = 50_000
KEY = b"planner"


def need_pyarrow() -> None:
    """Nothing, if pyarrow is there; asked before long work.

    Raises:
        MissingPackageError: it is not installed; says how.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise MissingPackageError("a sweep needs pyarrow; pip install pyarrow") from None


def pyarrow_version() -> str:
    """It may lay the same rows out in other bytes than the next one."""
    import pyarrow as pa

    return str(pa.__version__)


def _schema(columns: Sequence[Column], about: Mapping[str, Any]) -> pa.Schema:
    import pyarrow as pa

    kinds = {"int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_(), "string": pa.string()}
    described = [
        pa.field(c.name, kinds[c.kind], metadata={"unit": c.unit, "meaning": c.meaning, "axis": str(c.axis).lower()})
        for c in columns
    ]
    return pa.schema(described, metadata={KEY: json.dumps(about, sort_keys=True).encode()})


def write_results(
    path: Path, folder: Path, columns: Sequence[Column], rows: Iterable[Sequence[Any]], about: Mapping[str, Any]
) -> None:
    """Write rows, in the order given, and rename the whole file into place; memory is bounded by a row group.

    folder: on the same file system, where the file grows; about: what the file says of itself, as JSON.

    Raises:
        OutputError: the path can't be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(columns, about)
    growing = folder / "results.parquet"
    try:
        with pq.ParquetWriter(growing, schema, compression="zstd") as writer:
            for group in _groups(rows):
                arrays = [pa.array(c, type=f.type) for c, f in zip(zip(*group, strict=True), schema, strict=True)]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        growing.replace(Path(os.path.realpath(path)))
    except OSError as error:
        raise OutputError(f"{path}: can't be written: {error.strerror or error}") from None


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
    """What a file of results says of itself, None for anything else: `sweep` (its digest), `versions`, `cases`,
    `layouts`, `definition`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        about: dict[str, Any] = json.loads((pq.read_schema(path).metadata or {})[KEY])
        return about if {"sweep", "versions", "cases", "layouts"} <= set(about) else None
    except (OSError, pa.ArrowException, KeyError, ValueError, TypeError):
        return None


def read_results(path: Path) -> pa.Table:
    """A sweep's results.

    Raises:
        FileFormatError: no such file, or one that no sweep wrote.
    """
    need_pyarrow()
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise FileFormatError(f"{path}: can't be read: No such file or directory") from None
    except OSError as error:
        raise FileFormatError(f"{path}: can't be read: {error.strerror or 'not a Parquet file'}") from None
    except pa.ArrowException:
        raise FileFormatError(f"{path}: can't be read: not a Parquet file") from None
    if KEY not in (table.schema.metadata or {}):
        raise FileFormatError(f"{path}: is not the results of planner sweep")
    return table
