"""Every figure of a cluster with its value and where it comes from."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from planner.hardware import Cluster

# A link's protocol for small messages: most links have none measured, and the model then asks for none.
_WHERE_KNOWN = frozenset({"small_latency_s", "small_fraction"})


def figure_sources(cluster: Cluster) -> list[tuple[str, str, str]]:
    """Dotted name, value as text, and source (or nothing) of every figure."""
    return _flat(asdict(cluster), "")


def _flat(tree: dict[str, Any], prefix: str) -> list[tuple[str, str, str]]:
    sources = tree.get("sources", {})
    rows: list[tuple[str, str, str]] = []
    for key, value in tree.items():
        if key == "sources" or (key in _WHERE_KNOWN and value is None):
            continue
        if isinstance(value, dict) and "name" in value:
            rows += _flat(value, f"{prefix}{key}.")
        elif isinstance(value, dict):
            rows += [(f"{prefix}{key}.{k}", f"{v:.4g}", _source(sources, f"{key}.{k}")) for k, v in value.items()]
        else:
            shown = "not stated" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
            rows.append((prefix + key, shown, _source(sources, key)))
    return rows


def _source(sources: dict[str, str], key: str) -> str:
    """The source of a figure; profiles name it with their own unit, so the stem decides."""
    stem = (
        key.replace("peak_flops", "peak_tflops").removesuffix("_bytes_per_s").removesuffix("_bytes").removesuffix("_s")
    )
    return next((text for name, text in sources.items() if name == stem or name.startswith(stem + "_")), "")
