"""The TOML form of hardware profiles, made from the records' declarations and checked.

Every figure has a unit in its name, a range and a source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields as record_fields
from dataclasses import is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from planner.base.checks import CheckedTable, Schema, checked, kept, one_of, optional, refuse, table
from planner.hardware.declared import OR_NEITHER, Declared, declared, movable

OWN, UNSOURCED = "own-file", "a file of one's own, which names no source"


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise refuse("a number")
    try:
        return float(value)
    except OverflowError:
        raise refuse("a finite number") from None


def _figure(data: Any) -> Any:
    """A bare number says nothing of its source."""
    if isinstance(data, int | float) and not isinstance(data, bool):
        return {"value": data, "source": OWN}
    if not isinstance(data, dict):
        raise refuse('a number, or { value = a number, source = "a key of [sources]" }')
    return data


NUMBER = checked({"type": "float", "allow_inf_nan": False}, _number, when="before")
STRICT = {"type": "str", "strict": True, "min_length": 1}
FIGURE = checked(table({"value": NUMBER, "source": STRICT}), _figure, when="before")
TEXT = checked(STRICT | {"min_length": 3}, kept(str.strip, "text that says where the figure comes from"))
NAME = checked(STRICT | {"max_length": 200}, kept(str.isprintable, "characters that print"))
SOURCES = {"type": "dict", "keys_schema": {"type": "str"}, "values_schema": TEXT}


def figures(file: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Every figure of a checked file with its dotted name."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for field, value in file.items():
        if isinstance(value, dict) and "value" in value:
            found.append((field, value))
        elif isinstance(value, dict) and field not in ("sources", "fitted"):
            found += [(f"{field}.{k}", v) for k, v in figures(value)]
    return found


def _sources_match(file: dict[str, Any]) -> dict[str, Any]:
    """Each source is used and each is defined."""
    used = {figure["source"]: field for field, figure in figures(file)}
    for key, field in used.items():
        if key not in file["sources"] and key != OWN:
            raise refuse(f"a source of {field} that stands in [sources]; {key!r} does not")
    for key in file["sources"]:
        if key not in used:
            raise refuse(f"only sources that a figure uses; sources.{key} is not used")
    return file


def source_texts(file: Mapping[str, Any]) -> dict[str, str]:
    """Each figure's name with the text of its source."""
    return {name: file["sources"].get(figure["source"], UNSOURCED) for name, figure in figures(file)}


def _in_range(d: Declared) -> Schema:
    """One figure in its range."""
    rules = [kept(lambda f: d.least <= f["value"] <= d.most, f"a value from {d.least:g} to {d.most:g}")]
    rules += [kept(lambda f: f["value"] == int(f["value"]), "a whole number")] if d.whole else []
    return checked(FIGURE, *rules)


def _table(d: Declared) -> Schema:
    """A small table of figures: all of them, or one or more."""
    if d.every:
        return table(dict.fromkeys(d.keys, _in_range(d)))
    some = kept(lambda given: any(given.values()), f"at least one of {', '.join(d.keys)}")
    return checked(table(dict.fromkeys(d.keys, optional(_in_range(d)))), some)


def _setting(kind: Any, least: int = 1) -> Schema:
    """A field that is no figure: text of a few words, a switch, or a small table of such; least: entries of a list."""
    origin, args = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return table(
            {
                f.name: optional(_setting(hints[f.name], 0 if f.default == () else 1), f.default)
                for f in record_fields(kind)
            }
        )
    if origin is tuple:
        return {"type": "tuple", "items_schema": [_setting(args[0])], "variadic_item_index": 0, "min_length": least}
    if origin is Annotated:
        return {"type": "str", "strict": True, "pattern": f"^({args[1]})$"}
    if origin is Literal:
        return one_of(args)
    if origin is dict:
        return {"type": "dict", "keys_schema": _setting(args[0]), "values_schema": _setting(args[1])}
    return {"type": "bool", "strict": True} if kind is bool else {"type": kind.__name__}


@cache
def schema(record: type, *references: str) -> Any:
    """The schema of the profiles of a record; references: fields that name other profiles."""
    fields = {"name": NAME, "sources": optional(SOURCES, {}), **dict.fromkeys(references, NAME)}
    for f in record_fields(record):
        if (d := f.metadata.get("declared")) is not None:
            kind = _table(d) if d.keys else _in_range(d)
            for key in d.names(f.name):
                fields[key] = kind if d.needed and len(d.units) < 2 else optional(kind)
        elif "setting" in f.metadata:
            kind = _setting(f.metadata["setting"])
            fields[f.name] = optional(kind, f.metadata["default"]) if "default" in f.metadata else kind
    return CheckedTable(checked(table(fields), _sources_match, _together(record)))


def _entries(given: dict[str, Any] | None) -> set[str]:
    """The entries of a table of figures that a profile states."""
    return {key for key, value in (given or {}).items() if value is not None}


def _together(record: type) -> Any:
    """The rules between a record's figures: one of several units, and figures that stand beside each other."""

    def check(file: dict[str, Any]) -> dict[str, Any]:
        for name, (_, d) in declared(record).items():
            keys = list(d.names(name))
            given = [key for key in keys if file[key] is not None]
            if len(keys) > 1 and len(given) != 1:
                raise refuse(f"exactly one of {' and '.join(keys)}")
            if d.beside and bool(given) != (file.get(d.beside, given) is not None):
                raise refuse(f"both {keys[0]} and {d.beside}{OR_NEITHER}")
            if d.beside and d.keys and (alone := _entries(file[name]) ^ _entries(file[d.beside])):
                one = ", ".join(sorted(alone))
                raise refuse(f"the same entries in {name} and {d.beside}; {one} stands in one of them")
        allowed = movable(record)
        for name in (name for moved in file.get("fitted", {}).values() for name in moved):
            if name not in allowed:
                raise refuse(f"in fitted only {', '.join(allowed)}; {name!r} is none")
        return file

    return check
