"""Every figure of a cluster with its value and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from planner.hardware import Cluster

# A link's protocol for small messages: most links have none measured, and the model then asks for none.
_WHERE_KNOWN = frozenset({"small_latency_s", "small_fraction"})


def figure_sources(cluster: Cluster) -> list[tuple[str, str, str]]:
    """Dotted name as `--figure` takes it, value in its unit as text, and source (or nothing) of every figure."""
    return _flat(cluster, "")


def _flat(record: Any, prefix: str) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    for f in fields(record):
        value, declared = getattr(record, f.name), f.metadata.get("declared")
        if f.name in ("sources", "room_bytes") or (f.name in _WHERE_KNOWN and value is None):
            continue
        names = declared.names(f.name) if declared else {f.name: 1.0}
        key = next((name for name in names if name in record.sources), next(iter(names)))
        if is_dataclass(value):
            rows += _flat(value, f"{prefix}{f.name}.")
        else:
            table = value if isinstance(value, Mapping) else {"": value}
            for name, one in table.items():
                shown = one if one is None or names[key] == 1.0 else one / names[key]
                dotted = f"{key}.{name}" if name else key
                rows.append((prefix + dotted, _text(shown), record.sources.get(dotted, record.sources.get(key, ""))))
    return rows


def _text(value: Any) -> str:
    return "not stated" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
