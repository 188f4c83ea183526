"""Accelerators, links, clusters and frameworks as the cost models see them: plain data in SI units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Accelerator", "Cluster", "Efficiency", "Framework", "Link"]


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """What a GPU architecture achieves of its datasheet, the same for every model.

    matrix_fraction: of peak, for a large product, by precision.
    tile_rows, tile_columns: output tile of the largest matrix kernel; depth_half: inner dimension at which a
    product reaches half of that fraction; kernel_latency_s: fixed time of one kernel.
    expert_product_s: least time of one expert's product among a rank's, where the host launches them one by one, its
    operands' casts among it; wide_expert_product_s: of one in 16 bits, which needs none.
    memory_fraction: of memory bandwidth, for a streaming kernel.
    flash_forward, flash_backward: of matrix peak for causal attention FLOP of long sequences, by kernel;
    flash_head_step: channels in steps of which flash kernels are built; other heads compute as the next wider.
    flash_half_tokens: sequence at which each reaches half of that (rows of few keys).
    flash_tail_waves: waves of blocks more that each takes, while its last blocks leave compute units idle.
    rate_spread: standard deviation of the matrix rate of GPUs of one kind (clocks, heat), relative to their mean.
    attention_matrix_fraction: of matrix peak, for the batched products of unfused and fused-softmax
    attention.
    scan_matrix_fraction: of matrix peak, for the products of a state-space's scan and all its kernels do beside them.
    aligned_fraction: of its rate, for a product whose operands' rows begin at multiples of so many bytes and no more:
    16, 4 (or 8), 2; from 32 on, and where it is empty, the whole.
    sources: how each field was obtained.
    """

    name: str
    matrix_fraction: Mapping[str, float]
    tile_rows: float
    tile_columns: float
    depth_half: float
    kernel_latency_s: float
    expert_product_s: float
    wide_expert_product_s: float
    memory_fraction: float
    flash_forward: Mapping[str, float]
    flash_backward: Mapping[str, float]
    flash_half_tokens: Mapping[str, float]
    flash_tail_waves: Mapping[str, float]
    flash_head_step: float
    rate_spread: float
    attention_matrix_fraction: float
    scan_matrix_fraction: float
    aligned_fraction: Mapping[str, float]
    sources: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One accelerator: dense FLOP/s by precision, memory, and its architecture's efficiency."""

    name: str
    efficiency: Efficiency
    peak_flops: Mapping[str, float]
    num_compute_units: int
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    power_w: float
    price_per_hour: float | None
    sources: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link, per direction: per accelerator inside a node, per NIC on a network.

    fraction: of the bandwidth, that rings of large messages achieve; send_fraction: that a send between two does;
    latency_s: one step between neighbours of a ring, or a launch, software included; ring_step_s: one step of a ring
    that goes through several nodes, or of the protocol for small messages inside one; small_latency_s, small_fraction:
    that protocol's launch and the share of the bandwidth that it achieves, where they are known.
    """

    name: str
    kind: str
    bandwidth_bytes_per_s: float
    latency_s: float
    ring_step_s: float
    fraction: float
    send_fraction: float
    sources: Mapping[str, str]
    small_latency_s: float | None = None
    small_fraction: float | None = None


@dataclass(frozen=True, kw_only=True)
class Unstated:
    """What a run of a framework is taken to have run where it doesn't say.

    attention: the kernel; sequence_parallel: whether tensor ranks share what lies between products; zero: ZeRO stages
    without pipeline stages, of which the first that fits counts.
    """

    attention: str
    sequence_parallel: bool
    zero: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Framework:
    """What a training framework overlaps, keeps in memory and launches.

    gradient_bytes, bf16_gradient_bytes: of a parameter in the accumulated gradient, in fp16 training and in bf16 or
    fp8; grad_reduce_bytes, bf16_grad_reduce_bytes: of
    one in its reduction, in fp16 training and in bf16 or fp8.
    reduce_pass_bytes: of a parameter, that packing and unpacking gradients around their reduction moves through memory.
    whole_reduces: ZeRO-1 sums whole gradients on every rank, an all-reduce, and not on each its shard alone.
    accumulate_bytes, bf16_accumulate_bytes: of a parameter, that adding one micro-batch's gradient to the others' moves
    through memory; 0 where the weight gradient's product adds it.
    overlap_*: share of the traffic's time that may hide: of gradient reduction under the backward pass
    (without and with pipeline stages), of parameter gathers under the passes (there of the time that a node's links
    alone would need, for what doesn't hide is what they take of memory and compute units; 0: waited for), of sends
    between stages, of tensor-parallel collectives. overlap_tensor_backward: share of the collectives of the backward
    pass proper that run beside the weight gradient's product, before overlap_tensor.
    tensor_slowdown: time of its tensor-parallel collectives over what the link gives, 1 or more; gate_reduces: of a
    gated MLP's input gradient, all-reduces beyond one: 1 where gate and up are two products that each sum theirs.
    whole_sends: every tensor rank sends the whole activation to the next stage, not its part of it alone;
    send_turns: transfers of a hand-over between stages that pass one after another: 2 where a send blocks until it is
    received, so that the activation waits for the gradient the other way.
    fine_recompute: it can recompute norms, experts' activation functions and products up from latents alone.
    hybrid_sharding: it can shard over some replicas, such as a node's, and keep a copy of the shards on others.
    zero2_by_layer: with ZeRO 2 too it gathers and scatters layer by layer, a micro-batch's passes long.
    recompute_stops_early: recomputation of a layer ends with the last tensor that its backward pass needs.
    kept_expert_outputs: experts' outputs stay until the backward pass, for each is weighted by the router's
    probability after it; else the inner activation was.
    node_dispatch: a token goes once to every node that has one of its experts, and is copied there (DeepEP); else a
    copy goes to every expert. overlap_experts: share of those all-to-alls that may hide beside the compute of another
    micro-batch. fused_experts: all experts of a rank are one kernel, with gate and fp8 cast in its epilogue.
    fp8_attention: attention runs in fp8 where products do, at 16 bits' rate here, but windows whole backward.
    fused_routing: the router, its loss and each sorting of tokens by expert are a kernel or two, not one an operation.
    fused_rotary: rotary positions turn queries, and keys, in one kernel each.
    network_startup_s: of a transfer between nodes, or of a collective each time their number doubles, over the link's
    latency: host synchronisation, proxies.
    host_layer_forward_s, host_layer_backward_s: the host's time to launch a layer, which bounds short
    kernels; host_step_s: fixed time of a step.
    blocking_launches: the host waits for every kernel (CUDA_LAUNCH_BLOCKING=1): its time adds to the accelerator's.
    gather_piece_s: the host's time for each piece of a tensor, one a replica, that ZeRO 1 and 2 gather piece by piece.
    reduce_bucket_bytes: 16-bit gradients that replicas of all states (ZeRO 0) sum in one collective; 0: all.
    sharded_nodes: nodes of a job up to which ZeRO's collectives keep a plain all-reduce's bandwidth; beyond, it falls
    as their number grows, down to one NIC of a node; sharded_stage: the least ZeRO stage of which that is so.
    gathered_inputs: of a layer's two column-parallel products, how many keep the whole input that sequence parallelism
    gathered until the backward pass, rather than this rank's part of it.
    gate_tensors: of a gated MLP's gate, up, activated gate and product, how many stay until the backward pass: 4, or 3
    where a fused kernel activates again.
    entropy_forward_bytes, entropy_backward_bytes: of a logit, that cross-entropy moves through memory in either pass.
    gathered_logits: every tensor rank gathers all logits and takes the whole vocabulary's cross-entropy;
    recomputed_head: full recomputation repeats the head too.
    logit_copies: fp32 copies of the logits alive at once, beside the 16-bit ones.
    update_bytes: of a parameter, that its update takes besides the optimizer's state: a gradient cast to fp32.
    pass_gradient_bytes: of a parameter in the gradient that one backward pass makes, freed once it is added up;
    bucket_bytes: of a parameter in buckets of a reduction by replicas that keep all optimizer state (ZeRO 0).
    fp8_parameter_bytes: of a layer's parameter in fp8 training, as it is kept and gathered; fp8_copy_bytes: of one in
    what products keep beside it from one micro-batch to the next: its value in fp8 and the transpose.
    gather_copy_bytes: of a parameter in the copy, in one piece, through which ZeRO 1 and 2 gather updated parameters.
    reserved_bytes: context, communicators and workspaces; fragmentation: of activations and buffers, on top.
    layer_split: how it splits layers over stages: even, balanced (by cost), parameters or products.
    unstated: what a measured run of it is taken to have run where it doesn't say.
    """

    name: str
    gradient_bytes: float
    bf16_gradient_bytes: float
    grad_reduce_bytes: float
    bf16_grad_reduce_bytes: float
    reduce_pass_bytes: float
    accumulate_bytes: float
    bf16_accumulate_bytes: float
    overlap_grad_reduce: float
    overlap_grad_reduce_pipelined: float
    overlap_param_gather: float
    overlap_pipeline: float
    overlap_tensor: float
    overlap_tensor_backward: float
    tensor_slowdown: float
    gate_reduces: float
    whole_sends: bool
    whole_reduces: bool
    send_turns: float
    fine_recompute: bool
    hybrid_sharding: bool
    zero2_by_layer: bool
    recompute_stops_early: bool
    kept_expert_outputs: bool
    node_dispatch: bool
    fused_experts: bool
    fp8_attention: bool
    fused_routing: bool
    fused_rotary: bool
    overlap_experts: float
    network_startup_s: float
    host_layer_forward_s: float
    host_layer_backward_s: float
    host_step_s: float
    blocking_launches: bool
    gather_piece_s: float
    reduce_bucket_bytes: float
    sharded_nodes: float
    sharded_stage: float
    update_bytes: float
    pass_gradient_bytes: float
    bucket_bytes: float
    fp8_parameter_bytes: float
    fp8_copy_bytes: float
    gather_copy_bytes: float
    gathered_inputs: float
    gate_tensors: float
    logit_copies: float
    gathered_logits: bool
    recomputed_head: bool
    entropy_forward_bytes: float
    entropy_backward_bytes: float
    reserved_bytes: float
    fragmentation: float
    layer_split: str
    unstated: Unstated
    sources: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Nodes of one accelerator: links inside a node, a network between nodes.

    gpus_per_node: accelerators that share the fast link (the NVLink domain).
    framework: the profile assumed where none is chosen, the usual one of the hardware's years.
    host_memory_bytes: of a node, for offloaded states; None where it isn't said, and not checked.
    """

    name: str
    accelerator: Accelerator
    node_link: Link
    network: Link
    host_link: Link
    gpus_per_node: int
    nics_per_node: int
    storage_bandwidth_bytes_per_s: float
    max_gpus: int | None
    framework: str
    host_memory_bytes: float | None = None
    sources: Mapping[str, str]
