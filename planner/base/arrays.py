"""Types of arrays of numbers, for signatures, and records of them; docstrings give the shapes."""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Kind = TypeVar("Kind")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(kind: type[Kind]) -> type[Kind]:
    """A frozen dataclass of arrays, of which only itself is an equal: Python makes it in less than half of the time."""
    return dataclass(frozen=True, kw_only=True, eq=False, repr=False)(kind)
