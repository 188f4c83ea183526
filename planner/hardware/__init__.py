"""Hardware and framework profiles by name or by file, checked and turned into plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from planner.base.errors import FileFormatError, InputError, UnknownNameError, shown
from planner.base.files import is_path
from planner.hardware.declared import OR_NEITHER
from planner.hardware.framework import Framework
from planner.hardware.machines import Accelerator, Cluster, Efficiency, Link
from planner.hardware.read import (
    WITH,
    Changes,
    framework_names,
    load_record,
    nested,
    profile_figures,
    profile_names,
    profile_table,
    read_profile,
    under,
)


def load_efficiency(name: str, *, beside: Path | None = None, changes: Changes | None = None) -> Efficiency:
    """An architecture's efficiency by name or TOML path (relative to `beside`).

    Raises UnknownNameError, FileFormatError for a profile that is unknown, or does not validate.
    """
    return load_record(Efficiency, read_profile("efficiency", Efficiency, name, beside, changes)[0])


def load_framework(name: str, *, beside: Path | None = None, changes: Changes | None = None) -> Framework:
    """A framework profile by name or TOML path; raises as `load_efficiency`."""
    own = name if is_path(name) else None
    return load_record(Framework, read_profile("frameworks", Framework, name, beside, changes)[0], own_file=own)


def load_accelerator(name: str, *, beside: Path | None = None, changes: Changes | None = None) -> Accelerator:
    """An accelerator by name or TOML path (relative to `beside`).

    Raises UnknownNameError for an unknown accelerator or efficiency; FileFormatError for a file that does not validate,
    or a peak whose precision its efficiency lacks.
    """
    f, path = read_profile("accelerators", Accelerator, name, beside, changes, ("efficiency",))
    efficiency = load_efficiency(f["efficiency"], beside=path.parent, changes=under(changes, "efficiency"))
    accelerator = load_record(Accelerator, f, efficiency=efficiency)
    for precision in accelerator.peak_flops:
        if precision not in efficiency.matrix_fraction:
            known = ", ".join(efficiency.matrix_fraction)
            fault = f"has no matrix_fraction in efficiency {efficiency.name!r}; allowed: {known}"
            raise FileFormatError(f"{path}: field peak_tflops.{precision} {fault}")
    return accelerator


def load_link(name: str, *, beside: Path | None = None, changes: Changes | None = None) -> Link:
    """A link by name or TOML path; raises as `load_efficiency`.

    A ring's steps change with another latency, unless they are given too.
    """
    link: Link = load_record(Link, read_profile("links", Link, name, beside, changes)[0])
    if "latency_us" not in (changes or {}) or "ring_step_us" in (changes or {}):
        return link
    own = load_link(name, beside=beside)
    late = own.stretched_by(link.latency_s / own.latency_s if own.latency_s else 1.0)
    return replace(
        link, ring_step_s=late.ring_step_s, small_latency_s=late.small_latency_s, stretched=late.stretched
    )  # fmt: skip


INSIDE = ("nvlink", "pcie", "memory")
"""Kinds of links in a node."""
CLUSTER_NAMES = ("accelerator", "node_link", "network", "host_link", "framework")
"""Fields of a cluster's profile that name other profiles."""


def load_cluster(name: str, *, network: str | None = None, changes: Changes | None = None) -> Cluster:
    """A cluster by name or TOML path, over another network if one is named; raises as `load_efficiency`.

    changes: other figures than the files have, such as `{"accelerator": {"memory_gib": 141.0}, "gpus_per_node": 72}`.
    """
    f, path = read_profile("clusters", Cluster, name, None, changes, CLUSTER_NAMES)
    beside = path.parent
    own = None if network is not None else under(changes, "network")
    cluster = load_record(
        Cluster, f,
        accelerator=load_accelerator(f["accelerator"], beside=beside, changes=under(changes, "accelerator")),
        node_link=load_link(f["node_link"], beside=beside, changes=under(changes, "node_link")),
        network=load_link(f["network"], beside=beside, changes=own),
        host_link=load_link(f["host_link"], beside=beside, changes=under(changes, "host_link")),
        framework=_framework_reference(f["framework"], beside), own_file=name if is_path(name) else None,
    )  # fmt: skip
    if network is None:
        return cluster
    link: Link | None = None
    with suppress(UnknownNameError):
        link = load_link(network, changes=under(changes, "network"))
    if link is None or (link.kind in INSIDE and not is_path(network)):
        raise UnknownNameError("network", network, networks())
    return replace(cluster, name=f"{cluster.name} over {network if is_path(network) else link.name}", network=link)


def networks() -> list[str]:
    """Names of the links that join nodes."""
    return [name for name in profile_names("links") if load_link(name).kind not in INSIDE]


def _framework_reference(name: str, beside: Path) -> str:
    """A cluster's default framework, such that it loads from anywhere: a known name, or a path from here."""
    if is_path(name):
        return str(beside / name)
    if name not in (known := profile_names("frameworks")):
        raise UnknownNameError("framework", name, known, "Or give a TOML file of your own.")
    return name


def framework_on(cluster: Cluster, name: str | None = None) -> Framework:
    """A framework by name, else the cluster's own, with the figures that were given with the cluster."""
    return load_framework(name or cluster.framework, changes=nested(cluster.framework_figures.items()))


def changed_cluster(name: str, figures: Mapping[str, float], *, network: str | None = None) -> Cluster:
    """A cluster with other figures than its profile's, by dotted name in the profile's units; its name says them.

    Those of `framework.` are for the framework that is used on it (`framework_on`).

    Raises InputError if a figure is unknown or out of range; UnknownNameError and FileFormatError as `load_cluster`.
    """
    cluster, lonely = load_cluster(name, network=network), ""
    for figure, value in figures.items():
        among = isinstance(value, (int, float)) and not isinstance(value, bool)
        changes = nested([(figure, value)]) if among else {}
        try:
            if figure.startswith("framework."):
                load_framework(cluster.framework, changes=under(changes, "framework"))
            else:
                load_cluster(name, network=network, changes=changes)
            fault = "" if among else "allowed: a number"
        except FileFormatError as error:
            if "unknown field" in str(error):
                known = [f"framework.{key}" for key in framework_figures(cluster.framework)]
                raise UnknownNameError("figure", figure, [*cluster_figures(name, network=network), *known]) from None
            fault = re.split("; |: (?=allowed)", str(error))[-1]
        told = f"figure {shown(figure)} is {shown(value)}; {fault}"
        if fault.endswith(OR_NEITHER):  # the figure that stands beside it may be given too
            lonely = lonely or told
        elif fault:
            raise InputError(told)
    if not figures:
        return cluster
    said = ", ".join(f"{figure}={value:.12g}" for figure, value in figures.items())
    own = {key.removeprefix("framework."): x for key, x in figures.items() if key.startswith("framework.")}
    others = [(key, x) for key, x in figures.items() if not key.startswith("framework.")]
    try:
        load_framework(cluster.framework, changes=nested(own.items()))
        other = load_cluster(name, network=network, changes=nested(others))
    except FileFormatError as error:
        raise InputError(lonely or str(error)) from None
    return replace(other, name=f"{cluster.name}{WITH}{said}", framework_figures=own)


def cluster_figures(name: str, *, network: str | None = None) -> dict[str, float]:
    """Every figure behind a cluster by its dotted name, in its profile's units: `accelerator.memory_gib`, and so on.

    Raises as `load_efficiency`.
    """
    f, path = read_profile("clusters", Cluster, name, None, None, CLUSTER_NAMES)
    accelerator, at = read_profile("accelerators", Accelerator, f["accelerator"], path.parent, None, ("efficiency",))
    efficiency, _ = read_profile("efficiency", Efficiency, accelerator["efficiency"], at.parent)
    wire, beside = (f["network"], path.parent) if network is None else (network, None)
    files = {
        "": (Cluster, f), "accelerator": (Accelerator, accelerator), "accelerator.efficiency": (Efficiency, efficiency),
        "node_link": (Link, read_profile("links", Link, f["node_link"], path.parent)[0]),
        "network": (Link, read_profile("links", Link, wire, beside)[0]),
        "host_link": (Link, read_profile("links", Link, f["host_link"], path.parent)[0]),
    }  # fmt: skip
    return {f"{p}.{k}".lstrip("."): value for p, of in files.items() for k, value in profile_figures(*of).items()}


def framework_figures(name: str) -> dict[str, float]:
    """Every figure of a framework profile by its name, in the profile's units; raises as `load_efficiency`."""
    return profile_figures(Framework, read_profile("frameworks", Framework, name, None)[0])
