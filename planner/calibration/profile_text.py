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
    lines = [_line(k, v) for k, v in plain.items()]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(_line(k, v) for k, v in table.items())]
    lines += ["", "[sources]", *(_line(k, v) for k, v in data["sources"].items() if k in used)]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{key} = {{ value = {_plain(value['value'])}, source = {_plain(value['source'])} }}"
    return f"{key} = {_plain(value)}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(_plain(v) for v in value)}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else f"{value:.6g}"
