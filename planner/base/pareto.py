"""The front of two quantities that should both be small, and where it bends."""

from typing import Any

import numpy as np

from planner.base.arrays import Ints


def pareto_front(first: Any, second: Any) -> Ints:
    """Indices of the points that none beats in both, ascending in the first; arrays of shape (n,).

    Of equal points the first in order counts; those that are not finite are left out.
    """
    first, second = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    rows = np.flatnonzero(np.isfinite(first) & np.isfinite(second))
    order = rows[np.lexsort((second[rows], first[rows]))]
    before = np.concatenate([[np.inf], np.minimum.accumulate(second[order])])[: len(order)]
    return np.asarray(order[second[order] < before])


def knee(time_s: Any, cost: Any) -> int:
    """The bend of a front: the point of least cost times time, shape (n,), positive.

    There one per cent of time costs one per cent of money; with cost = accelerators x time, twice the accelerators
    shorten the time by the square root of two. Beyond, a share of time costs a larger share of money.
    """
    product = np.asarray(time_s, dtype=np.float64) * np.asarray(cost, dtype=np.float64)
    return int(np.argmin(np.where(np.isnan(product), np.inf, product)))
