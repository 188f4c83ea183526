"""The front of two quantities that should both be small."""

from __future__ import annotations

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
