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


def knee(time_s: Any, cost: Any) -> int:
    """Where a front bends: the point of least cost times time, shape (n,), positive.

    There one per cent of time costs one per cent of money; with cost = accelerators x time, twice the accelerators
    shorten the time by the square root of two. Beyond, a share of time costs a larger share of money.
    """
    product = np.asarray(time_s, dtype=np.float64) * np.asarray(cost, dtype=np.float64)
    return int(np.argmin(np.where(np.isnan(product), np.inf, product)))
