"""Profiles from files: by name or path, over their base, checked; and the figures in them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from planner.errors import FileFormatError, UnknownNameError, shown
from planner.files import is_path, read_toml, shipped_folder, validate
from planner.hardware.base import over_base
from planner.hardware.changes import Changes, changed
from planner.names import same_name

if TYPE_CHECKING:
    from planner.hardware.schema import Figure, Sourced

__all__ = [
    "accelerator_names",
    "cluster_names",
    "figure_value",
    "figure_values",
    "framework_names",
    "link_names",
    "profile_names",
    "profile_table",
    "read_profile",
    "sources_of",
]

F = TypeVar("F", bound="Sourced")


def profile_names(kind: str) -> list[str]:
    """Names of the shipped profiles of a kind: accelerators, efficiency, links, clusters or frameworks."""
    return sorted(p.stem for p in (shipped_folder("hardware_profiles") / kind).glob("*.toml"))


def accelerator_names() -> list[str]:
    """Names of the shipped accelerators."""
    return profile_names("accelerators")


def cluster_names() -> list[str]:
    """Names of the shipped clusters."""
    return profile_names("clusters")


def framework_names() -> list[str]:
    """Names of the shipped framework profiles."""
    return profile_names("frameworks")


def link_names() -> list[str]:
    """Names of the shipped links and networks."""
    return profile_names("links")


def _path(kind: str, name: str, beside: Path | None) -> Path:
    """Where a profile lies: a file of one's own (relative to `beside`), or a shipped one by its name."""
    if is_path(name):
        path = Path(name)
        return path if beside is None or path.is_absolute() else beside / path
    known = profile_names(kind)
    found = name if name in known else same_name(name, known)
    if found is None:
        raise UnknownNameError(kind.removesuffix("s"), name, known, "Or give a TOML file of your own.")
    return shipped_folder("hardware_profiles") / kind / f"{found}.toml"


def profile_table(
    kind: str, name: str, beside: Path | None, above: tuple[Path, ...] = ()
) -> tuple[dict[str, Any], Path]:
    """A profile's tables, over those of its base where it names one, and its file.

    Raises:
        UnknownNameError: no shipped profile has the name.
        FileFormatError: it can't be read, or stands on itself.
    """
    path = _path(kind, name, beside)
    data = read_toml(path)
    if "base" not in data:
        return data, path
    base = data["base"]
    if not isinstance(base, str) or path in above:
        fault = "stands on itself" if path in above else f"is {shown(base)}"
        raise FileFormatError(f"{path}: field base {fault}; allowed: another profile by name or file")
    under_it, _ = profile_table(kind, base, path.parent, (*above, path))
    return over_base(path, data, under_it), path


def read_profile(
    kind: str, schema: type[F], name: str, beside: Path | None, changes: Changes | None = None
) -> tuple[F, Path]:
    """A profile's fields, checked, with other figures where `changes` has some, and its file.

    Raises:
        UnknownNameError, FileFormatError: no such profile, or one that does not validate.
    """
    data, path = profile_table(kind, name, beside)
    return validate(schema, changed(data, changes) if changes else data, path), path


def figure_value(figure: Figure | None, otherwise: float) -> float:
    """What a profile says, or what holds where it says nothing."""
    return otherwise if figure is None else figure.value


def figure_values(table: Any, scale: float = 1.0) -> dict[str, float]:
    """The figures of a small table that are given, scaled to SI."""
    given: dict[str, Figure | None] = {field: getattr(table, field) for field in type(table).model_fields}
    return {field: figure.value * scale for field, figure in given.items() if figure is not None}


def sources_of(file: Sourced) -> dict[str, str]:
    """Each figure's name with the text of its source."""
    from planner.hardware.schema import source_texts

    return source_texts(file)
