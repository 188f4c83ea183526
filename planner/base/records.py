"""Records of arrays: dataclasses whose fields are arrays, or records again. All else in them is left as it is."""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np

Record = TypeVar("Record")
_PLAIN = frozenset((float, int, bool, str, type(None)))


def combined(records: Sequence[Record], change: Callable[..., Any]) -> Record:
    """One record of like ones: `change` takes the same array of each. What isn't an array is the first record's."""
    first = records[0]
    if isinstance(first, np.ndarray):
        return change(*records)  # type: ignore[no-any-return]
    if isinstance(first, tuple) and any(isinstance(part, np.ndarray) for part in first):
        return tuple(combined(parts, change) for parts in zip(*records, strict=True))  # type: ignore[return-value]
    if not is_dataclass(first):
        return first
    parts = {f.name: [getattr(record, f.name) for record in records] for f in fields(first)}
    new = {name: combined(part, change) for name, part in parts.items()}
    changed = {name: x for name, x in new.items() if x is not parts[name][0]}
    return replace(first, **changed) if changed else first  # type: ignore[type-var]


def mapped(record: Record, change: Callable[[Any], Any]) -> Record:
    """The record with every array changed: as `combined` of it alone, in a fraction of the time."""
    if isinstance(record, np.ndarray):
        return change(record)  # type: ignore[no-any-return]
    if isinstance(record, tuple):
        if all(type(part) in _PLAIN for part in record):
            return record
        parts = tuple(mapped(part, change) for part in record)
        return record if all(a is b for a, b in zip(parts, record, strict=True)) else parts  # type: ignore[return-value]
    names = getattr(type(record), "__dataclass_fields__", ())
    old, new = getattr(record, "__dict__", {}), {}
    for name in names:
        part = old[name]
        if type(part) not in _PLAIN and (made := mapped(part, change)) is not part:
            new[name] = made
    if not new:
        return record
    out: Record = object.__new__(type(record))
    vars(out).update({name: old[name] for name in names} | new)
    return out


def take(record: Record, index: Any, length: int | None = None) -> Record:
    """The record's elements at an index array, mask or slice along the last axis of its arrays.

    length: only arrays with so many elements along it are indexed; others are broadcast with these, and stay.
    """
    # x[..., numbers] has the last axis first in memory, and all that is computed from it goes along short axes.
    numbers = isinstance(index, np.ndarray) and index.dtype.kind == "i"

    def some(x: Any) -> Any:
        if length is not None and (not x.ndim or x.shape[-1] != length):
            return x
        return x.take(index, -1) if numbers else x[..., index]

    return mapped(record, some)


def parts(record: Any, i: int, unit: str, size: float = 1.0) -> dict[str, float]:
    """Element i of each of a record's arrays, by the array's name without its unit, in so many of these units."""
    return {f.name.removesuffix(unit): float(getattr(record, f.name)[i]) / size for f in fields(record)}


def concatenate(records: Sequence[Record]) -> Record:
    """The records' elements, one record after the other."""
    return combined(records, lambda *parts: np.concatenate(parts))


def largest(records: Sequence[Record], size: Callable[[Record], Any]) -> Record:
    """Each element from the record whose size is largest there; of equal ones the first record's."""
    best, most = records[0], size(records[0])
    for record in records[1:]:
        more = size(record) > most
        best = combined([best, record], lambda a, b, more=more: np.where(more, b, a))
        most = size(best)
    return best
