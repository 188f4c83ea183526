"""A sweep's results read back: rows chosen, figures as arrays, what varied."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.base.arrays import Array
from planner.base.errors import InputError, UnknownNameError
from planner.sweeps.columns import FITS
from planner.sweeps.parquet import read_results

if TYPE_CHECKING:
    import pyarrow as pa


QUANTITIES = {
    "time": ("training_days", "time_s_per_billion_tokens"),
    "cost": ("training_cost_usd", "cost_usd_per_billion_tokens"),
    "energy": ("training_energy_mwh", "energy_kwh_per_billion_tokens"),
    "power": ("power_kw",),
    "memory": ("memory_gib",),
}
"""Short names of what is compared: of the training where the sweep has tokens, else a billion of them."""
LARGER_IS_BETTER = {"mfu", "causal_mfu", "tokens_per_s", "tokens_per_s_per_gpu", "training_goodput", "layouts_fitting"}


@dataclass(frozen=True)
class Results:
    """Rows of a sweep, all or some."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> str:
        """The column that a name means: itself, or a short name. Raises UnknownNameError if there is none."""
        for candidate in QUANTITIES.get(name, (name,)):
            if candidate in self.table.column_names:
                return candidate
        raise UnknownNameError("column", name, [*QUANTITIES, *self.table.column_names])

    def unit(self, name: str) -> str:
        """The unit of a column, empty for numbers without one."""
        return str((self.table.field(name).metadata or {}).get(b"unit", b"").decode())

    def values(self, name: str) -> list[Any]:
        """A column as plain values, None for null."""
        values: list[Any] = self.table[name].to_pylist()
        return values

    def numbers(self, name: str) -> Array:
        """A column as floats of shape (n,), NaN for null. Raises InputError if it holds no numbers."""
        if str(self.table.field(name).type) in ("string", "bool"):
            raise InputError(f"column {name} holds {self.table.field(name).type}; allowed: a column of numbers")
        return np.array([np.nan if x is None else float(x) for x in self.values(name)])

    def take(self, rows: Any) -> Results:
        """The rows at an index array or mask."""
        index = np.asarray(rows)
        return Results(self.table.take(np.flatnonzero(index) if index.dtype == np.bool_ else index))

    def fitting(self) -> Results:
        """The rows with a layout."""
        return self.take(np.array([s == FITS for s in self.values("status")], dtype=bool))

    def priced(self) -> bool:
        """Whether any row has a price."""
        return bool(self.table["price_usd_per_gpu_hour"].null_count < len(self))

    def varied(self) -> list[str]:
        """The axes with more than one value in these rows, in order; without those that another one settles, as the
        cluster does its own network, framework and attention kernel.
        """
        axes = [f.name for f in self.table.schema if (f.metadata or {}).get(b"axis") == b"true"]
        found: dict[str, list[Any]] = {}
        for name in axes:
            values = self.values(name)
            settled = any(len(set(zip(v, values, strict=True))) == len(set(v)) for v in found.values())
            if len(set(values)) > 1 and not settled:
                found[name] = values
        return list(found)

    def where(self, conditions: Iterable[str]) -> Results:
        """The rows that meet all conditions, each `column=value`.

        Raises InputError for a condition of another form, or one that no row meets, with the values there are;
        UnknownNameError for an unknown column.
        """
        rows = self
        for condition in conditions:
            name, found, value = condition.partition("=")
            if not found:
                raise InputError(f"--where is {condition!r}; allowed: COLUMN=VALUE, such as model=gpt3-175b")
            name = rows.column(name)
            values = rows.values(name)
            mask = np.array([_same(x, value) for x in values], dtype=bool)
            if not mask.any():
                known = [_text(x) for x in dict.fromkeys(values)][:12]
                raise InputError(f"--where {condition}: no such row; {name} has {', '.join(known)}")
            rows = rows.take(mask)
        return rows


def _same(x: Any, text: str) -> bool:
    if isinstance(x, (int, float)) and not isinstance(x, bool):
        try:
            return bool(np.isclose(float(text), x, rtol=1e-9, atol=0.0))
        except ValueError:
            return False
    return _text(x) == text


def _text(x: Any) -> str:
    return f"{x:g}" if isinstance(x, float) else str(x).lower() if isinstance(x, bool) else str(x)


def load_results(path: Path) -> Results:
    """The results that `planner sweep` wrote; raises as `read_results`."""
    return Results(read_results(path))
