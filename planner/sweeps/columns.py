"""The columns of a sweep's results: name, kind, unit and meaning, in one table for the file and its docs."""

from dataclasses import dataclass, fields
from typing import Literal

from planner.choices.table import CHOICES
from planner.costs.memory.rank import Memory
from planner.step.step_time import StepTime
from planner.sweeps.cases import Axis, Cases

__all__ = ["FAILED", "FITS", "NOT_LEGAL", "UNITS", "Column", "columns"]

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


AXES = {
    "model": Column("model", "string", "", "as the sweep names it", axis=True),
    "cluster": Column("cluster", "string", "", "as the sweep names it", axis=True),
    "network": Column("network", "string", "", "of the sweep, or the cluster's own", axis=True),
    "framework": Column("framework", "string", "", "of the sweep, or the cluster's own", axis=True),
    "design": Column("design", "string", "", "its name", axis=True),
    "seq_len": Column("seq_len", "int64", "tokens", "of a sequence", axis=True),
    "precision": Column("precision", "string", "", "of the matrix products", axis=True),
    "attention": Column("attention", "string", "", "kernel", axis=True),
    "gpus": Column("gpus", "int64", "", "accelerators", axis=True),
    "global_batch": Column("global_batch", "int64", "sequences", "per step", axis=True),
    "objective": Column("objective", "string", "", "by which the layout is best", axis=True),
}
ANSWER = (
    Column("status", "string", "", f"{FITS}, {FAILED} (no legal layout fits) or {NOT_LEGAL} (there is none)"),
    Column("reason", "string", "", "why there is no layout"),
    Column("parameters", "int64", "", "of the model"),
    Column("layouts", "int64", "", "legal layouts searched"),
    Column("layouts_fitting", "int64", "", "those within memory"),
    Column("step_time_s", "float64", "s", "of a step of the best layout"),
    Column("simulated", "bool", "", "its step time is of the exact timeline, not of the closed form"),
    Column("mfu", "float64", "", "model FLOP over peak, 0 to 1"),
    Column("tokens_per_s_per_gpu", "float64", "tokens/s", "throughput of an accelerator"),
    Column("tokens_per_s", "float64", "tokens/s", "throughput of all"),
    Column("memory_gib", "float64", "GiB", "peak of the fullest rank"),
    Column("memory_limit_gib", "float64", "GiB", "memory of an accelerator"),
    Column("binding", "string", "", "largest part of the step besides the matrix products"),
    Column("binding_share", "float64", "", "its share of the step, 0 to 1"),
    Column("memory_binds", "bool", "", "a layout at least 2 % faster lies over memory"),
    Column("time_s_per_billion_tokens", "float64", "s", "without failures"),
    Column("price_usd_per_gpu_hour", "float64", "USD", "of the profile or the sweep; null where there is none"),
    Column("cost_usd_per_billion_tokens", "float64", "USD", "without failures; null without a price"),
    Column("power_kw", "float64", "kW", "of all accelerators and their site, at the accelerators' greatest power"),
    Column("energy_kwh_per_billion_tokens", "float64", "kWh", "at that power, without failures"),
)
TRAINING = (
    Column("training_days", "float64", "days", "for the sweep's tokens, with checkpoints, failures and restarts"),
    Column("training_goodput", "float64", "", "time in steps over that time"),
    Column("training_cost_usd", "float64", "USD", "null without a price"),
    Column("training_energy_mwh", "float64", "MWh", "at the power above"),
)


def _layout_columns() -> list[Column]:
    kinds: dict[type, Kind] = {str: "string", bool: "bool", int: "int64", float: "float64"}
    out = [Column(c.name, kinds[c.plain_kind], "", "of the layout") for c in CHOICES.values() if c.name not in AXES]
    return [*out, Column("micro_batches", "int64", "", "a step and replica")]


def _part_columns() -> list[Column]:
    times = [Column(f"time.{f.name}", "float64", "s", "part of the step") for f in fields(StepTime)]
    return times + [Column(f"memory.{f.name.removesuffix('_bytes')}_gib", "float64", "GiB", "part of the peak")
                    for f in fields(Memory)]  # fmt: skip


UNITS = {
    "_gib": "GiB", "_gbyte_per_s": "GB/s", "_gbit_per_s": "Gb/s", "_us": "us", "_w": "W", "_usd_per_hour": "USD/h",
    "_bytes": "bytes",
}  # fmt: skip


def _unit(field: str) -> str:
    """The unit that a profile's field has in its name."""
    if ".peak_tflops." in f".{field}":
        return "TFLOP/s"
    return next((unit for ending, unit in UNITS.items() if field.endswith(ending)), "")


def _hardware(axis: Axis) -> Column:
    first = axis.values[0]
    kind: Kind = "string" if isinstance(first, str) else "bool" if isinstance(first, bool) else "float64"
    return Column(axis.name, kind, _unit(axis.name), "of the hardware", axis=True)


def columns(cases: Cases, tokens: float | None) -> tuple[Column, ...]:
    """The columns of a sweep, in the file's order: the case, the answer, the layout, the parts of time and memory."""
    axes = [_hardware(axis) if axis.hardware else AXES[axis.name] for axis in cases.axes]
    money = TRAINING if tokens else ()
    return (Column("case", "int64", "", "its number"), *axes, *ANSWER, *money, *_layout_columns(), *_part_columns())
