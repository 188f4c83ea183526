"""The TOML form of hardware profiles, made from the records' declarations and checked.

Every figure has a unit in its name, a range and a source.
"""

from __future__ import annotations

from dataclasses import fields as record_fields
from dataclasses import is_dataclass
from functools import cache
from typing import Annotated, Any, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    StrictBool,
    StrictStr,
    create_model,
    model_validator,
)

from planner.base.tables import StrictTable, refuse, rule
from planner.hardware.declared import Declared, declared, movable


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise refuse("a number")
    try:
        return float(value)
    except OverflowError:
        raise refuse("a finite number") from None


Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Text = Annotated[StrictStr, Field(min_length=3), rule(str.strip, "text that says where the figure comes from")]
Name = Annotated[StrictStr, Field(min_length=1, max_length=200), rule(str.isprintable, "characters that print")]
OWN, UNSOURCED = "own-file", "a file of one's own, which names no source"


class Figure(StrictTable):
    """A number and where it comes from: a key of the file's `[sources]`; a bare number says nothing of that."""

    value: Number
    source: Annotated[StrictStr, Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _table(cls, data: Any) -> Any:
        if isinstance(data, int | float) and not isinstance(data, bool):
            return {"value": data, "source": OWN}
        if not isinstance(data, (dict, Figure)):
            raise refuse('a number, or { value = a number, source = "a key of [sources]" }')
        return data


class Sourced(StrictTable):
    """A file with `[sources]`, each used and each defined."""

    name: Name
    sources: dict[str, Text] = {}

    @model_validator(mode="after")
    def _sources_match(self) -> Sourced:
        used = {figure.source: field for field, figure in figures(self)}
        for key, field in used.items():
            if key not in self.sources and key != OWN:
                raise refuse(f"a source of {field} that stands in [sources]; {key!r} does not")
        for key in self.sources:
            if key not in used:
                raise refuse(f"only sources that a figure uses; sources.{key} is not used")
        return self


def figures(model: BaseModel) -> list[tuple[str, Figure]]:
    """Every figure of a file with its dotted name."""
    found: list[tuple[str, Figure]] = []
    for field in type(model).model_fields:
        value = getattr(model, field)
        if isinstance(value, Figure):
            found.append((field, value))
        elif isinstance(value, dict):
            found += [(f"{field}.{k}", v) for k, v in value.items() if isinstance(v, Figure)]
        elif isinstance(value, BaseModel):
            found += [(f"{field}.{k}", v) for k, v in figures(value)]
    return found


def source_texts(model: Sourced) -> dict[str, str]:
    """Each figure's name with the text of its source."""
    return {name: model.sources.get(figure.source, UNSOURCED) for name, figure in figures(model)}


class OneOrMore(StrictTable):
    """A table of optional figures that isn't empty."""

    @model_validator(mode="after")
    def _not_empty(self) -> OneOrMore:
        if not self.model_fields_set:
            raise refuse(f"at least one of {', '.join(type(self).model_fields)}")
        return self


def _checked(d: Declared) -> Any:
    """One figure in its range."""
    rules = [rule(lambda f: d.least <= f.value <= d.most, f"a value from {d.least:g} to {d.most:g}")]
    rules += [rule(lambda f: f.value == int(f.value), "a whole number")] if d.whole else []
    return Annotated[(Figure, *rules)]


def _optional(kind: Any, needed: bool) -> tuple[Any, Any]:
    """A field's kind and default, as pydantic takes them."""
    return (kind, ...) if needed else (kind | None, None)


def _table(name: str, d: Declared) -> Any:
    """A small table of figures."""
    fields: dict[str, Any] = {key: _optional(_checked(d), d.every) for key in d.keys}
    return create_model(name, __base__=StrictTable if d.every else OneOrMore, __doc__=d.says, **fields)


def _setting(kind: Any) -> Any:
    """A field that is no figure: text of a few words, a switch, or a small table of such."""
    if kind is bool:
        return StrictBool
    if isinstance(kind, type) and is_dataclass(kind):
        fields: dict[str, Any] = {
            f.name: (_setting(get_type_hints(kind)[f.name]), f.default) for f in record_fields(kind)
        }
        return create_model(kind.__name__, __base__=StrictTable, **fields)
    if get_origin(kind) is tuple:
        return Annotated[kind, Field(min_length=1)]
    if get_origin(kind) is Annotated:
        return Annotated[StrictStr, Field(pattern=f"^({kind.__metadata__[0]})$")]
    return kind


@cache
def schema(record: type, *references: str) -> Any:
    """The schema of the profiles of a record; references: fields that name other profiles."""
    fields: dict[str, Any] = dict.fromkeys(references, (Name, ...))
    for f in record_fields(record):
        if (d := f.metadata.get("declared")) is not None:
            kind = _table(f.name, d) if d.keys else _checked(d)
            for key in d.names(f.name):
                fields[key] = _optional(kind, d.needed and len(d.units) < 2)
        elif "setting" in f.metadata:
            fields[f.name] = (_setting(f.metadata["setting"]), f.metadata.get("default", ...))
    rules: dict[str, Any] = {"declared_rules": model_validator(mode="after")(_together(record))}
    return create_model(record.__name__, __base__=Sourced, __validators__=rules, **fields)


def _together(record: type) -> Any:
    """The rules between a record's figures: one of several units, and figures that stand beside each other."""

    def check(self: Any) -> Any:
        for name, (_, d) in declared(record).items():
            keys = list(d.names(name))
            given = [key for key in keys if getattr(self, key) is not None]
            if len(keys) > 1 and len(given) != 1:
                raise refuse(f"exactly one of {' and '.join(keys)}")
            if d.beside and bool(given) != (getattr(self, d.beside, given) is not None):
                raise refuse(f"both {keys[0]} and {d.beside}, or neither")
        allowed = movable(record)
        for name in (name for moved in getattr(self, "fitted", {}).values() for name in moved):
            if name not in allowed:
                raise refuse(f"in fitted only {', '.join(allowed)}; {name!r} is none")
        return self

    return check
