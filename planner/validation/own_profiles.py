"""Profiles of one's own in the place of the shipped ones of the same names."""

from __future__ import annotations

from pathlib import Path

from planner.errors import InputError
from planner.files import is_path
from planner.hardware import load_cluster, load_framework
from planner.validation.predict import LoadCluster, LoadFramework

__all__ = ["loaders"]


def loaders(folder: Path | None) -> tuple[LoadCluster, LoadFramework]:
    """How to load clusters and frameworks by the names that runs say: from a folder where it has one, else the shipped.

    folder: laid out as `hardware_profiles/`, as `planner calibrate --from` writes it; None: the shipped ones only.

    Raises:
        InputError: the folder has no profiles.
    """
    if folder is None:
        return load_cluster, load_framework
    kinds = ("clusters", "frameworks")
    own = {(kind, path.stem): str(path) for kind in kinds for path in sorted((folder / kind).glob("*.toml"))}
    if not own:
        raise InputError(f"{folder}: no profiles in it; allowed: a folder with clusters/*.toml or frameworks/*.toml")

    def named(kind: str, name: str) -> str:
        return own.get((kind, Path(name).stem if is_path(name) else name), name)

    return lambda name: load_cluster(named("clusters", name)), lambda name: load_framework(named("frameworks", name))
