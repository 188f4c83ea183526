"""A profile that says only in what it differs from another, which its field `base` names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.base.errors import FileFormatError
from planner.hardware.changes import source_table, used_sources


def over_base(path: Path, data: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """The base's tables with those of the file over them, figure by figure; sources that no figure uses any more go.

    Raises:
        FileFormatError: the file gives another text to a source of the base.
    """
    own, inherited = source_table(data), source_table(base)
    for key in own:
        if own[key] != inherited.get(key, own[key]):
            raise FileFormatError(f"{path}: field sources.{key} is another in its base; allowed: a key of its own")
    base = {field: value for field, value in base.items() if field != "fitted"}
    out = dict(base)
    for field, value in data.items():
        if field != "base":
            out[field] = {**base[field], **value} if _is_table(base.get(field)) and _is_table(value) else value
    used = used_sources(out)
    if isinstance(data.get("sources", {}), Mapping):  # else the schema names the fault
        out["sources"] = {key: text for key, text in source_table(out).items() if key in used or key in own}
    return out


def _is_table(value: Any) -> bool:
    """Whether a field holds a table of figures or of sources, not one figure."""
    return isinstance(value, Mapping) and "value" not in value
