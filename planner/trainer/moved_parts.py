"""What of a layer's activations waits in host memory where some of its modules are moved, and both together again."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.choices.offload import MODULES
from planner.trainer.host_arena import Away

KEYS_VALUES = "keys_values"
PARTS: Mapping[str, tuple[str, ...]] = dict(
    zip(MODULES, (
        ("norm1",), ("norm1",), ("queries", "attended", KEYS_VALUES), ("out",), ("norm2",), ("mlp.inputs",),
        ("mlp.ups",),
    ), strict=True)
)  # fmt: skip
"""Of each module the parts of `Saved` that it sends. A norm keeps its result, which the product after it takes."""


@dataclass(frozen=True)
class Moved:
    """A layer whose activations wait in host memory: those that stay, if any, and those away."""

    stays: Any
    away: Away


def parted(saved: Any, keys_values: Any, modules: Iterable[str]) -> tuple[Any, Any, dict[str, Any]]:
    """What a layer saved, and its keys and values, without what its modules send; and that, by name."""
    sent: dict[str, Any] = {}
    for path in dict.fromkeys(path for name in modules for path in PARTS[name]):
        if path == KEYS_VALUES:
            sent[path], keys_values = keys_values, None
            continue
        field, _, inner = path.partition(".")
        value = getattr(saved, field)
        if inner:
            if not hasattr(value, inner):  # a dense layer's
                continue
            sent[path], value = getattr(value, inner), replace(value, **{inner: None})
        else:
            sent[path], value = value, None
        saved = replace(saved, **{field: value})
    return saved, keys_values, sent


def joined(saved: Any, sent: Mapping[str, Any]) -> tuple[Any, Any]:
    """What a layer saved with what its modules sent, and the keys and values among that."""
    for path, value in sent.items():
        field, _, inner = path.partition(".")
        if path != KEYS_VALUES:
            value = replace(getattr(saved, field), **{inner: value}) if inner else value
            saved = replace(saved, **{field: value})
    return saved, sent.get(KEYS_VALUES)
