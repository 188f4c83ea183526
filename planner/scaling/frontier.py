"""The knee of a front of time against cost."""

from __future__ import annotations

from typing import Any

import numpy as np


def knee(time_s: Any, cost: Any) -> int:
    """Where a front bends: the point of least cost times time, shape (n,), positive.

    There one per cent of time costs one per cent of money; with cost = accelerators x time, twice the accelerators
    shorten the time by the square root of two. Beyond, a share of time costs a larger share of money.
    """
    product = np.asarray(time_s, dtype=np.float64) * np.asarray(cost, dtype=np.float64)
    return int(np.argmin(np.where(np.isnan(product), np.inf, product)))
