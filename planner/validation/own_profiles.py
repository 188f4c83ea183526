"""Profiles of one's own in the place of the shipped ones of the same names."""

from __future__ import annotations

from pathlib import Path

from planner.base.errors import InputError
from planner.base.files import is_path
from planner.hardware import load_cluster, load_framework
from planner.validation.predict import LoadCluster, LoadFramework


def loaders(folder: Path | None) -> tuple[LoadCluster, LoadFramework]:
    """How to load clusters and frameworks by the names that runs say: from a folder where it has one, else the shipped.

    folder: laid out as `hardware_profiles/`, as `planner calibrate --from` writes it; None: the shipped ones only.

    Raises InputError if the folder has no profiles, or one that does not load: all are read, whatever the runs name.
    """
    if folder is None:
        return load_cluster, load_framework
    clusters, frameworks = (sorted((folder / kind).glob("*.toml")) for kind in ("clusters", "frameworks"))
    if not clusters and not frameworks:
        raise InputError(f"{folder}: no profiles in it; allowed: a folder with clusters/*.toml or frameworks/*.toml")
    own_clusters = {path.stem: load_cluster(str(path)) for path in clusters}
    own_frameworks = {path.stem: load_framework(str(path)) for path in frameworks}
    return (
        lambda name: own_clusters.get(_stem(name)) or load_cluster(name),
        lambda name: own_frameworks.get(_stem(name)) or load_framework(name),
    )


def _stem(name: str) -> str:
    """A profile's name, by which one of one's own takes its place, also where it is named by a path."""
    return Path(name).stem if is_path(name) else name
