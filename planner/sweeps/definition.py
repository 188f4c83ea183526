"""A sweep's TOML file, checked: what is varied, what is settled, what is assumed.

The values of an axis are a list, a range, or multiples of what the profile has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, StrictStr, create_model, model_validator

from planner.base.checks import refuse
from planner.base.tables import StrictTable
from planner.base.units import parse_count
from planner.choices.choice import LARGEST, Choice
from planner.choices.enumerations import names
from planner.choices.table import CHOICES, SETTLED, SHARED

MOST_VALUES = 10_000
RANGE = "{ from = 64, to = 4096, factor = 2 } or { from = 8, to = 64, step = 8 }"


@dataclass(frozen=True)
class Values:
    """The values of an axis; where `multiples`, numbers by which the profile's own figure is multiplied."""

    values: tuple[Any, ...]
    multiples: bool = False


def whole_numbers(data: Any, least: int = 1) -> tuple[int, ...]:
    """Whole numbers, none below `least`, from a number, a list or a range."""
    allowed = f"a list of different whole numbers from {least} to 10000000, or {RANGE}"
    numbers = _several(data, allowed)
    if not all(_is_number(x) and x == int(x) and least <= x <= 10_000_000 for x in numbers):
        raise refuse(allowed)
    return tuple(int(x) for x in numbers)


def hardware_values(data: Any) -> Values:
    """Values of a profile's field: numbers, names or booleans; `{ times = [0.5, 1, 2] }` multiplies the profile's."""
    allowed = f"a list of different values, {{ times = [0.5, 1, 2] }}, or {RANGE}"
    if isinstance(data, Mapping) and "times" in data:
        if set(data) != {"times"}:
            raise refuse(allowed)
        numbers = _several(data["times"], allowed)
        if not all(_is_number(x) and x > 0 for x in numbers):
            raise refuse("multiples above 0")
        return Values(tuple(float(x) for x in numbers), multiples=True)
    values = _several(data, allowed)
    kinds = {"number" if _is_number(x) else type(x).__name__ for x in values}
    if len(kinds) != 1 or not kinds <= {"number", "str", "bool"}:
        raise refuse("numbers, or names, or booleans, not a mixture")
    return Values(tuple(float(x) if _is_number(x) else x for x in values))


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and abs(x) < 1e300


def _several(data: Any, allowed: str) -> tuple[Any, ...]:
    """A range's values, a list's, or one value alone."""
    if isinstance(data, Mapping):
        return _range(data, allowed)
    values = (data,) if not isinstance(data, Sequence) or isinstance(data, str) else tuple(data)
    if not 1 <= len(values) <= MOST_VALUES or len(set(map(repr, values))) != len(values):
        raise refuse(allowed)
    return values


def _range(data: Mapping[str, Any], allowed: str) -> tuple[float, ...]:
    """Both ends included."""
    way = next((k for k in ("step", "factor") if set(data) == {"from", "to", k}), None)
    if way is None or not all(_is_number(x) for x in data.values()):
        raise refuse(allowed)
    low, high, by = data["from"], data["to"], data[way]
    if not low <= high or (by <= 0 if way == "step" else by <= 1 or low <= 0):
        raise refuse("from at most to, a step above 0 or a factor above 1; " + RANGE)
    span = (high - low) / by if way == "step" else math.log(high / low) / math.log(by)
    if span > MOST_VALUES:
        raise refuse(f"at most {MOST_VALUES} values")
    found = tuple(low + by * i if way == "step" else low * by**i for i in range(round(span) + 1))
    if abs(found[-1] - high) > 1e-3 * abs(high):
        near = [low + by * i if way == "step" else low * by**i for i in (int(span), int(span) + 1)]
        raise refuse(f"a to that the range comes to, such as {near[0]:g} or {near[1]:g}; {RANGE}")
    return found


def _count(value: Any) -> Any:
    """A number of tokens, which may be a text such as 15T."""
    try:
        return parse_count(value) if isinstance(value, str) else value
    except ValueError:
        raise refuse("a number of tokens, such as 15e12 or '15T'") from None


def _different(names: Any) -> Any:
    """The same, if it is a list of different texts; what else it holds is for the list's own check."""
    if not isinstance(names, list):
        raise refuse("a list of names")
    texts = [name for name in names if isinstance(name, str)]
    if len(set(texts)) != len(texts):
        raise refuse("a list of different names")
    return names


def _flat(table: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted names of the leaves: `"accelerator.memory_gib"` and `accelerator.memory_gib` mean the same."""
    if not isinstance(table, Mapping):
        raise refuse("a table of fields, such as accelerator.memory_gib = [80, 141]")
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        inner = isinstance(value, Mapping) and not ({"times", "from", "to", "step", "factor"} & set(value))
        found = _flat(value, f"{name}.") if inner else {name: value}
        if twice := set(flat) & set(found):
            raise refuse(f"each field once; {sorted(twice)[0]} stands there twice")
        flat |= found
    for name in flat:
        if inside := [other for other in flat if other.startswith(f"{name}.")]:
            raise refuse(f"a whole file or fields of it; {name} and {inside[0]} exclude each other")
    if "framework" in flat:
        raise refuse("fields of the framework, such as framework.overlap_tensor; others by frameworks = [...]")
    return flat


def _settings(table: Any) -> dict[str, float | str | bool]:
    """One value a field."""
    out = {}
    for name, value in _flat(table).items():
        values = hardware_values(value)
        if values.multiples or len(values.values) != 1:
            raise refuse(f"one value a field; {name} has several")
        out[name] = values.values[0]
    return out


Name = Annotated[StrictStr, Field(min_length=1, max_length=500)]
Names = Annotated[list[Name], Field(min_length=1, max_length=10_000), BeforeValidator(_different)]
Whole = Annotated[tuple[int, ...], BeforeValidator(whole_numbers)]
Hardware = Annotated[dict[str, Any], BeforeValidator(lambda t: {k: hardware_values(v) for k, v in _flat(t).items()})]
Positive = Annotated[float, Field(gt=0, lt=1e300, allow_inf_nan=False)]
Price = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
OBJECTIVE = Literal["time", "throughput", "cost", "memory"]


class DesignTable(StrictTable):
    """One of `[[designs]]`: fields of the hardware that change together, under a name."""

    name: Name
    hardware: Annotated[dict[str, Any], BeforeValidator(_settings)] = {}


def _allowed(choice: Choice) -> Any:
    """The kind of a list of a choice's values, or None for all of them."""
    if choice.enumeration:
        return list[Literal[tuple(names(choice.enumeration))]] | None  # type: ignore[misc]
    if choice.kind is int and choice.most < LARGEST:
        return list[Literal[tuple(range(choice.least, choice.most + 1))]] | None  # type: ignore[misc]
    if choice.kind is int and choice.least == 0:
        return Annotated[tuple[int, ...], BeforeValidator(partial(whole_numbers, least=0))] | None
    return {int: Whole | None, bool: StrictBool | None, str: Names | None}[choice.kind]


SETTLED_FIELDS: dict[str, Any] = {name: (_allowed(CHOICES[name]), None) for name in SETTLED}
SHARED_FIELDS: dict[str, Any] = {
    name: ((Literal[tuple(names(kind))] if (kind := CHOICES[name].enumeration) else CHOICES[name].kind) | None, None)
    for name in SHARED
}
SearchTable = create_model(
    "SearchTable", __base__=StrictTable, __doc__="`[search]`: what is settled in every search.", **SETTLED_FIELDS,
    **SHARED_FIELDS,
    allow_offload=(StrictBool, False), allow_async=(StrictBool, False), any_framework=(StrictBool, False),
    exclude=(tuple[str, ...], ()),
    fit_chance=(float | None, None), headroom_gib=(float | None, None), max_memory_gib=(float | None, None),
)  # fmt: skip


class SweepFile(StrictTable):
    """A sweep: the lists are axes, and every combination of their values is a case."""

    models: Names
    clusters: Names
    networks: Names | None = None
    frameworks: Names | None = None
    gpus: Whole
    global_batches: Whole
    seq_lens: Whole | None = None
    precisions: Names | None = None
    attentions: Names | None = None
    objectives: Annotated[list[OBJECTIVE], Field(min_length=1), BeforeValidator(_different)] = ["time"]
    tokens: Annotated[Positive, BeforeValidator(_count)] | None = None
    hardware: Hardware = {}
    designs: Annotated[list[DesignTable], Field(min_length=1)] | None = None
    search: SearchTable = SearchTable()
    assumptions: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = {}
    prices: dict[str, Price] = {}

    @model_validator(mode="after")
    def _consistent(self) -> SweepFile:
        if self.designs and len({d.name for d in self.designs}) != len(self.designs):
            raise refuse("designs with different names")
        for design in self.designs or []:
            if both := set(design.hardware) & set(self.hardware):
                raise refuse(f"a field in hardware or in designs, not in both: {sorted(both)[0]}")
        if unknown := set(self.prices) - set(self.clusters):
            raise refuse(f"prices of the clusters that are swept; {sorted(unknown)[0]!r} is not")
        return self
