"""How likely a layout fits: the distribution of peak memory around what is predicted.

The logarithm of memory needed over memory predicted follows a logistic distribution. Its two figures stand in
`fit_chance.toml` with their source: `benchmarks/memory_errors.py` fits them to the measured runs that state their
memory, ran out of it, or fit where little room was predicted.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.base.files import read_toml

FITTED = Path(__file__).with_name("fit_chance.toml")


@cache
def _figures() -> tuple[float, float]:
    """Location and scale of the distribution."""
    table = read_toml(FITTED)
    return float(table["location"]), float(table["scale"])


def fit_chance(predicted_bytes: Any, capacity_bytes: Any) -> NDArray[np.float64]:
    """The chance, 0 to 1, that a layout fits whose peak memory is predicted; arrays of one shape."""
    location, scale = _figures()
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp((np.log(predicted_bytes / capacity_bytes) + location) / scale)))


def safe_share(chance: float) -> float:
    """The share of the capacity up to which a layout may be predicted to fit with this chance, above 0 and below 1."""
    location, scale = _figures()
    return float(np.exp(-location - scale * np.log(chance / (1.0 - chance))))
