"""The columns of a sweep's results: name, kind, unit and meaning; those of the answer stand in `columns.toml`."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from planner.base.files import read_toml
from planner.choices.table import CHOICES
from planner.costs.memory.rank import Memory
from planner.step.step_time import StepTime
from planner.sweeps.cases import Axis, Cases

Kind = Literal["int64", "float64", "bool", "string"]

FITS, FAILED, NOT_LEGAL = "fits", "over memory", "not legal"


@dataclass(frozen=True)
class Column:
    """A column; axis: it says which case a row is. Most others are null where no layout fits."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    axis: bool = False


def _of(table: dict[str, Any], axis: bool = False) -> tuple[Column, ...]:
    return tuple(
        Column(name, said["kind"], said.get("unit", ""), said["meaning"], axis) for name, said in table.items()
    )


_TABLES = read_toml(Path(__file__).with_name("columns.toml"))
AXES = {column.name: column for column in _of(_TABLES["axes"], axis=True)}
ANSWER, TRAINING = _of(_TABLES["answer"]), _of(_TABLES["training"])


UNITS = {
    "_gib": "GiB", "_gbyte_per_s": "GB/s", "_gbit_per_s": "Gb/s", "_us": "us", "_w": "W", "_usd_per_hour": "USD/h",
    "_bytes": "bytes",
}  # fmt: skip


def _hardware(axis: Axis) -> Column:
    """The column of a profile's field, which has its unit in its name."""
    first = axis.values[0]
    kind: Kind = "string" if isinstance(first, str) else "bool" if isinstance(first, bool) else "float64"
    unit = next((unit for ending, unit in UNITS.items() if axis.name.endswith(ending)), "")
    unit = "TFLOP/s" if ".peak_tflops." in f".{axis.name}" else unit
    return Column(axis.name, kind, unit, "of the hardware", axis=True)


def columns(cases: Cases, tokens: float | None) -> tuple[Column, ...]:
    """The columns of a sweep, in the file's order: the case, the answer, the layout, the parts of time and memory."""
    kinds: dict[type, Kind] = {str: "string", bool: "bool", int: "int64", float: "float64"}
    return (
        Column("case", "int64", "", "its number"),
        *(_hardware(axis) if axis.hardware else AXES[axis.name] for axis in cases.axes),
        *ANSWER,
        *(TRAINING if tokens else ()),
        *(Column(c.name, kinds[c.plain_kind], "", "of the layout") for c in CHOICES.values() if c.name not in AXES),
        Column("micro_batches", "int64", "", "per step and replica"),
        *(Column(f"time.{f.name}", "float64", "s", "part of the step") for f in fields(StepTime)),
        *(Column(f"memory.{f.name.removesuffix('_bytes')}_gib", "float64", "GiB", "part of the peak")
          for f in fields(Memory)),
    )  # fmt: skip
