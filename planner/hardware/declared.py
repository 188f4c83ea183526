"""How a figure of a profile is declared: once, on the field of the record that the cost models read.

The declaration says what the figure is, its range, the unit that people write it in, and what holds where a profile
does not state it. The profile's schema (`planner.hardware.schema`), its loading (`planner.hardware.read`) and its
documentation come from there. A new figure is one field, and the formula that uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from planner.base.units import GBIT, GIB, GIGA, MIB, MICRO, TERA

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4")
FLASH = ("flash1", "flash2", "flash3")
OR_NEITHER = ", or neither"
"""How the fault ends of a figure whose neighbour is missing."""

UNITS: Mapping[str, tuple[str, float]] = {
    "us": ("_s", MICRO), "gib": ("_bytes", GIB), "mib": ("_bytes", MIB), "tflops": ("_flops", TERA),
    "gbyte_per_s": ("_bytes_per_s", GIGA), "gbit_per_s": ("_bytes_per_s", GBIT), "usd_per_hour": ("_per_hour", 1.0),
}  # fmt: skip
"""The unit at the end of a profile's key: the ending of the field's name in SI, and the factor to it."""


@dataclass(frozen=True, kw_only=True)
class Declared:
    """One figure of a profile.

    says: A sentence. least, most: its range, in the profile's unit; whole: a whole number.
    units: The profile's units, of which it has one; none where the profile has the field's own name.
    keys: The entries of a table of figures; every: a table has all of them or is left out.
    needed: A profile must state it. default: what holds otherwise, in the profile's unit, and `because` why; each:
    the figure of which the default is for one. like: the figure whose value holds otherwise. With neither, nothing is
    known: None, or an empty table.
    beside: The figure that a profile must state with it; of a table, the same entries.
    flag: It is 1 or 0 in a profile, and true or false here.
    kind: The kind of time that it tells (`planner.calibration.moved.KINDS`, or a link's): a time in us, else a rate.
    fit: Between which values a fit to measured runs may move it where a profile says so, and where it starts.
    """

    says: str
    least: float
    most: float
    whole: bool = False
    units: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    every: bool = False
    needed: bool = True
    default: float | None = None
    because: str = ""
    each: str = ""
    like: str = ""
    beside: str = ""
    flag: bool = False
    kind: str = ""
    fit: tuple[float, float, float] | None = None

    def names(self, field: str) -> dict[str, float]:
        """The keys by which a profile may state the field, each with the factor to SI."""
        if not self.units:
            return {field: 1.0}
        return {f"{field.removesuffix(UNITS[unit][0])}_{unit}": UNITS[unit][1] for unit in self.units}

    def usual(self, known: Mapping[str, Any]) -> float:
        """The default, in the profile's unit; 0 where there is none. known: the profile's other figures by name."""
        return (self.default or 0.0) * (known[self.each] if self.each else 1)


def figure(least: float, most: float, says: str, *, unit: str | tuple[str, ...] = (), **more: Any) -> Any:
    """The field of a figure; one with a default, `like` another, or with `needed=False` may be unstated.
    A record that is made without one has the default too, or None, unless that hangs on other figures.
    """
    units = (unit,) if isinstance(unit, str) else unit
    needed = more.pop("needed", "default" not in more and "like" not in more)
    d = Declared(says=says, least=least, most=most, units=units, needed=needed, **more)
    hangs = needed or d.keys or d.like or d.each
    usual = None if d.default is None else d.default > 0 if d.flag else d.default * (UNITS[units[0]][1] if units else 1)
    return field(default=MISSING if hangs else usual, metadata={"declared": d})


def yes(says: str, *, default: bool = False, because: str) -> Any:
    """The field of a figure that is 1 or 0 in a profile, with its source as any other."""
    return figure(0, 1, says, whole=True, default=float(default), because=because, flag=True)


def setting(kind: Any, says: str, **default: Any) -> Any:
    """A field that is no figure and has no source: a name, a switch, a small table of such."""
    return field(metadata={"setting": kind, "says": says, **default})


def declared(record: type) -> dict[str, tuple[Field[Any], Declared]]:
    """The figures of a record by name: each field with its declaration."""
    return {f.name: (f, f.metadata["declared"]) for f in fields(record) if "declared" in f.metadata}


def movable(record: type) -> dict[str, tuple[str, Declared]]:
    """The figures of a record that a fit may move, by a profile's name for them: each's field and declaration."""
    return {key: (name, d) for name, (_, d) in declared(record).items() if d.fit for key in d.names(name)}
