"""Fronts of two quantities that should both be small, and the knee of one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["knee", "pareto_front"]


def pareto_front(time_s: Any, price: Any) -> NDArray[np.int64]:
    """Indices of the points that none beats in both, from the least price to the least time.

    time_s, price: shape (n,); points whose time or price is not finite are left out.
    """
    time_s, price = np.asarray(time_s, dtype=np.float64), np.asarray(price, dtype=np.float64)
    rows = np.flatnonzero(np.isfinite(time_s) & np.isfinite(price))
    order = rows[np.lexsort((time_s[rows], price[rows]))]
    if not len(order):
        return order
    least = np.minimum.accumulate(time_s[order])
    return np.asarray(order[np.r_[True, time_s[order][1:] < least[:-1]]])


def knee(time_s: Any, price: Any) -> int:
    """Where a front bends: the point that lies farthest below its chord, both axes in logarithms.

    Satopaa et al. 2011, "Finding a kneedle in a haystack", on a front from the least price to the least time, shape
    (n,), positive. Beyond it a share of time costs a larger share of price than on the whole front's average.
    """
    x, y = np.log(np.asarray(price, dtype=np.float64)), np.log(np.asarray(time_s, dtype=np.float64))
    if len(x) < 3 or x[-1] == x[0]:
        return len(x) - 1
    chord = y[0] + (y[-1] - y[0]) * (x - x[0]) / (x[-1] - x[0])
    return int(np.argmax(chord - y))
