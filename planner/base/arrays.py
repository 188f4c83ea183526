"""Signatures call arrays of numbers by these names; their shapes stand in docstrings."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
