"""A figure over two of a sweep's axes, in each cell the best of the cases that share it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.base.arrays import Ints
from planner.base.errors import InputError
from planner.sweeps.columns import FITS
from planner.sweeps.results import LARGER_IS_BETTER, Results


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
    score[np.array([s != FITS for s in results.values("status")])] = np.nan
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
