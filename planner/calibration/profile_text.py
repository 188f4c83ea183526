"""Profiles as TOML text: plain fields, figures with their sources, tables of figures, and the sources that are used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from planner.hardware.changes import used_sources


def profile_text(data: Mapping[str, Any]) -> str:
    """The file's text.

    data: as `read_toml` gives it: text, booleans, lists, `{value, source}`, tables of these, and `sources`; those
    that no figure names are left out, for a profile may not have them.
    """
    tables = {k: v for k, v in data.items() if isinstance(v, Mapping) and "value" not in v and k != "sources"}
    plain = {k: v for k, v in data.items() if k not in tables and k != "sources"}
    used = used_sources(plain | tables)
    lines = _lines(plain)
    for name, table in tables.items():
        lines += ["", f"[{name}]", *_lines(table)]
    lines += ["", "[sources]", *_lines({k: v for k, v in data["sources"].items() if k in used})]
    return "\n".join(lines) + "\n"


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_plain(value)}" for key, value in table.items()]


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_lines(value))} }}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(_plain(v) for v in value)}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else f"{value:.6g}"
