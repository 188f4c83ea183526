"""Types of arrays of numbers, for signatures, and records of them; docstrings give the shapes."""

from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
from typing import Any, TypeVar, dataclass_transform

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Kind = TypeVar("Kind")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(kind: type[Kind]) -> type[Kind]:
    """A frozen dataclass of arrays, of which only itself is an equal.

    Its methods are the ones below for every kind: a dataclass of its own would have Python compile them.
    """
    made: Any = dataclass(init=False, eq=False, repr=False, match_args=False)(kind)
    made.record_defaults = {f.name: f.default for f in fields(made) if f.default is not MISSING}
    made.__init__, made.__setattr__, made.__delattr__ = _init, _frozen, _frozen
    return made  # type: ignore[no-any-return]


def _init(self: Any, **values: Any) -> None:
    """Raises TypeError if a field is missing, or a name is none."""
    names = type(self).__dataclass_fields__.keys()
    if values.keys() != names:
        values = type(self).record_defaults | values
        if values.keys() != names:
            wrong = ", ".join(sorted(values.keys() ^ names))
            raise TypeError(f"{type(self).__name__} takes each of its fields once; missing, or none: {wrong}")
    self.__dict__.update(values)


def _frozen(self: Any, name: str, *_: Any) -> None:
    raise FrozenInstanceError(f"cannot change {name} of a {type(self).__name__}")
