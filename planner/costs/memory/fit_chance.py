"""How likely a layout fits: the distribution of peak memory around what is predicted.

The logarithm of memory needed over memory predicted follows a logistic distribution. Its figures stand in
`fit_chance.toml` with their source: `benchmarks/memory_errors.py` fits them to the measured runs that state their
memory, ran out of it, or fit where little room was predicted. A kind (framework, GPU architecture, precision, with
experts or without) is measured where ten runs of three publications stated their memory or ran out. Where a kind of a
layout is not, the distribution is wider: as wide as the errors are of runs that other publications tell little of.
"""

from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.base.files import read_toml
from planner.setup import Setup

FIT_CHANCE = 0.95  # of a layout that is advised, unless another is given
FITTED = Path(__file__).with_name("fit_chance.toml")


@cache
def _figures() -> tuple[float, float, float, frozenset[str]]:
    """Location, scale, scale of kinds without measured memory, and the kinds with it."""
    table = read_toml(FITTED)
    numbers = (float(table[name]) for name in ("location", "scale", "unmeasured_scale"))
    return *numbers, frozenset(table["measured"])  # type: ignore[return-value]


def kinds_of(setup: Setup, precision: str | None = None) -> tuple[tuple[str, ...], ...]:
    """Traits, in words, that memory's errors may depend on: framework, GPU architecture, experts, precision if given.

    A trait is its own name, then those of what it is built on. precision: in lower case, as in a profile's peaks.
    """
    framework = setup.framework
    experts = [("models with experts",)] if np.any(np.asarray(setup.model.num_experts) > 0) else []
    number = [] if precision is None else [(precision,)]
    gpus = f"{setup.cluster.accelerator.efficiency.name} GPUs"
    return (framework.name, *framework.bases), (gpus,), *experts, *number


def unmeasured(kinds: tuple[tuple[str, ...], ...], measured: Collection[str] | None = None) -> tuple[str, ...]:
    """The traits of which neither they nor what they are built on are measured; those of the fit, unless given."""
    known = _figures()[3] if measured is None else measured
    return tuple(names[0] for names in kinds if not any(name in known for name in names))


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


def chance_in(setup: Setup, precision: str, predicted_bytes: Any) -> Array:
    """`fit_chance` of a setup's layouts of one precision, in lower case."""
    wide = bool(unmeasured(kinds_of(setup, precision)))
    return fit_chance(predicted_bytes, setup.cluster.accelerator.memory_bytes, wide)


def safe_share(chance: float, wide: bool = False) -> float:
    """The share of the capacity up to which a layout may be predicted to fit with this chance, above 0 and below 1."""
    return float(np.exp(-_figures()[0] - _scale(wide) * np.log(chance / (1.0 - chance))))
