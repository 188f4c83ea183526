"""The values of one axis, as a sweep's file gives them: a list, a range, or multiples of what the profile has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticCustomError

MOST_VALUES = 10_000
RANGE = "{ from = 64, to = 4096, factor = 2 } or { from = 8, to = 64, step = 8 }"


@dataclass(frozen=True)
class Values:
    """The values of an axis; where `multiples`, numbers by which the profile's own figure is multiplied."""

    values: tuple[Any, ...]
    multiples: bool = False


def refuse(allowed: str) -> PydanticCustomError:
    """A refusal whose whole message is what is allowed; braces would be read as a template's."""
    return PydanticCustomError("sweep", "{allowed}", {"allowed": allowed})


def whole_numbers(data: Any, least: int = 1) -> tuple[int, ...]:
    """Whole numbers, none below `least`, from a number, a list or a range."""
    allowed = f"a list of different whole numbers from {least} to 10000000, or {RANGE}"
    numbers = _range(data, allowed) if isinstance(data, Mapping) else _list(data, allowed)
    if not all(_is_number(x) and x == int(x) and least <= x <= 10_000_000 for x in numbers):
        raise refuse(allowed)
    return tuple(int(x) for x in numbers)


def hardware_values(data: Any) -> Values:
    """Values of a profile's field: numbers, names or booleans; `{ times = [0.5, 1, 2] }` multiplies the profile's."""
    allowed = f"a list of different values, {{ times = [0.5, 1, 2] }}, or {RANGE}"
    if isinstance(data, Mapping) and "times" in data:
        if set(data) != {"times"}:
            raise refuse(allowed)
        inner = data["times"]
        numbers = _range(inner, allowed) if isinstance(inner, Mapping) else _list(inner, allowed)
        if not all(_is_number(x) and x > 0 for x in numbers):
            raise refuse("multiples above 0")
        return Values(tuple(float(x) for x in numbers), multiples=True)
    values = _range(data, allowed) if isinstance(data, Mapping) else _list(data, allowed)
    kinds = {"number" if _is_number(x) else type(x).__name__ for x in values}
    if len(kinds) != 1 or not kinds <= {"number", "str", "bool"}:
        raise refuse("numbers, or names, or booleans, not a mixture")
    return Values(tuple(float(x) if _is_number(x) else x for x in values))


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and abs(x) < 1e300


def _list(data: Any, allowed: str) -> tuple[Any, ...]:
    values = (data,) if not isinstance(data, Sequence) or isinstance(data, str) else tuple(data)
    if not 1 <= len(values) <= MOST_VALUES or len(set(map(repr, values))) != len(values):
        raise refuse(allowed)
    return values


def _range(data: Mapping[str, Any], allowed: str) -> tuple[float, ...]:
    """Both ends included; the last value is the largest that does not exceed `to`."""
    way = next((k for k in ("step", "factor") if set(data) == {"from", "to", k}), None)
    if way is None or not all(_is_number(x) for x in data.values()):
        raise refuse(allowed)
    low, high, by = data["from"], data["to"], data[way]
    if not low <= high or (by <= 0 if way == "step" else by <= 1 or low <= 0):
        raise refuse("from at most to, a step above 0 or a factor above 1; " + RANGE)
    span = (high - low) / by if way == "step" else math.log(high / low) / math.log(by)
    if span > MOST_VALUES:
        raise refuse(f"at most {MOST_VALUES} values")
    count = int(span + 1e-9) + 1
    return tuple(low + by * i if way == "step" else low * by**i for i in range(count))
