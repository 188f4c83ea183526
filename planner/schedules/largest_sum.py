"""Bubbles as the largest of several sums, each linear in F, I and W.

A step is a longest path through operations in order, so its length is the largest of sums a F + b I + c W; where
F, I and W differ, different paths are the longest. Families found by simulation list theirs.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from planner.base.arrays import Array


def largest_sum(F: Any, I: Any, W: Any, *sums: tuple[Any, Any, Any]) -> Array:
    """The largest a F + b I + c W of the sums (a, b, c), and at least zero; arrays broadcast."""
    return np.asarray(reduce(np.maximum, (a * F + b * I + c * W for a, b, c in sums), 0.0), dtype=np.float64)
