"""Hardware and framework profiles by name or by file, checked and turned into plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from planner.errors import FileFormatError, UnknownNameError, shown
from planner.files import is_path, read_toml, shipped_folder, validate
from planner.hardware.base import over_base
from planner.hardware.changes import Changes, changed, under
from planner.hardware.types import Accelerator, Cluster, Efficiency, Framework, Link
from planner.units import GBIT, GIB, GIGA, MIB, TERA

if TYPE_CHECKING:
    from planner.hardware.schema import Figure, Sourced

__all__ = [
    "Accelerator",
    "Cluster",
    "Efficiency",
    "Framework",
    "Link",
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

F = TypeVar("F", bound="Sourced")
MICRO = 1e-6
# Of a logit, forward and backward, where a profile doesn't say: Megatron-LM's passes.
EAGER_ENTROPY_BYTES = (38.0, 14.0)


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
    if name not in profile_names(kind):
        remedy = "Or give a TOML file of your own."
        raise UnknownNameError(kind.removesuffix("s"), name, profile_names(kind), remedy)
    return shipped_folder("hardware_profiles") / kind / f"{name}.toml"


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


def _read(kind: str, schema: type[F], name: str, beside: Path | None, changes: Changes | None = None) -> tuple[F, Path]:
    data, path = profile_table(kind, name, beside)
    return validate(schema, changed(data, changes) if changes else data, path), path


def _sources(file: Sourced) -> dict[str, str]:
    from planner.hardware.schema import source_texts

    return source_texts(file)


def _value(figure: Figure | None, otherwise: float) -> float:
    """What a profile says, or what holds where it says nothing."""
    return otherwise if figure is None else figure.value


def _values(table: Any, scale: float = 1.0) -> dict[str, float]:
    """The figures of a small table that are given, scaled to SI."""
    given: dict[str, Figure | None] = {field: getattr(table, field) for field in type(table).model_fields}
    return {field: figure.value * scale for field, figure in given.items() if figure is not None}


def load_efficiency(name: str, *, beside: Path | None = None, changes: Changes | None = None) -> Efficiency:
    """An architecture's efficiency by name or TOML path (relative to `beside`).

    Raises:
        UnknownNameError, FileFormatError: no such profile, or one that does not validate.
    """
    from planner.hardware.schema import EfficiencyFile

    f, _ = _read("efficiency", EfficiencyFile, name, beside, changes)
    return Efficiency(
        name=f.name,
        matrix_fraction=_values(f.matrix_fraction),
        tile_rows=f.tile_rows.value,
        tile_columns=f.tile_columns.value,
        depth_half=f.depth_half.value,
        kernel_latency_s=f.kernel_latency_us.value * MICRO,
        memory_fraction=f.memory_fraction.value,
        flash_forward=_values(f.flash_forward),
        flash_backward=_values(f.flash_backward),
        flash_half_tokens={} if f.flash_half_tokens is None else _values(f.flash_half_tokens),
        flash_tail_waves={} if f.flash_tail_waves is None else _values(f.flash_tail_waves),
        flash_head_step=_value(f.flash_head_step, 1.0),
        rate_spread=_value(f.rate_spread, 0.0),
        attention_matrix_fraction=f.attention_matrix_fraction.value,
        aligned_fraction={} if f.aligned_fraction is None else _values(f.aligned_fraction),
        sources=_sources(f),
    )


def load_accelerator(name: str, *, beside: Path | None = None, changes: Changes | None = None) -> Accelerator:
    """An accelerator by name or TOML path (relative to `beside`).

    Raises:
        UnknownNameError: no such accelerator or efficiency.
        FileFormatError: a file that does not validate, or a peak whose precision its efficiency lacks.
    """
    from planner.hardware.schema import AcceleratorFile

    f, path = _read("accelerators", AcceleratorFile, name, beside, changes)
    efficiency = load_efficiency(f.efficiency, beside=path.parent, changes=under(changes, "efficiency"))
    peak_flops = _values(f.peak_tflops, TERA)
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
        sources=_sources(f),
    )


def load_link(name: str, *, beside: Path | None = None, changes: Changes | None = None) -> Link:
    """A link by name or TOML path; raises as `load_efficiency`."""
    from planner.hardware.schema import LinkFile

    f, _ = _read("links", LinkFile, name, beside, changes)
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
        ring_step_s=_value(f.ring_step_us, f.latency_us.value) * MICRO,
        fraction=f.fraction.value,
        send_fraction=f.send_fraction.value,
        sources=_sources(f),
    )


def load_framework(name: str, *, beside: Path | None = None, changes: Changes | None = None) -> Framework:
    """A framework profile by name or TOML path; raises as `load_efficiency`."""
    from planner.hardware.schema import FrameworkFile

    f, _ = _read("frameworks", FrameworkFile, name, beside, changes)
    return Framework(
        name=f.name,
        gradient_bytes=f.gradient_bytes.value,
        bf16_gradient_bytes=(f.bf16_gradient_bytes or f.gradient_bytes).value,
        grad_reduce_bytes=f.grad_reduce_bytes.value,
        bf16_grad_reduce_bytes=f.bf16_grad_reduce_bytes.value,
        reduce_pass_bytes=_value(f.reduce_pass_bytes, 0.0),
        accumulate_bytes=_value(f.accumulate_bytes, 0.0),
        bf16_accumulate_bytes=_value(f.bf16_accumulate_bytes, 0.0),
        overlap_grad_reduce=f.overlap_grad_reduce.value,
        overlap_grad_reduce_pipelined=f.overlap_grad_reduce_pipelined.value,
        overlap_param_gather=f.overlap_param_gather.value,
        overlap_pipeline=f.overlap_pipeline.value,
        overlap_tensor=f.overlap_tensor.value,
        overlap_tensor_backward=f.overlap_tensor_backward.value,
        tensor_slowdown=f.tensor_slowdown.value,
        gate_reduces=_value(f.gate_reduces, 0.0),
        whole_sends=_value(f.whole_sends, 0.0) > 0,
        whole_reduces=_value(f.whole_reduces, 0.0) > 0,
        send_turns=_value(f.send_turns, 1.0),
        fine_recompute=_value(f.fine_recompute, 0.0) > 0,
        hybrid_sharding=_value(f.hybrid_sharding, 0.0) > 0,
        zero2_by_layer=_value(f.zero2_by_layer, 0.0) > 0,
        recompute_stops_early=_value(f.recompute_stops_early, 0.0) > 0,
        kept_expert_outputs=_value(f.kept_expert_outputs, 1.0) > 0,
        node_dispatch=_value(f.node_dispatch, 0.0) > 0,
        overlap_experts=_value(f.overlap_experts, 0.0),
        fused_experts=_value(f.fused_experts, 0.0) > 0,
        fused_routing=_value(f.fused_routing, 0.0) > 0,
        fused_rotary=_value(f.fused_rotary, 0.0) > 0,
        network_startup_s=f.network_startup_us.value * MICRO,
        host_layer_forward_s=f.host_layer_forward_us.value * MICRO,
        host_layer_backward_s=f.host_layer_backward_us.value * MICRO,
        host_step_s=f.host_step_us.value * MICRO,
        blocking_launches=f.blocking_launches,
        gather_piece_s=_value(f.gather_piece_us, 0.0) * MICRO,
        reduce_bucket_bytes=_value(f.reduce_bucket_mib, 0.0) * MIB,
        sharded_nodes=f.sharded_nodes.value,
        sharded_stage=_value(f.sharded_stage, 1.0),
        update_bytes=_value(f.update_bytes, 0.0),
        pass_gradient_bytes=_value(f.pass_gradient_bytes, 0.0),
        bucket_bytes=_value(f.bucket_bytes, 0.0),
        fp8_parameter_bytes=_value(f.fp8_parameter_bytes, 2.0),
        fp8_copy_bytes=_value(f.fp8_copy_bytes, 0.0),
        gather_copy_bytes=_value(f.gather_copy_bytes, 0.0),
        gathered_inputs=_value(f.gathered_inputs, 0.0),
        gate_tensors=_value(f.gate_tensors, 4.0),
        entropy_forward_bytes=_value(f.entropy_forward_bytes, EAGER_ENTROPY_BYTES[0]),
        entropy_backward_bytes=_value(f.entropy_backward_bytes, EAGER_ENTROPY_BYTES[1]),
        gathered_logits=_value(f.gathered_logits, 0.0) > 0,
        recomputed_head=_value(f.recomputed_head, 0.0) > 0,
        logit_copies=_value(f.logit_copies, 1.0),
        reserved_bytes=f.reserved_gib.value * GIB,
        fragmentation=f.fragmentation.value,
        layer_split=f.layer_split,
        sources=_sources(f),
    )


def load_cluster(name: str, *, network: str | None = None, changes: Changes | None = None) -> Cluster:
    """A cluster by name or TOML path, over another network if one is named; raises as `load_efficiency`.

    changes: other figures than the files have, such as `{"accelerator": {"memory_gib": 141.0}, "gpus_per_node": 72}`.
    """
    from planner.hardware.schema import ClusterFile

    f, path = _read("clusters", ClusterFile, name, None, changes)
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
        sources=_sources(f),
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

    f, path = _read("clusters", ClusterFile, name, None)
    accelerator, at = _read("accelerators", AcceleratorFile, f.accelerator, path.parent)
    efficiency, _ = _read("efficiency", EfficiencyFile, accelerator.efficiency, at.parent)
    wire = f.network if network is None else network
    links = {
        "node_link": _read("links", LinkFile, f.node_link, path.parent)[0],
        "network": _read("links", LinkFile, wire, path.parent if network is None else None)[0],
        "host_link": _read("links", LinkFile, f.host_link, path.parent)[0],
    }
    files: Mapping[str, Sourced] = {"": f, "accelerator": accelerator, "accelerator.efficiency": efficiency, **links}
    return {f"{p}.{k}".lstrip("."): figure.value for p, file in files.items() for k, figure in figures(file)}


def framework_figures(name: str) -> dict[str, float]:
    """Every figure of a framework profile by its name, in the profile's units; raises as `load_efficiency`."""
    from planner.hardware.schema import FrameworkFile, figures

    f, _ = _read("frameworks", FrameworkFile, name, None)
    return {key: figure.value for key, figure in figures(f)}
