"""Profiles from files: by name or path, over their base, checked; and the figures in them.

A sweep, or a question with a figure of its own, changes what the files say before anything is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from planner.base.errors import FileFormatError, UnknownNameError, shown
from planner.base.files import is_path, read_toml, shipped_folder, validate
from planner.base.lookup import network_name, same_name, servers_of
from planner.hardware.declared import Declared, declared

Changes = Mapping[str, Any]
"""Fields and their new values, nested like the files that they stand in: a number for a figure, in the profile's unit;
text or a boolean for a plain field; a table for a file that is named there, or for a table of figures."""

ORIGIN = "changed"
WITH = " with "
"""In a cluster's name: between the profile's name, and figures that aren't the profile's."""


def changed(data: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """A profile's tables with the changes in place; those of files that it names are left to these."""
    out = _replaced(data, changes)
    used = used_sources(out)
    known = {key: text for key, text in source_table(data).items() if key in used}
    out["sources"] = known | ({ORIGIN: "changed from the profile's figure"} if ORIGIN in used else {})
    return out


def nested(figures: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Changes from dotted names, such as `accelerator.memory_gib`."""
    tree: dict[str, Any] = {}
    for name, value in figures:
        *folders, leaf = name.split(".")
        table = tree
        for folder in folders:
            table = table.setdefault(folder, {})
        table[leaf] = value
    return tree


def under(changes: Changes | None, field: str) -> Changes | None:
    """The changes to the file that a field names."""
    inner = (changes or {}).get(field)
    return inner if isinstance(inner, Mapping) else None


def source_table(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The sources of a profile that is not checked yet; none where the field holds something else than a table."""
    sources = data.get("sources")
    return sources if isinstance(sources, Mapping) else {}


def _replaced(data: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    out = dict(data)
    for field, value in changes.items():
        if isinstance(value, Mapping):
            if not isinstance(data.get(field), str):
                out[field] = _replaced(data.get(field, {}), value)
        elif isinstance(value, (str, bool)):
            out[field] = value
        else:
            out[field] = {"value": value, "source": ORIGIN}
    return out


def used_sources(table: Mapping[str, Any]) -> set[str]:
    """Keys of the sources that the figures of a table name."""
    found = set()
    for value in table.values():
        if isinstance(value, Mapping) and "value" in value:
            if isinstance(key := value.get("source"), str):
                found.add(key)
        elif isinstance(value, Mapping):
            found |= used_sources(value)
    return found


R = TypeVar("R")


def profile_names(kind: str) -> list[str]:
    """Names of the shipped profiles of a kind: accelerators, efficiency, links, clusters or frameworks."""
    return sorted(_shipped(kind))


@cache
def _shipped(kind: str) -> dict[str, Path]:
    return {p.stem: p for p in (shipped_folder("hardware_profiles") / kind).glob("*.toml")}


_read_once = cache(read_toml)
"""A shipped profile's tables, which nothing changes; a file of one's own may be another the next time."""


def framework_names() -> dict[str, Path]:
    """The file of every framework: of each shipped profile, and of those that do as one of them does (`also`)."""
    files = _shipped("frameworks")
    return {other: path for path in files.values() for other in _read_once(path).get("also", ())} | files


def _path(kind: str, name: str, beside: Path | None) -> Path:
    """The path of a profile: a file of one's own (relative to `beside`), or a shipped one by its name."""
    if is_path(name):
        path = Path(name)
        return path if beside is None or path.is_absolute() else beside / path
    files = _shipped(kind)
    if name in files:
        return files[name]
    known = profile_names(kind)
    files = framework_names() if kind == "frameworks" else files
    found = same_name(network_name(name) if kind == "links" else name, files)
    if found is None and kind == "clusters":
        servers = servers_of(name, known, lambda cluster: _read_once(files[cluster]).get("accelerator"))
        if len(servers) == 1:
            return files[servers[0]]
        known = servers or known
    if found is None:
        remedy = f"{'All: planner clusters. ' * (kind == 'clusters')}Or give a TOML file of your own."
        raise UnknownNameError(kind.removesuffix("s"), name, known, remedy)
    return files[found]


def profile_table(
    kind: str, name: str, beside: Path | None, above: tuple[Path, ...] = ()
) -> tuple[dict[str, Any], Path]:
    """A profile's tables, over those of its base where it names one, and its file.

    Raises UnknownNameError if no shipped profile has the name; FileFormatError if it can't be read, or stands on
    itself.
    """
    path = _path(kind, name, beside)
    data = read_toml(path) if is_path(name) else _read_once(path)
    if "base" not in data:
        return data, path
    base = data["base"]
    if not isinstance(base, str) or path in above:
        fault = "stands on itself" if path in above else f"is {shown(base)}"
        raise FileFormatError(f"{path}: field base {fault}; allowed: another profile by name or file")
    under_it, _ = profile_table(kind, base, path.parent, (*above, path))
    # A file without a name has its own: under its base's it would pass for that.
    out, below = {**over_base(path, data, under_it), "name": data.get("name", path.stem)}, under_it.get("bases", [])
    if kind == "frameworks" and "bases" not in data and isinstance(below, list):  # else the schema names the fault
        out["bases"] = [under_it.get("name"), *below]
    return out, path


def read_profile(
    kind: str,
    record: type,
    name: str,
    beside: Path | None,
    changes: Changes | None = None,
    references: tuple[str, ...] = (),
) -> tuple[Any, Path]:
    """The fields of a record's profile, checked, with other figures where `changes` has some; and its file.

    references: fields that name other profiles.

    Raises UnknownNameError for an unknown profile, FileFormatError for one that does not validate.
    """
    from planner.hardware.schema import schema

    data, path = profile_table(kind, name, beside)
    return validate(schema(record, *references), changed(data, changes) if changes else data, path), path


def load_record(record: Callable[..., R], file: Mapping[str, Any], **others: Any) -> R:
    """A record from its profile's fields, in SI units; others: fields that are records of their own, or names.

    Each figure has its source; one that the profile does not state has the declared default, and says so.
    """
    from planner.hardware.schema import source_texts

    values: dict[str, Any] = {"name": file["name"], **others}
    sources = source_texts(file)
    for f in fields(record):  # type: ignore[arg-type]
        d = f.metadata.get("declared")
        if "setting" in f.metadata:
            given = file[f.name]
            values[f.name] = f.metadata["setting"](**given) if isinstance(given, dict) else given
        elif d is not None:
            values[f.name], told = _figure(file, f, d, values)
            sources |= told
    return record(**values, sources=sources)


def _figure(file: Mapping[str, Any], f: Field[Any], d: Declared, known: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    """A figure's value, and the source of its default where the profile does not state it."""
    for key, scale in d.names(f.name).items():
        given = file[key]
        if given is None:
            continue
        if d.keys:
            return {name: given[name]["value"] * scale for name in d.keys if given[name] is not None}, {}
        return _typed(f, d, given["value"] * scale), {}
    key, scale = next(iter(d.names(f.name).items()))
    if d.like:
        return known[d.like], {key: f"default: as {d.like}"}
    if d.default is not None:
        return _typed(f, d, d.usual(known) * scale), {key: f"default: {d.because}"}
    return {} if d.keys else None, {}


def _typed(f: Field[Any], d: Declared, value: float) -> Any:
    return value > 0 if d.flag else int(value) if str(f.type).startswith("int") else value


def profile_figures(record: type, file: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a checked profile by dotted name, in its units; of those that it does not state the defaults."""
    from planner.hardware.schema import figures

    out = {key: figure["value"] for key, figure in figures(file)}
    for name, (_, d) in declared(record).items():
        keys = d.names(name)
        if d.default is not None and all(file[key] is None for key in keys):
            out[next(iter(keys))] = d.usual(out)
    return out


def over_base(path: Path, data: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """The base's tables with those of the file over them, figure by figure; sources that no figure uses any more go.

    Raises FileFormatError if the file gives another text to a source of the base.
    """
    own, inherited = source_table(data), source_table(base)
    for key in own:
        if own[key] != inherited.get(key, own[key]):
            raise FileFormatError(f"{path}: field sources.{key} is another in its base; allowed: a key of its own")
    base = {field: value for field, value in base.items() if field not in ("fitted", "also")}
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
