"""Hardware and framework profiles by name or by file, checked and turned into plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import FileFormatError, UnknownNameError
from planner.files import is_path
from planner.hardware.changes import Changes, under
from planner.hardware.frameworks import framework_figures, load_framework
from planner.hardware.read import (
    accelerator_names,
    cluster_names,
    figure_value,
    figure_values,
    framework_names,
    link_names,
    profile_names,
    profile_table,
    read_profile,
    sources_of,
)
from planner.hardware.types import Accelerator, Cluster, Efficiency, Framework, Link, Unstated
from planner.units import GBIT, GIB, GIGA, MICRO, TERA

if TYPE_CHECKING:
    from planner.hardware.schema import Sourced

__all__ = [
    "Accelerator",
    "Cluster",
    "Efficiency",
    "Framework",
    "Link",
    "Unstated",
    "accelerator_names",
    "cluster_figures",
    "cluster_names",
    "cluster_with_network",
    "framework_figures",
    "framework_names",
    "link_names",
    "load_accelerator",
    "load_cluster",
    "load_efficiency",
    "load_framework",
    "load_link",
    "profile_names",
    "profile_table",
]


def load_efficiency(name: str, *, beside: Path | None = None, changes: Changes | None = None) -> Efficiency:
    """An architecture's efficiency by name or TOML path (relative to `beside`).

    Raises:
        UnknownNameError, FileFormatError: no such profile, or one that does not validate.
    """
    from planner.hardware.schema import EfficiencyFile

    f, _ = read_profile("efficiency", EfficiencyFile, name, beside, changes)
    launch_us = figure_value(f.expert_product_us, 0.0)
    return Efficiency(
        name=f.name,
        matrix_fraction=figure_values(f.matrix_fraction),
        tile_rows=f.tile_rows.value,
        tile_columns=f.tile_columns.value,
        depth_half=f.depth_half.value,
        kernel_latency_s=f.kernel_latency_us.value * MICRO,
        expert_product_s=launch_us * MICRO,
        wide_expert_product_s=figure_value(f.wide_expert_product_us, launch_us) * MICRO,
        memory_fraction=f.memory_fraction.value,
        flash_forward=figure_values(f.flash_forward),
        flash_backward=figure_values(f.flash_backward),
        flash_half_tokens={} if f.flash_half_tokens is None else figure_values(f.flash_half_tokens),
        flash_tail_waves={} if f.flash_tail_waves is None else figure_values(f.flash_tail_waves),
        flash_head_step=figure_value(f.flash_head_step, 1.0),
        rate_spread=figure_value(f.rate_spread, 0.0),
        attention_matrix_fraction=f.attention_matrix_fraction.value,
        scan_matrix_fraction=figure_value(f.scan_matrix_fraction, f.attention_matrix_fraction.value),
        aligned_fraction={} if f.aligned_fraction is None else figure_values(f.aligned_fraction),
        sources=sources_of(f),
    )


def load_accelerator(name: str, *, beside: Path | None = None, changes: Changes | None = None) -> Accelerator:
    """An accelerator by name or TOML path (relative to `beside`).

    Raises:
        UnknownNameError: no such accelerator or efficiency.
        FileFormatError: a file that does not validate, or a peak whose precision its efficiency lacks.
    """
    from planner.hardware.schema import AcceleratorFile

    f, path = read_profile("accelerators", AcceleratorFile, name, beside, changes)
    efficiency = load_efficiency(f.efficiency, beside=path.parent, changes=under(changes, "efficiency"))
    peak_flops = figure_values(f.peak_tflops, TERA)
    for precision in peak_flops:
        if precision not in efficiency.matrix_fraction:
            known = ", ".join(efficiency.matrix_fraction)
            fault = f"has no matrix_fraction in efficiency {efficiency.name!r}; allowed: {known}"
            raise FileFormatError(f"{path}: field peak_tflops.{precision} {fault}")
    return Accelerator(
        name=f.name,
        efficiency=efficiency,
        peak_flops=peak_flops,
        num_compute_units=int(f.num_compute_units.value),
        memory_bytes=f.memory_gib.value * GIB,
        memory_bandwidth_bytes_per_s=f.memory_bandwidth_gbyte_per_s.value * GIGA,
        power_w=f.power_w.value,
        price_per_hour=None if f.price_usd_per_hour is None else f.price_usd_per_hour.value,
        sources=sources_of(f),
    )


def load_link(name: str, *, beside: Path | None = None, changes: Changes | None = None) -> Link:
    """A link by name or TOML path; raises as `load_efficiency`."""
    from planner.hardware.schema import LinkFile

    f, _ = read_profile("links", LinkFile, name, beside, changes)
    if f.bandwidth_gbit_per_s is not None:
        bandwidth = f.bandwidth_gbit_per_s.value * GBIT
    else:
        assert f.bandwidth_gbyte_per_s is not None
        bandwidth = f.bandwidth_gbyte_per_s.value * GIGA
    return Link(
        name=f.name,
        kind=f.kind,
        bandwidth_bytes_per_s=bandwidth,
        latency_s=f.latency_us.value * MICRO,
        ring_step_s=figure_value(f.ring_step_us, f.latency_us.value) * MICRO,
        fraction=f.fraction.value,
        send_fraction=f.send_fraction.value,
        small_latency_s=None if f.small_latency_us is None else f.small_latency_us.value * MICRO,
        small_fraction=None if f.small_fraction is None else f.small_fraction.value,
        sources=sources_of(f),
    )


def load_cluster(name: str, *, network: str | None = None, changes: Changes | None = None) -> Cluster:
    """A cluster by name or TOML path, over another network if one is named; raises as `load_efficiency`.

    changes: other figures than the files have, such as `{"accelerator": {"memory_gib": 141.0}, "gpus_per_node": 72}`.
    """
    from planner.hardware.schema import ClusterFile

    f, path = read_profile("clusters", ClusterFile, name, None, changes)
    beside = path.parent
    other = network is not None
    cluster = Cluster(
        name=f.name,
        accelerator=load_accelerator(f.accelerator, beside=beside, changes=under(changes, "accelerator")),
        node_link=load_link(f.node_link, beside=beside, changes=under(changes, "node_link")),
        network=load_link(f.network, beside=beside, changes=None if other else under(changes, "network")),
        host_link=load_link(f.host_link, beside=beside, changes=under(changes, "host_link")),
        gpus_per_node=int(f.gpus_per_node.value),
        nics_per_node=int(f.nics_per_node.value),
        storage_bandwidth_bytes_per_s=f.storage_bandwidth_gbyte_per_s.value * GIGA,
        max_gpus=None if f.max_gpus is None else int(f.max_gpus.value),
        host_memory_bytes=None if f.host_memory_gib is None else f.host_memory_gib.value * GIB,
        framework=_framework_reference(f.framework, beside),
        sources=sources_of(f),
    )
    if network is None:
        return cluster
    link = load_link(network, changes=under(changes, "network"))
    return replace(cluster, name=f"{cluster.name} over {network}", network=link)


def _framework_reference(name: str, beside: Path) -> str:
    """A cluster's default framework, such that it loads from anywhere: a known name, or a path from here."""
    if is_path(name):
        return str(beside / name)
    if name not in framework_names():
        raise UnknownNameError("framework", name, framework_names(), "Or give a TOML file of your own.")
    return name


def cluster_with_network(cluster: Cluster | str, network: str) -> Cluster:
    """The same nodes over another network, by name or TOML path; raises as `load_cluster`."""
    nodes = load_cluster(cluster) if isinstance(cluster, str) else cluster
    return replace(nodes, name=f"{nodes.name} over {network}", network=load_link(network))


def cluster_figures(name: str, *, network: str | None = None) -> dict[str, float]:
    """Every figure behind a cluster by its dotted name, in its profile's units: `accelerator.memory_gib`, and so on.

    Raises as `load_efficiency`.
    """
    from planner.hardware.schema import AcceleratorFile, ClusterFile, EfficiencyFile, LinkFile, figures

    f, path = read_profile("clusters", ClusterFile, name, None)
    accelerator, at = read_profile("accelerators", AcceleratorFile, f.accelerator, path.parent)
    efficiency, _ = read_profile("efficiency", EfficiencyFile, accelerator.efficiency, at.parent)
    wire = f.network if network is None else network
    links = {
        "node_link": read_profile("links", LinkFile, f.node_link, path.parent)[0],
        "network": read_profile("links", LinkFile, wire, path.parent if network is None else None)[0],
        "host_link": read_profile("links", LinkFile, f.host_link, path.parent)[0],
    }
    files: Mapping[str, Sourced] = {"": f, "accelerator": accelerator, "accelerator.efficiency": efficiency, **links}
    return {f"{p}.{k}".lstrip("."): figure.value for p, file in files.items() for k, figure in figures(file)}
