"""How likely a layout fits: the distribution of peak memory around what is predicted.

The logarithm of memory needed over memory predicted follows a logistic distribution. Its figures stand in
`fit_chance.toml` with their source: `benchmarks/memory_errors.py` fits them to the measured runs that state their
memory, ran out of it, or fit where little room was predicted. Of a kind (framework, GPU architecture, precision, with
experts or without) of which few runs stated their memory or ran out, the distribution is wider: as wide as the errors
are of fits that had not seen the run's framework.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.base.files import read_toml
from planner.setup import Setup

FITTED = Path(__file__).with_name("fit_chance.toml")


@cache
def _figures() -> tuple[float, float, float, frozenset[str]]:
    """Location, scale, scale of kinds without measured memory, and the kinds with it."""
    table = read_toml(FITTED)
    numbers = (float(table[name]) for name in ("location", "scale", "unmeasured_scale"))
    return *numbers, frozenset(table["measured"])  # type: ignore[return-value]


def kinds_of(setup: Setup, precision: str | None = None) -> tuple[str, ...]:
    """Traits, in words, that memory's errors may depend on: framework, GPU architecture, experts, precision if given.

    precision: in lower case, as in a profile's peaks.
    """
    experts = ("models with experts",) if np.any(np.asarray(setup.model.num_experts) > 0) else ()
    number = () if precision is None else (precision,)
    return (setup.framework.name, f"{setup.cluster.accelerator.efficiency.name} GPUs", *experts, *number)


def unmeasured(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """The kinds of which fewer than ten runs stated their memory or ran out of it."""
    measured = _figures()[3]
    return tuple(kind for kind in kinds if kind not in measured)


def _scale(wide: Any) -> Array:
    _, scale, wider, _ = _figures()
    return np.where(wide, wider, scale)


def fit_chance(predicted_bytes: Any, capacity_bytes: Any, wide: Any = False) -> Array:
    """The chance, 0 to 1, that a layout fits whose peak memory is predicted; arrays of one shape.

    wide: whether it is of a kind without measured memory.
    """
    location = _figures()[0]
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp((np.log(predicted_bytes / capacity_bytes) + location) / _scale(wide))))


def safe_share(chance: float, wide: bool = False) -> float:
    """The share of the capacity up to which a layout may be predicted to fit with this chance, above 0 and below 1."""
    return float(np.exp(-_figures()[0] - _scale(wide) * np.log(chance / (1.0 - chance))))
