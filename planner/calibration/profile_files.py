"""A fit as profile files: the clusters of the runs, and of what they name the files that the fit changed.

The folder is laid out as `hardware_profiles/`; files that it doesn't hold are the shipped ones. A profile's text has
plain fields, figures with their sources, tables of figures, and the sources that are used.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.base.errors import InputError, OutputError
from planner.base.files import is_path, make_folder, write_text
from planner.calibration.figures import FittedFigure
from planner.hardware import profile_table
from planner.hardware.read import used_sources

LINKS = ("node_link", "network", "host_link")


@dataclass(frozen=True, kw_only=True)
class _Changes:
    """The fitted figures of each profile by folder and name, and the sentence that says where they come from."""

    figures: Sequence[tuple[FittedFigure, float, float]]
    about: str
    own: Callable[[str, dict[str, Any]], dict[str, Any]]
    texts: dict[str, str] = field(default_factory=dict)

    def of(self, folder: str, name: str) -> dict[tuple[str, ...], tuple[float, float]]:
        """Value and standard error in the profile's units, by the path in its tables."""
        out: dict[tuple[str, ...], tuple[float, float]] = {}
        for f, value, error in self.figures:
            if f.folder == folder and name in f.names:
                pair = (float(value) / f.profile_unit, float(error) / f.profile_unit)
                out |= {(f.profile_field, key): pair for key in f.keys} if f.keys else {(f.profile_field,): pair}
        return out

    def place(self, folder: str, reference: str, beside: Path) -> str:
        """The name to write in the new folder for a reference: its own copy, or the shipped profile."""
        data, path = profile_table(folder, reference, beside)
        data = _with_references(self, folder, self.own(folder, data), path.parent)
        changes = self.of(folder, str(data.get("name")))
        if changes:
            data = _with_figures(data, changes, self.about)
        elif not is_path(reference) and folder not in ("accelerators", "clusters"):
            return reference
        return self.add(folder, Path(reference).stem if is_path(reference) else reference, data)

    def add(self, folder: str, stem: str, data: Mapping[str, Any]) -> str:
        """Keep a file's text; two different ones can't have one name."""
        text, where = profile_text(data), f"{folder}/{stem}.toml"
        if self.texts.setdefault(where, text) != text:
            raise InputError(f"two profiles would both be written to {where}; allowed: files with names of their own")
        return f"../{where}"


def fitted_profiles(
    figures: Sequence[tuple[FittedFigure, float, float]],
    clusters: Iterable[str],
    frameworks: Iterable[str],
    about: str,
    own: Callable[[str, dict[str, Any]], dict[str, Any]] = lambda _, data: data,
) -> dict[str, str]:
    """Texts of the profiles by path in the folder, each behind those that it names, as they should be written.

    figures: each with its value and standard error, SI. clusters, frameworks: names or paths, as the runs say them.
    about: what was fitted to what and when; each file adds its figures' standard errors. own: other changes to a
    profile's tables, by folder.

    Raises InputError if two profiles of one's own have one file name, FileFormatError if a profile can't be read.
    """
    changes = _Changes(figures=figures, about=about, own=own)
    for name in clusters:
        changes.place("clusters", name, Path())
    for name in frameworks:
        changes.place("frameworks", name, Path())
    return changes.texts


def check_folder(folder: Path) -> None:
    """Raises OutputError if the folder can't be made or written; asked before a long fit whose result would be lost."""
    at = folder
    while not at.exists() and at != at.parent:
        at = at.parent
    if not at.is_dir():
        raise OutputError(f"{folder}: can't be made: {at} is no folder")
    if not os.access(at, os.W_OK):
        raise OutputError(f"{folder}: can't be made: permission denied in {at}")


def write_profiles(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write them; each file whole or not at all. Raises OutputError if the folder or a file can't be written."""
    for where in texts:
        make_folder((folder / where).parent)
    for where, text in texts.items():
        write_text(folder / where, text)
    return [folder / where for where in texts]


def _with_references(changes: _Changes, folder: str, data: dict[str, Any], beside: Path) -> dict[str, Any]:
    """The tables of a cluster or accelerator, naming the new folder's files."""
    named = {
        "clusters": {"accelerator": "accelerators", **dict.fromkeys(LINKS, "links"), "framework": "frameworks"},
        "accelerators": {"efficiency": "efficiency"},
    }.get(folder, {})
    return data | {key: changes.place(kind, data[key], beside) for key, kind in named.items()}


def _with_figures(
    data: dict[str, Any], changes: Mapping[tuple[str, ...], tuple[float, float]], about: str
) -> dict[str, Any]:
    """A profile's tables with fitted figures and their source."""
    others = {
        key: {k: v for k, v in value.items() if (key, k) not in changes}
        for key, value in data.items()
        if isinstance(value, Mapping) and (key,) not in changes
    }
    kept = used_sources(others)
    source = next(name for i in range(1, 100) if (name := f"calibration{i if i > 1 else ''}") not in kept)
    errors = ", ".join(f"{'.'.join(path)} +- {error:.2g}" for path, (_, error) in changes.items())
    out = data | {"sources": data["sources"] | {source: f"{about}; standard errors: {errors}"}}
    for path, (value, _) in changes.items():
        figure = {"value": value, "source": source}
        out[path[0]] = figure if len(path) == 1 else out[path[0]] | {path[1]: figure}
    return out


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
