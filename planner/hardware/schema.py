"""The TOML form of hardware profiles, checked: every figure has a unit in its name, a range and a source."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, StrictStr, model_validator

__all__ = ["AcceleratorFile", "ClusterFile", "EfficiencyFile", "Figure", "FrameworkFile", "LinkFile"]


def _not_bool(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("a number")
    return float(value)


Number = Annotated[float, BeforeValidator(_not_bool), Field(allow_inf_nan=False)]


class Strict(BaseModel):
    """A table in which no unknown field passes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Figure(Strict):
    """A number and where it comes from: a key of the file's `[sources]`."""

    value: Number
    source: Annotated[StrictStr, Field(min_length=1)]


def _between(low: float, high: float) -> Any:
    def check(figure: Figure) -> Figure:
        if not low <= figure.value <= high:
            raise ValueError(f"a value from {low:g} to {high:g}")
        return figure

    from pydantic import AfterValidator

    return Annotated[Figure, AfterValidator(check)]


Fraction = _between(1e-3, 1.0)
Share = _between(0.0, 1.0)
Latency = _between(0.0, 1e5)  # microseconds
Tflops = _between(1e-4, 1e5)
GbytePerS = _between(1e-3, 1e5)
Name = Annotated[StrictStr, Field(min_length=1, max_length=200)]


class Sourced(Strict):
    """A file with `[sources]`, each used and each defined."""

    name: Name
    sources: dict[str, Annotated[StrictStr, Field(min_length=3)]]

    @model_validator(mode="after")
    def _sources_match(self) -> Sourced:
        used = {figure.source: field for field, figure in _figures(self)}
        for key, field in used.items():
            if key not in self.sources:
                raise ValueError(f"a source of {field} that stands in [sources]; {key!r} does not")
        for key in self.sources:
            if key not in used:
                raise ValueError(f"only sources that a figure uses; {key!r} is not used")
        return self


def _figures(model: BaseModel) -> list[tuple[str, Figure]]:
    """Every figure of a file with its dotted name."""
    found: list[tuple[str, Figure]] = []
    for field in type(model).model_fields:
        value = getattr(model, field)
        if isinstance(value, Figure):
            found.append((field, value))
        elif isinstance(value, dict):
            found += [(f"{field}.{k}", v) for k, v in value.items() if isinstance(v, Figure)]
        elif isinstance(value, BaseModel):
            found += [(f"{field}.{k}", v) for k, v in _figures(value)]
    return found


def source_texts(model: Sourced) -> dict[str, str]:
    """Each figure's name with the text of its source."""
    return {name: model.sources[figure.source] for name, figure in _figures(model)}


class Precisions(Strict):
    """A figure by precision; a device without one leaves it out."""

    fp32: Tflops | None = None
    tf32: Tflops | None = None
    fp16: Tflops | None = None
    bf16: Tflops | None = None
    fp8: Tflops | None = None


class PrecisionFractions(Strict):
    """A fraction by precision."""

    fp32: Fraction | None = None
    tf32: Fraction | None = None
    fp16: Fraction | None = None
    bf16: Fraction | None = None
    fp8: Fraction | None = None


class FlashFractions(Strict):
    """A fraction by flash attention kernel."""

    flash1: Fraction | None = None
    flash2: Fraction | None = None
    flash3: Fraction | None = None


class EfficiencyFile(Sourced):
    """`efficiency/*.toml`."""

    matrix_fraction: PrecisionFractions
    tile_rows: _between(1, 1024)  # type: ignore[valid-type]
    tile_columns: _between(1, 1024)  # type: ignore[valid-type]
    depth_half: _between(0, 1e5)  # type: ignore[valid-type]
    kernel_latency_us: Latency
    memory_fraction: Fraction
    flash_forward: FlashFractions
    flash_backward: FlashFractions
    attention_matrix_fraction: Fraction


class AcceleratorFile(Sourced):
    """`accelerators/*.toml`; dense FLOP/s, never the sparsity figure."""

    efficiency: Name
    num_compute_units: _between(1, 1e5)  # type: ignore[valid-type]
    memory_gib: _between(0.1, 1e4)  # type: ignore[valid-type]
    memory_bandwidth_gbyte_per_s: _between(1, 1e5)  # type: ignore[valid-type]
    power_w: _between(1, 1e4)  # type: ignore[valid-type]
    price_usd_per_hour: _between(0, 1e4) | None = None  # type: ignore[valid-type]
    peak_tflops: Precisions


class LinkFile(Sourced):
    """`links/*.toml`: per direction, in GB/s an accelerator inside a node, in Gb/s a NIC on a network."""

    kind: Annotated[StrictStr, Field(pattern="^(nvlink|pcie|infiniband|ethernet|memory)$")]
    bandwidth_gbyte_per_s: GbytePerS | None = None
    bandwidth_gbit_per_s: _between(0.01, 1e5) | None = None  # type: ignore[valid-type]
    latency_us: Latency
    fraction: Fraction

    @model_validator(mode="after")
    def _one_bandwidth(self) -> LinkFile:
        if (self.bandwidth_gbyte_per_s is None) == (self.bandwidth_gbit_per_s is None):
            raise ValueError("exactly one of bandwidth_gbyte_per_s and bandwidth_gbit_per_s")
        return self


class ClusterFile(Sourced):
    """`clusters/*.toml`; accelerators and links by name, or by a path from this file."""

    accelerator: Name
    node_link: Name
    network: Name
    host_link: Name
    framework: Name
    gpus_per_node: Annotated[StrictInt, Field(ge=1, le=100_000)]
    nics_per_node: Annotated[StrictInt, Field(ge=1, le=100_000)]
    max_gpus: Annotated[StrictInt, Field(ge=1)] | None = None
    storage_bandwidth_gbyte_per_s: GbytePerS


class FrameworkFile(Sourced):
    """`frameworks/*.toml`."""

    gradient_bytes: _between(0, 16)  # type: ignore[valid-type]
    grad_reduce_bytes: _between(0, 16)  # type: ignore[valid-type]
    bf16_grad_reduce_bytes: _between(0, 16)  # type: ignore[valid-type]
    overlap_grad_reduce: Share
    overlap_grad_reduce_pipelined: Share
    overlap_param_gather: Share
    overlap_pipeline: Share
    overlap_tensor: Share
    host_layer_forward_us: Latency
    host_layer_backward_us: Latency
    host_step_us: _between(0, 1e8)  # type: ignore[valid-type]
    sharded_bandwidth: Fraction
    reserved_gib: _between(0, 1e3)  # type: ignore[valid-type]
    fragmentation: _between(0, 10)  # type: ignore[valid-type]
    balanced_split: StrictBool
