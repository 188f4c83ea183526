"""The TOML form of hardware profiles, checked: every figure has a unit in its name, a range and a source."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictStr,
    model_validator,
)
from pydantic_core import PydanticCustomError

__all__ = ["AcceleratorFile", "ClusterFile", "EfficiencyFile", "Figure", "FrameworkFile", "LinkFile", "figures"]


def _refuse(allowed: str) -> PydanticCustomError:
    """A refusal whose whole message is what is allowed; braces would be read as a template's."""
    return PydanticCustomError("profile", "{allowed}", {"allowed": allowed})


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _refuse("a number")
    try:
        return float(value)
    except OverflowError:
        raise _refuse("a finite number") from None


def _said(text: str) -> str:
    if not text.strip():
        raise _refuse("text that says where the figure comes from")
    return text


def _printable(text: str) -> str:
    if not text.isprintable():
        raise _refuse("characters that print")
    return text


Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Text = Annotated[StrictStr, Field(min_length=3), AfterValidator(_said)]


class Strict(BaseModel):
    """A table in which no unknown field passes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Figure(Strict):
    """A number and where it comes from: a key of the file's `[sources]`."""

    value: Number
    source: Annotated[StrictStr, Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _table(cls, data: Any) -> Any:
        if not isinstance(data, (dict, Figure)):
            raise _refuse('{ value = a number, source = "a key of [sources]" }')
        return data


def _between(low: float, high: float) -> AfterValidator:
    def check(figure: Figure) -> Figure:
        if not low <= figure.value <= high:
            raise _refuse(f"a value from {low:g} to {high:g}")
        return figure

    return AfterValidator(check)


def _whole(figure: Figure) -> Figure:
    if figure.value != int(figure.value):
        raise _refuse("a whole number")
    return figure


Fraction = Annotated[Figure, _between(1e-3, 1.0)]
Share = Annotated[Figure, _between(0.0, 1.0)]
Latency = Annotated[Figure, _between(0.0, 1e5)]  # microseconds
Tflops = Annotated[Figure, _between(1e-4, 1e5)]
GbytePerS = Annotated[Figure, _between(1e-3, 1e5)]
Yes = Annotated[Figure, _between(0, 1), AfterValidator(_whole)]  # 1 or 0, with its source
ParameterBytes = Annotated[Figure, _between(0, 16)]
Tile = Annotated[Figure, _between(1, 1024), AfterValidator(_whole)]
Name = Annotated[StrictStr, Field(min_length=1, max_length=200), AfterValidator(_printable)]
Count = Annotated[Figure, _between(1, 1e7), AfterValidator(_whole)]


class Sourced(Strict):
    """A file with `[sources]`, each used and each defined."""

    name: Name
    sources: dict[str, Text]

    @model_validator(mode="after")
    def _sources_match(self) -> Sourced:
        used = {figure.source: field for field, figure in figures(self)}
        for key, field in used.items():
            if key not in self.sources:
                raise _refuse(f"a source of {field} that stands in [sources]; {key!r} does not")
        for key in self.sources:
            if key not in used:
                raise _refuse(f"only sources that a figure uses; {key!r} is not used")
        return self


def figures(model: BaseModel) -> list[tuple[str, Figure]]:
    """Every figure of a file with its dotted name."""
    found: list[tuple[str, Figure]] = []
    for field in type(model).model_fields:
        value = getattr(model, field)
        if isinstance(value, Figure):
            found.append((field, value))
        elif isinstance(value, dict):
            found += [(f"{field}.{k}", v) for k, v in value.items() if isinstance(v, Figure)]
        elif isinstance(value, BaseModel):
            found += [(f"{field}.{k}", v) for k, v in figures(value)]
    return found


def source_texts(model: Sourced) -> dict[str, str]:
    """Each figure's name with the text of its source."""
    return {name: model.sources[figure.source] for name, figure in figures(model)}


class OneOrMore(Strict):
    """A table of optional figures that isn't empty."""

    @model_validator(mode="after")
    def _not_empty(self) -> OneOrMore:
        if not self.model_fields_set:
            raise _refuse(f"at least one of {', '.join(type(self).model_fields)}")
        return self


class Precisions(OneOrMore):
    """A figure by precision; a device without one leaves it out."""

    fp32: Tflops | None = None
    tf32: Tflops | None = None
    fp16: Tflops | None = None
    bf16: Tflops | None = None
    fp8: Tflops | None = None


class PrecisionFractions(OneOrMore):
    """A fraction by precision."""

    fp32: Fraction | None = None
    tf32: Fraction | None = None
    fp16: Fraction | None = None
    bf16: Fraction | None = None
    fp8: Fraction | None = None


class FlashFractions(OneOrMore):
    """A fraction by flash attention kernel."""

    flash1: Fraction | None = None
    flash2: Fraction | None = None
    flash3: Fraction | None = None


Tokens = Annotated[Figure, _between(0, 1e5)]
Waves = Annotated[Figure, _between(0, 10)]


class FlashWaves(OneOrMore):
    """Waves of blocks by flash attention kernel."""

    flash1: Waves | None = None
    flash2: Waves | None = None
    flash3: Waves | None = None


class FlashTokens(OneOrMore):
    """Tokens by flash attention kernel."""

    flash1: Tokens | None = None
    flash2: Tokens | None = None
    flash3: Tokens | None = None


class AlignedFractions(Strict):
    """A fraction by how many bytes the rows of a product's operands are aligned to; all of them or none."""

    bytes_16: Fraction
    bytes_4: Fraction
    bytes_2: Fraction


class EfficiencyFile(Sourced):
    """`efficiency/*.toml`."""

    matrix_fraction: PrecisionFractions
    tile_rows: Tile
    tile_columns: Tile
    depth_half: Annotated[Figure, _between(0, 1e5)]
    kernel_latency_us: Latency
    expert_product_us: Latency | None = None
    wide_expert_product_us: Latency | None = None
    memory_fraction: Fraction
    flash_forward: FlashFractions
    flash_backward: FlashFractions
    flash_half_tokens: FlashTokens | None = None
    flash_tail_waves: FlashWaves | None = None
    flash_head_step: Annotated[Figure, _between(1, 256), AfterValidator(_whole)] | None = None
    rate_spread: Annotated[Figure, _between(0, 0.5)] | None = None
    attention_matrix_fraction: Fraction
    scan_matrix_fraction: Fraction | None = None
    aligned_fraction: AlignedFractions | None = None


class AcceleratorFile(Sourced):
    """`accelerators/*.toml`; dense FLOP/s, never the sparsity figure."""

    efficiency: Name
    num_compute_units: Annotated[Figure, _between(1, 1e5), AfterValidator(_whole)]
    memory_gib: Annotated[Figure, _between(0.1, 1e4)]
    memory_bandwidth_gbyte_per_s: Annotated[Figure, _between(1, 1e5)]
    power_w: Annotated[Figure, _between(1, 1e4)]
    price_usd_per_hour: Annotated[Figure, _between(0, 1e4)] | None = None
    peak_tflops: Precisions


class LinkFile(Sourced):
    """`links/*.toml`: per direction, in GB/s an accelerator inside a node, in Gb/s a NIC on a network."""

    kind: Annotated[StrictStr, Field(pattern="^(nvlink|pcie|infiniband|omni-path|ethernet|memory)$")]
    bandwidth_gbyte_per_s: GbytePerS | None = None
    bandwidth_gbit_per_s: Annotated[Figure, _between(0.01, 1e5)] | None = None
    latency_us: Latency
    ring_step_us: Latency | None = None
    fraction: Fraction
    send_fraction: Fraction
    small_latency_us: Latency | None = None
    small_fraction: Fraction | None = None

    @model_validator(mode="after")
    def _small_messages(self) -> LinkFile:
        if (self.small_latency_us is None) != (self.small_fraction is None):
            raise _refuse("both small_latency_us and small_fraction, or neither")
        return self

    @model_validator(mode="after")
    def _one_bandwidth(self) -> LinkFile:
        if (self.bandwidth_gbyte_per_s is None) == (self.bandwidth_gbit_per_s is None):
            raise _refuse("exactly one of bandwidth_gbyte_per_s and bandwidth_gbit_per_s")
        return self


class ClusterFile(Sourced):
    """`clusters/*.toml`; accelerators and links by name, or by a path from this file."""

    accelerator: Name
    node_link: Name
    network: Name
    host_link: Name
    framework: Name
    gpus_per_node: Count
    nics_per_node: Count
    max_gpus: Count | None = None
    host_memory_gib: Annotated[Figure, _between(0.1, 1e6)] | None = None
    storage_bandwidth_gbyte_per_s: GbytePerS


class UnstatedTable(Strict):
    """What a measured run of a framework is taken to have run where it doesn't say; not figures, so without sources."""

    attention: Literal["unfused", "fused", "flash1", "flash2", "flash3"] = "flash3"
    sequence_parallel: StrictBool = True
    zero: Annotated[tuple[Literal[0, 1, 2, 3], ...], Field(min_length=1)] = (1,)


class FrameworkFile(Sourced):
    """`frameworks/*.toml`."""

    gradient_bytes: ParameterBytes
    grad_reduce_bytes: ParameterBytes
    bf16_grad_reduce_bytes: ParameterBytes
    overlap_grad_reduce: Share
    overlap_grad_reduce_pipelined: Share
    overlap_param_gather: Share
    overlap_pipeline: Share
    overlap_tensor: Share
    overlap_tensor_backward: Share
    tensor_slowdown: Annotated[Figure, _between(1, 10)]
    network_startup_us: Latency
    host_layer_forward_us: Latency
    host_layer_backward_us: Latency
    host_step_us: Annotated[Figure, _between(0, 1e8)]
    gather_piece_us: Latency | None = None
    reduce_bucket_mib: Annotated[Figure, _between(0, 1e5)] | None = None
    blocking_launches: StrictBool = False
    gate_reduces: Yes | None = None
    whole_sends: Yes | None = None
    whole_reduces: Yes | None = None
    send_turns: Annotated[Figure, _between(1, 2)] | None = None
    fine_recompute: Yes | None = None
    hybrid_sharding: Yes | None = None
    zero2_by_layer: Yes | None = None
    recompute_stops_early: Yes | None = None
    kept_expert_outputs: Yes | None = None
    node_dispatch: Yes | None = None
    overlap_experts: Share | None = None
    fused_experts: Yes | None = None
    fp8_attention: Yes | None = None
    fused_routing: Yes | None = None
    fused_rotary: Yes | None = None
    gathered_logits: Yes | None = None
    recomputed_head: Yes | None = None
    reduce_pass_bytes: Annotated[Figure, _between(0, 64)] | None = None
    sharded_nodes: Annotated[Figure, _between(1e-3, 1e6)]
    sharded_stage: Annotated[Figure, _between(1, 3)] | None = None
    update_bytes: Annotated[Figure, _between(0, 16)] | None = None
    bf16_gradient_bytes: ParameterBytes | None = None
    accumulate_bytes: Annotated[Figure, _between(0, 32)] | None = None
    bf16_accumulate_bytes: Annotated[Figure, _between(0, 32)] | None = None
    pass_gradient_bytes: Annotated[Figure, _between(0, 4)] | None = None
    bucket_bytes: Annotated[Figure, _between(0, 4)] | None = None
    fp8_parameter_bytes: Annotated[Figure, _between(1, 4)] | None = None
    fp8_copy_bytes: Annotated[Figure, _between(0, 4)] | None = None
    gather_copy_bytes: Annotated[Figure, _between(0, 4)] | None = None
    gathered_inputs: Annotated[Figure, _between(0, 2)] | None = None
    gate_tensors: Annotated[Figure, _between(1, 4)] | None = None
    logit_copies: Annotated[Figure, _between(0, 8)] | None = None
    entropy_forward_bytes: Annotated[Figure, _between(0, 200)] | None = None
    entropy_backward_bytes: Annotated[Figure, _between(0, 200)] | None = None
    reserved_gib: Annotated[Figure, _between(0, 1e3)]
    fragmentation: Annotated[Figure, _between(0, 10)]
    layer_split: Literal["even", "balanced", "parameters", "products"] = "even"
    unstated: UnstatedTable = UnstatedTable()
