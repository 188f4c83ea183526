"""A sweep's results read back: rows chosen, figures as arrays, what varied.

Then the cases that none beats in everything at once (time, cost and power, or any figures); and a figure over two of
the sweep's axes, in each cell the best of the cases that share it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.base.arrays import Array, Ints
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
LARGER_IS_BETTER = {"mfu", "tokens_per_s", "tokens_per_s_per_gpu", "training_goodput", "layouts_fitting"}


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


@dataclass(frozen=True)
class Front:
    """A model's cases: all that fit and have the figures compared, and those that none of them beats, best first by
    the first figure. columns: the figures, as the results name them.
    """

    model: str
    seq_len: int
    columns: tuple[str, ...]
    cases: Results
    best: Results


def nondominated(points: Array) -> Ints:
    """Indices of the points of shape (n, k) that no other is at most equal to in all, and less in one.

    Less is better; of equal points the first is kept. Ascending by the first figure, then the next.
    """
    order = np.lexsort(points.T[::-1])
    kept: list[int] = []
    left = order
    while len(left):
        # The first in order can't be beaten by a later one: all that it beats or equals go.
        first = left[0]
        kept.append(int(first))
        left = left[(points[left] < points[first]).any(axis=1)]
    return np.array(kept, dtype=np.int64)


def fronts(results: Results, of: list[str] | None = None) -> list[Front]:
    """A front for each model and sequence length; a model none of whose cases has all figures is left out.

    of: short names (`time`, `cost`, `power`, `energy`, `memory`) or columns of numbers; else time, power, and cost if
    priced.

    Raises InputError for fewer than two figures, or if no row has them all; UnknownNameError for an unknown column.
    """
    of = of or ["time", *(["cost"] if results.priced() else []), "power"]
    columns = tuple(dict.fromkeys(results.column(name) for name in of))
    if len(columns) < 2:
        raise InputError(f"--of is {', '.join(of)}; allowed: two figures or more, such as --of time --of cost")
    fitting = results.fitting()
    signs = np.array([-1.0 if name in LARGER_IS_BETTER else 1.0 for name in columns])
    points = np.stack([fitting.numbers(name) for name in columns], axis=1) * signs
    known = np.isfinite(points).all(axis=1)
    if not known.any():
        empty = [name for i, name in enumerate(columns) if not np.isfinite(points[:, i]).any()]
        why = f"{', '.join(empty)} has no value" if empty and len(fitting) else "no case has a layout that fits"
        raise InputError(f"nothing to compare: {why}")
    fitting, points = fitting.take(known), points[known]
    groups = list(zip(fitting.values("model"), fitting.values("seq_len"), strict=True))
    out = []
    for model, seq_len in dict.fromkeys(groups):
        rows = np.flatnonzero([group == (model, seq_len) for group in groups])
        best = rows[nondominated(points[rows])]
        out.append(Front(model, seq_len, columns, fitting.take(rows), fitting.take(best)))
    return out


@dataclass(frozen=True, kw_only=True)
class CaseGrid:
    """A value by y and x, cells of shape (len(ys), len(xs)).

    cells: the value of each cell's best case, None where no case has a layout that fits; rows: which row of the results
    that is, -1 for none; by: the figure by which it is the best; over: the axes that vary inside a cell.
    """

    x: str
    y: str
    value: str
    by: str
    xs: list[Any]
    ys: list[Any]
    cells: list[list[Any]]
    rows: Ints
    over: list[str]


def grid(results: Results, x: str, y: str, value: str, by: str | None = None) -> CaseGrid:
    """The grid of all values of x and y that the rows have, sorted.

    by: a short name or a column of numbers; None: the value itself, or time where that is text.

    Raises InputError for rows of several models or sequence lengths, x equal to y, a column that is no axis, or if
    nothing fits; UnknownNameError for an unknown column.
    """
    x, y, value = (results.column(name) for name in (x, y, value))
    varied = results.varied()
    for option, name in (("--x", x), ("--y", y)):
        if name not in varied:
            raise InputError(f"{option} is {name}; allowed: an axis with several values: {', '.join(varied) or 'none'}")
    if x == y:
        raise InputError(f"--x and --y are both {x}; allowed: two axes")
    for name in ("model", "seq_len"):
        if name in varied and name not in (x, y):
            known = ", ".join(str(v) for v in dict.fromkeys(results.values(name)))
            raise InputError(
                f"the rows are of several values of {name}, which don't compare; give --where {name}=... ({known})"
            )
    text = str(results.table.field(value).type) in ("string", "bool")
    best_by = results.column(by or ("time" if text else value))
    score = results.numbers(best_by) * (-1.0 if best_by in LARGER_IS_BETTER else 1.0)
    score[np.array([s != "fits" for s in results.values("status")])] = np.nan
    if not np.isfinite(score).any():
        raise InputError(f"nothing to draw: no case with a layout that fits has a value of {best_by}")
    x_of, y_of = results.values(x), results.values(y)
    xs, ys = sorted(set(x_of)), sorted(set(y_of))
    rows = np.full((len(ys), len(xs)), -1, dtype=np.int64)
    # From worst to best, the last one stays; of equals the first case.
    for i in reversed(np.argsort(score, kind="stable")[: np.isfinite(score).sum()].tolist()):
        rows[ys.index(y_of[i]), xs.index(x_of[i])] = i
    values = results.values(value)
    return CaseGrid(
        x=x, y=y, value=value, by=best_by, xs=xs, ys=ys, rows=rows, over=[n for n in varied if n not in (x, y)],
        cells=[[None if i < 0 else values[i] for i in line] for line in rows.tolist()],
    )  # fmt: skip
