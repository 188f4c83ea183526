"""A cluster of groups of machines, which differ: a TOML file with `[[groups]]`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from planner.base.errors import FileFormatError
from planner.base.files import read_toml, validate
from planner.base.tables import StrictTable
from planner.hardware import Cluster, Link, load_cluster, load_link

AMD = "cdna"
"""How the architectures of AMD's GPUs begin."""


class GroupFile(StrictTable):
    """A table `[[groups]]`: a cluster (a shipped name or a file), of which so many accelerators."""

    cluster: Annotated[str, Field(min_length=1)]
    gpus: Annotated[int, Field(ge=1, le=10_000_000, strict=True)]
    network: str | None = None


class GroupsFile(StrictTable):
    """A file of groups; name: None is the file's own. network: the link between them, on each group's NICs."""

    name: Annotated[str, Field(min_length=1)] | None = None
    network: str | None = None
    groups: Annotated[list[GroupFile], Field(min_length=1, max_length=8)]


@dataclass(frozen=True, kw_only=True)
class MachineGroup:
    """Machines that are alike, and how many accelerators of them."""

    cluster: Cluster
    gpus: int


@dataclass(frozen=True, kw_only=True)
class MixedCluster:
    """Groups of machines, in an order that does not depend on the file's; network: between them, None the slower's."""

    name: str
    groups: tuple[MachineGroup, ...]
    network: Link | None


def load_mixed(path: str) -> MixedCluster:
    """The groups of a file; those of the same cluster and network are one group.

    Raises FileFormatError if the file can't be read, parsed or validated, or joins makers whose GPUs have no collective
    library in common; UnknownNameError for an unknown cluster or link.
    """
    file = validate(GroupsFile, read_toml(Path(path)), Path(path))
    gpus: Counter[tuple[str, str | None]] = Counter()
    for g in file.groups:
        gpus[g.cluster, g.network] += g.gpus
    groups = [MachineGroup(cluster=load_cluster(c, network=n), gpus=gpus[c, n]) for c, n in gpus]
    groups.sort(key=lambda g: (-g.cluster.accelerator.memory_bytes, g.cluster.name, g.cluster.network.name, g.gpus))
    amd = [g.cluster.name for g in groups if g.cluster.accelerator.efficiency.name.startswith(AMD)]
    if 0 < len(amd) < len(groups):
        others = [g.cluster.name for g in groups if g.cluster.name not in amd]
        raise FileFormatError(
            f"{path}: groups join {amd[0]} and {others[0]}; allowed: AMD's GPUs (RCCL) or others' (NCCL), in one job"
        )
    return MixedCluster(
        name=file.name or Path(path).stem,
        groups=tuple(groups),
        network=None if file.network is None else load_link(file.network),
    )
