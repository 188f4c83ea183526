"""Profiles with other figures than their files have: what a sweep over hardware changes, before anything is checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Changes = Mapping[str, Any]
"""Fields and their new values, nested like the files that they stand in: a number for a figure, in the profile's unit;
text or a boolean for a plain field; a table for a file that is named there, or for a table of figures."""

ORIGIN = "changed"
WITH = " with "
"""In a cluster's name: between the profile's name, and figures that aren't the profile's."""


def changed(data: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """A profile's tables with the changes in place; those of files that it names are left to these."""
    out = _replaced(data, changes)
    used = used_sources(out)
    known = {key: text for key, text in source_table(data).items() if key in used}
    out["sources"] = known | ({ORIGIN: "changed from the profile's figure"} if ORIGIN in used else {})
    return out


def nested(figures: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Changes from dotted names, such as `accelerator.memory_gib`."""
    tree: dict[str, Any] = {}
    for name, value in figures:
        *folders, leaf = name.split(".")
        table = tree
        for folder in folders:
            table = table.setdefault(folder, {})
        table[leaf] = value
    return tree


def under(changes: Changes | None, field: str) -> Changes | None:
    """The changes to the file that a field names."""
    inner = (changes or {}).get(field)
    return inner if isinstance(inner, Mapping) else None


def source_table(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The sources of a profile that is not checked yet; none where the field holds something else than a table."""
    sources = data.get("sources")
    return sources if isinstance(sources, Mapping) else {}


def _replaced(data: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    out = dict(data)
    for field, value in changes.items():
        if isinstance(value, Mapping):
            if not isinstance(data.get(field), str):
                out[field] = _replaced(data.get(field, {}), value)
        elif isinstance(value, (str, bool)):
            out[field] = value
        else:
            out[field] = {"value": value, "source": ORIGIN}
    return out


def used_sources(table: Mapping[str, Any]) -> set[str]:
    """Keys of the sources that the figures of a table name."""
    found = set()
    for value in table.values():
        if isinstance(value, Mapping) and "value" in value:
            if isinstance(key := value.get("source"), str):
                found.add(key)
        elif isinstance(value, Mapping):
            found |= used_sources(value)
    return found
