"""A sweep's cases that none beats in everything at once: in time, cost and power, or in any figures."""

from dataclasses import dataclass

import numpy as np

from planner.base.arrays import Array, Ints
from planner.base.errors import InputError
from planner.sweeps.results import LARGER_IS_BETTER, Results


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
