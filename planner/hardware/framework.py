"""A training framework: what it overlaps, keeps in memory and launches. Each figure is declared here, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from planner.hardware.declared import figure, setting, yes
from planner.hardware.framework_runs import Runs, Unstated

MEGATRON = "as Megatron-LM's own code does it"
NONE_KNOWN = "none known"
GRAPHS = "CUDA graphs, or none known"
UNPROBED = "none known; planner calibrate --probe measures it on a machine"
EAGER = "Megatron-LM's passes over the logits, counted one by one"


# fmt: off


@dataclass(frozen=True, kw_only=True)
class Framework:
    """Figures of a training framework: its overlaps, memory and launches; each field's metadata explains it."""

    name: str
    stack: str = setting(
        str, "Whose code it is: errors on one framework of a stack foretell those on another; empty: its own.",
        default="")
    bases: tuple[str, ...] = setting(
        tuple[str, ...], "The profiles that it is built on, nearest first: what is known of their memory is known of "
        "its own. Those of `base`, unless stated.", default=())
    also: tuple[str, ...] = setting(
        tuple[str, ...], "Other names that load it: of frameworks that run its code or do the same.", default=())

    # Gradients: bytes per parameter.
    gradient_bytes: float = figure(0, 16, "Bytes per parameter of the accumulated gradient, in fp16 training.")
    bf16_gradient_bytes: float = figure(
        0, 16, "Bytes per parameter of the accumulated gradient, in bf16 or fewer bits.", like="gradient_bytes")
    grad_reduce_bytes: float = figure(0, 16, "Bytes per parameter that data-parallel ranks reduce, in fp16 training.")
    bf16_grad_reduce_bytes: float = figure(
        0, 16, "Bytes per parameter that data-parallel ranks reduce, in bf16 or fewer bits.")
    bf16_scattered_bytes: float = figure(
        0, 16, "The same of gradients that layers scatter, by ZeRO 3 or zero2_by_layer.", like="bf16_grad_reduce_bytes")
    defers_scatter: bool = yes(
        "Without a pipeline, layers scatter their gradients in a step's last micro-batch alone. Until then every rank "
        "keeps whole ones, in the format that is reduced.", because="in every micro-batch, PyTorch's FSDP unless told")
    reduces_by_policy: bool = yes(
        "Replicas reduce gradients in a format of its own choice also where all states are in bf16.",
        because="PyTorch reduces a gradient in its parameter's format")
    reduce_pass_bytes: float = figure(
        0, 64, "Bytes per parameter that packing and unpacking gradients around their reduction moves through memory.",
        default=0.0, because="gradients are reduced where they lie, " + MEGATRON)
    whole_reduces: float = figure(
        0, 2, "The last ZeRO stage that sums whole gradients on every rank (an all-reduce), and not on each rank its "
        "shard alone.", whole=True, default=0.0, because="ZeRO-1 has a reduce-scatter, " + MEGATRON)
    owned_tensors: bool = yes("With ZeRO 1 each tensor is one rank's whole, which broadcasts its own to the others.",
        because="each rank has an equal part of all")
    accumulate_bytes: float = figure(
        0, 32, "Bytes per parameter that adding a micro-batch's gradient to the sum moves through memory, in fp16.",
        default=0.0, because="the weight gradient's product adds it, " + MEGATRON)
    bf16_accumulate_bytes: float = figure(
        0, 32, "Bytes per parameter that adding a micro-batch's gradient to the sum moves, in bf16 or fewer bits.",
        default=0.0, because="the weight gradient's product adds it, " + MEGATRON)
    gradient_passes: float = figure(0, 16, "Passes over the kept gradients per step that zero and average them.",
        default=3.0, because="a buffer that is read, averaged and zeroed, " + MEGATRON)
    pass_gradient_bytes: float = figure(
        0, 4, "Bytes per parameter of the gradient that one backward pass makes and frees once it is added up.",
        default=0.0, because=NONE_KNOWN)
    kept_pass_gradient_bytes: float = figure(
        0, 4, "Bytes per parameter of a pass's own gradient that stay beside its fp32 sum, in bf16 or fewer bits with "
        "ZeRO 0 and 1 and the optimizer on the accelerator.", default=0.0, because=NONE_KNOWN)
    host_gradients_zero: float = figure(
        1, 4, "The least ZeRO stage of which gradients wait in host memory beside an offloaded optimizer; 4: of none.",
        whole=True, default=4.0, because="they stay until the update, Megatron-Core's HybridDeviceOptimizer")
    host_fp32_gradients_zero: float = figure(
        1, 4, "The same where they add up in fp32.", whole=True, like="host_gradients_zero")
    bucket_bytes: float = figure(
        0, 4, "Bytes per parameter in the buckets of a reduction by replicas that keep all state (ZeRO 0).",
        default=0.0, because=NONE_KNOWN)
    reduce_bucket_bytes: float = figure(
        0, 1e5, "16-bit gradients that replicas of all states (ZeRO 0) sum in one collective; 0: all of them.",
        unit="mib", default=0.0, because="counted as one collective")
    large_bucket_parameters: float = figure(
        0, 1e12, "Parameters of a bucket, whose gradients ZeRO 0 to 2 sum in one collective and gather in one; counted "
        "where a network's latency is longer than its profile's; 0: all.",
        default=0.0, because="counted as one collective")
    large_bucket_per_replica: float = figure(
        0, 1e12, "The same for each replica, where that is more.", default=0.0, because="counted as one collective")
    apart_update_bytes: float = figure(
        0, 200, "Bytes per parameter that AdamW operation by operation, of fp32 states, moves beyond one kernel's.",
        default=0.0, because="one kernel updates all, " + MEGATRON)
    update_bytes: float = figure(
        0, 16, "Bytes per parameter that its update takes besides the optimizer's state: a gradient cast to fp32.",
        default=0.0, because=NONE_KNOWN)
    update_parameters: float = figure(
        0, 1e13, "Parameters whose gradients ZeRO 3 casts at a time for their update; 0: all of a rank.",
        default=0.0, because=NONE_KNOWN)
    param_remainders: bool = yes(
        "With moments in bf16 its optimizer keeps of a fp32 parameter only the 16 bits that the bf16 one lacks.",
        because="the whole fp32 parameter is kept")

    # What hides under compute, as a share of the traffic's time.
    overlap_grad_reduce: float = figure(
        0, 1, "Share of the gradient reduction that hides under the backward pass without a pipeline.",
        fit=(0.0, 0.95, 0.5))
    overlap_grad_reduce_pipelined: float = figure(
        0, 1, "Share of the gradient reduction that hides under the backward pass with pipeline stages.")
    overlap_param_gather: float = figure(
        0, 1, "Share of parameter gathers that hides under the passes, of the time that a node's links alone would "
        "need: the rest is what they take of memory and compute units; 0: they are waited for.", fit=(0.0, 1.0, 0.8))
    overlap_pipeline: float = figure(0, 1, "Share of the sends between stages that hides.")
    overlap_tensor: float = figure(
        0, 1, "Share of the tensor-parallel collectives over NVLink that hides.", fit=(0.0, 0.95, 0.5))
    overlap_tensor_backward: float = figure(0, 1, "Share of the backward pass's collectives that run beside the weight "
        "gradient's product, before overlap_tensor.")
    overlap_experts: float = figure(
        0, 1, "Share of the experts' all-to-alls that hides beside the compute of another micro-batch.", default=0.0,
        because="they are waited for, Megatron-Core's default")

    # Traffic.
    tensor_slowdown: float = figure(
        1, 10, "Time of its tensor-parallel collectives over what the link gives.", fit=(1.0, 5.0, 2.0))
    gate_reduces: float = figure(
        0, 1, "All-reduces of a gated MLP's input gradient beyond one: 1 where gate and up are two products that each "
        "sum theirs.", whole=True, default=0.0, because="gate and up are one product, " + MEGATRON)
    apart_inputs: bool = yes(
        "Tensor ranks gather the input of queries, keys, values, gate and up for each product, and sum its gradient.",
        because="once for attention and once for the MLP, " + MEGATRON)
    copied_sequences: bool = yes("Sequence parallelism's gathers and scatters copy the whole activation of several "
        "sequences, for tokens are not its first dimension.", because="tokens are the first dimension, " + MEGATRON)
    whole_sends: float = figure(
        0, 1, "Share of the hand-overs between stages in which every tensor rank sends all, and not its part alone: "
        "0.5 of gradients, 1 of activations too.", default=0.0, because="each sends its part, " + MEGATRON)
    sent_mask_bytes: float = figure(
        0, 8, "Bytes per pair of tokens of an attention mask that every tensor rank sends with an activation, one for "
        "all of its sequences.", default=0.0, because="each stage makes it, " + MEGATRON)
    send_turns: float = figure(1, 2, "Transfers of a hand-over between stages that pass one after another: 2 where a "
        "send blocks until it is received.", default=1.0, because="both ways at once, " + MEGATRON)
    network_startup_s: float = figure(0, 1e5, "Time over the link's latency of a transfer between nodes, or of a "
        "collective each time their number doubles: host synchronisation, proxies.", unit="us", kind="network")
    sharded_nodes: float = figure(1e-3, 1e6, "Nodes of a job up to which ZeRO's collectives keep a plain all-reduce's "
        "bandwidth; beyond, it falls as their number grows, down to one NIC of a node.", fit=(1.0, 40.0, 16.0))
    sharded_stage: float = figure(
        1, 3, "The least ZeRO stage of which sharded_nodes is so.", default=1.0, because="all stages alike")
    node_dispatch: bool = yes(
        "A token goes once to every node that has one of its experts, and is copied there (DeepEP).",
        because="a copy goes to every expert, Megatron-Core's default all-to-all")
    flex_dispatch: bool = yes(
        "On Hopper and Blackwell it dispatches tokens by DeepEP, or HybridEP in a rack, unless told otherwise.",
        because="only where node_dispatch says so")
    deepep_bytes_per_s: float = figure(
        1, 1e4, "What DeepEP's kernels inside a node bring to a GPU, its own tokens counted.", unit="gbyte_per_s",
        default=290.0, because="with 20 compute units dispatch and combine 329 and 287 on eight H100 "
        "(tile-ai/tilescale, deepseek_deepep), with 24 304 and 251 on eight B200 (torchtitan's fork with DeepEP, its "
        "deepep/utils.py)")
    gathered_context: bool = yes(
        "Context ranks gather all keys and values before attention, wait for it, and keep them.",
        because="they pass them round a ring beside attention, Transformer Engine's default")
    flat_copies: bool = yes(
        "Gathered parameters of a layer are copied out of one buffer, gradients into one, while nothing else computes.",
        because="they are views of it")
    flat_gradients: bool = yes(
        "A layer's parameters are views of one: their gradients are put together, cast to what is reduced and divided, "
        "a pass over memory each.", because="they lie where they are reduced")
    sdpa_context: bool = yes("Context ranks run PyTorch's context_parallel of scaled_dot_product_attention: keys and "
        "values of all query heads are gathered, their fp32 gradients go round a ring. In compiled layers all of it is "
        "waited for.", because="they pass them round a ring beside attention, Transformer Engine's default")
    ends_gathered_twice: bool = yes("With ZeRO 3 the backward pass gathers embedding and head anew.",
        because="they stay gathered between the passes, as FSDP's root module does")
    gathered_logits: bool = yes("Every tensor rank gathers all logits and takes the whole vocabulary's cross-entropy.",
        because="the loss is split over the vocabulary, " + MEGATRON)

    # What it can do.
    fine_recompute: bool = yes(
        "It can recompute norms, experts' activation functions and products up from latents alone.",
        because="only what a profile says it can")
    block_recompute: bool = yes("Full recomputation can be of the first layers of each virtual stage alone.",
        because="only what a profile says it can")
    captures_graphs: bool = yes("Layers that are not recomputed whole can be replayed as CUDA graphs.",
        because="only what a profile says it can")
    offloads_layers: bool = yes("Without a pipeline and recomputation, layers' activations can wait in host memory.",
        because="only what a profile says it can")
    offloads_parameters: bool = yes("Parameters that ZeRO 3 shards can wait in host memory.",
        because="only what a profile says it can")
    hybrid_sharding: bool = yes(
        "It can shard over some replicas, such as a node's, and keep a copy of the shards on others.",
        because="only what a profile says it can")
    zero2_by_layer: bool = yes("With ZeRO 2 too it gathers and scatters layer by layer, a micro-batch's passes long.",
        because="all at once, " + MEGATRON)
    shards_alone: bool = yes("ZeRO 3 watches the layers of a single rank too, though it gathers nothing.",
        because="one rank has nothing to gather")
    masked_dispatch: bool = yes(
        "With a capacity it brings tokens to experts and back by products with masks, and computes each expert's "
        "places, empty ones too.", because="copies are sorted, those of an expert as many as come, " + MEGATRON)
    selective_operations: bool = yes(
        "Selective recomputation keeps the output of every second product, of attention, reduce-scatters and "
        "all-to-alls, and runs the rest of a layer again.", because="it repeats the attention core alone, " + MEGATRON)
    kept_products: bool = yes("Of the operations that such recomputation keeps, products are some.", default=True,
        because="each second product's output stays")
    repeats_attention: bool = yes("Such recomputation runs attention again, for its kernel is not among those kept.",
        because="attention's output stays")
    exchanges_again: bool = yes("Where it chooses by operation, tokens go to their experts and back again.",
        because="what all-to-alls end with is kept")
    compiled_layers: bool = yes("Each layer is one compiled graph (torch.compile): gate and product are one kernel, "
        "and selective recomputation neither keeps nor repeats an MLP's last product, which no backward pass needs.",
        because="operation by operation")
    recompute_stops_early: bool = yes(
        "Recomputation of a layer ends with the last tensor that its backward pass needs.",
        because="a layer is repeated whole, " + MEGATRON)
    whole_repeats_zero: float = figure(1, 4, "The first ZeRO stage with which it is repeated whole all the same.",
        whole=True, default=4.0, because="the stage makes no difference")
    recomputed_head: bool = yes(
        "Full recomputation repeats the head too.", because="the head lies outside, " + MEGATRON)
    layer_split: str = setting(Literal["even", "balanced", "parameters", "products"],
        "How it splits layers over stages: even, balanced (by cost), parameters or products.", default="even")

    # Kernels.
    fused_experts: bool = yes("All experts of a rank are one kernel, with gate and fp8 cast in its epilogue.",
        because="a product for each expert, Megatron-Core's default")
    grouped_experts: bool = yes("All experts of a rank are one product (torch._grouped_mm), without the epilogue.",
        because="a product for each expert, Megatron-Core's default")
    nvfp4_wide_layers: float = figure(0, 1, "Share of the layers whose products stay in 16 bits in nvfp4 training.",
        default=0.0, because="none, as Megatron-Bridge's recipes that its published speeds were measured with")
    fp8_attention: bool = yes(
        "Attention runs in fp8 where products do: at the rate of 16 bits here, but with whole windows backward.",
        because="attention runs in 16 bits unless asked otherwise, Transformer Engine's default")
    fused_routing: bool = yes(
        "The router, its loss and each sorting of tokens by expert are a kernel or two, not one an operation.",
        because="operation by operation, Megatron-Core's default")
    single_adds: bool = yes("Where routing runs operation by operation, a token's copies are added up one number at a "
        "time, by PyTorch's scatter_add and index_add of before 2026-05.", because="a kernel adds whole rows")
    gathered_tokens: bool = yes(
        "The tokens of a tensor and expert group are gathered whole, and each rank sorts the copies for its experts "
        "(Megatron-LM's dispatcher allgather).", because="copies go from rank to rank in an all-to-all")
    fused_rotary: bool = yes(
        "Rotary positions turn queries, and keys, in one kernel each.", because="operation by operation")
    odd_vocab: bool = yes("The vocabulary has as many rows as the model says, which may begin at odd places in memory.",
        because="it is padded to a multiple of 128 on each tensor rank, Megatron-LM's default")
    masked_softmax: bool = yes("Fused softmax reads a mask and whole rows.",
        because="it knows the causal mask and reads the half that is kept, " + MEGATRON)
    eager_llama: bool = yes(
        "Norms and rotary positions not fused run as Hugging Face's Llama, which takes longer than their bytes.",
        because="as long as their bytes")
    entropy_forward_bytes: float = figure(
        0, 200, "Bytes per logit that cross-entropy moves through memory forward.", default=38.0, because=EAGER)
    entropy_backward_bytes: float = figure(
        0, 200, "Bytes per logit that cross-entropy moves through memory backward.", default=14.0, because=EAGER)

    # The host.
    host_layer_forward_s: float = figure(
        0, 1e5, "The host's time to launch a layer's forward pass, which bounds short kernels.", unit="us", kind="host")
    host_layer_backward_s: float = figure(
        0, 1e5, "The host's time to launch a layer's backward pass.", unit="us", fit=(0.0, 3000.0, 1000.0), kind="host")
    host_experts_s: float = figure(
        0, 1e5, "The host's time beyond that for either pass of a layer with experts: launches, and the wait for how "
        "many tokens each expert gets.", unit="us", default=0.0, because=GRAPHS, kind="host")
    host_expert_s: float = figure(0, 1e4, "The host's time beyond that for each of the rank's experts in either pass: "
        "products launched one by one, and what Python does for each weight.", unit="us", default=0.0,
        because="one grouped product", kind="host")
    host_latent_s: float = figure(0, 1e5, "The host's time beyond that for either pass of latent attention.", unit="us",
        default=0.0, because=GRAPHS, kind="host")
    host_context_s: float = figure(
        0, 1e5, "The host's time beyond that for each further step of a context ring, in either pass.", unit="us",
        default=0.0, because=GRAPHS, kind="host")
    host_tensor_s: float = figure(
        0, 1e5, "The host's time beyond that for either pass of a layer cut over tensor ranks.", unit="us", default=0.0,
        because=UNPROBED, kind="host")
    host_sharded_s: float = figure(
        0, 1e5, "The host's time beyond that for either pass of a layer that ranks gather and scatter.", unit="us",
        default=0.0, because=UNPROBED, kind="host")
    host_recompute_s: float = figure(
        0, 1e5, "The host's time beyond its launches for a recomputed layer: hooks of the tensors that it saves. "
        "Compiled layers have none.", unit="us", default=0.0, because=UNPROBED, kind="host")
    host_fp8_s: float = figure(0, 1e5, "The host's time beyond that for either pass of a layer in fp8 or fewer bits.",
        unit="us", default=0.0, because=GRAPHS, kind="host")
    host_step_s: float = figure(0, 1e8, "The host's fixed time per step.", unit="us", kind="host")
    blocking_launches: bool = setting(
        bool, "The host waits for every kernel (CUDA_LAUNCH_BLOCKING=1): its time adds to the GPU's.", default=False)
    gather_piece_s: float = figure(
        0, 1e5, "The host's time for each piece of a tensor, one per replica, that ZeRO 1 and 2 gather piece by piece.",
        unit="us", default=0.0, because="gathered in one piece", kind="host")

    # Memory.
    fp8_parameter_bytes: float = figure(
        1, 4, "Bytes per parameter of a layer in fp8 training, as it is kept and gathered.", default=2.0,
        because="16-bit parameters, Transformer Engine's default")
    fp8_copy_bytes: float = figure(
        0, 4,
        "Bytes per parameter that products keep from one micro-batch to the next: its value in fp8 and the transpose.",
        default=0.0, because=NONE_KNOWN)
    sharded_fp8_copy_bytes: float = figure(
        0, 4, "The same with ZeRO 3, where products keep copies of all that was gathered once.", default=0.0,
        because="copies are of gathered layers alone")
    whole_embedding: bool = yes("Tensor ranks hold the embedding whole.", because="they share its words, " + MEGATRON)
    spare_gradients: bool = yes(
        "An empty 16-bit gradient is kept for each shape of a layer's matrices, whose products add to the main one.",
        because=NONE_KNOWN)
    gather_copy_bytes: float = figure(
        0, 4, "Bytes per parameter of the copy, in one piece, through which ZeRO 1 and 2 gather updated parameters.",
        default=0.0, because=NONE_KNOWN)
    live_parameters: float = figure(
        0, 1e13, "Parameters that ZeRO 3 keeps gathered at most, or one matrix; 0: two layers, whatever their size.",
        default=0.0, because="whole layers, as FSDP wraps them")
    keeps_gathered: bool = yes("Layers that ZeRO 3 gathered stay so until their backward pass, unless they are "
        "recomputed whole, for their products keep the weights.", because="each is freed behind its pass")
    reduce_bucket_parameters: float = figure(
        0, 1e13, "Gradients that ZeRO 2 and 3 hold at most before they scatter them, or one matrix's; 0: a layer's.",
        default=0.0, because="whole layers, as FSDP wraps them")
    reduce_buffers: float = figure(0, 4, "Buffers of reduce_bucket_parameters 16-bit gradients each, allocated whole, "
        "which ZeRO 1 and 2 fill in turn; ZeRO 3 and pipelines have one. Beside them a matrix's gradient is whole.",
        whole=True, default=0.0, because=NONE_KNOWN)
    gathered_inputs: float = figure(0, 2, "Of a layer's two column-parallel products, how many keep the whole input "
        "that sequence parallelism gathered until the backward pass, rather than this rank's part of it.", default=0.0,
        because="it is gathered again, " + MEGATRON)
    gate_tensors: float = figure(
        1, 5, "Of a gated MLP's gate, up, activated gate and product, how many stay until the backward pass: 4, or 3 "
        "where a fused kernel activates again, or 5 where up is shifted.", default=4.0,
        because="all stay without a fused kernel")
    eager_norm_bytes: float = figure(
        0, 16,
        "Bytes per element of its input that an eager RMSNorm keeps more than a fused one, which keeps the input.",
        default=8.0, because="the fp32 copy of its input and the fp32 product, of ATen's operations")
    fp32_expert_outputs: bool = yes(
        "Experts' outputs that stay do so in fp32, in which they are weighted.", because="in 16 bits")
    cached_keys_values: float = figure(0, 4, "Passes whose keys and values stay of every layer that is recomputed "
        "whole: a model's cache for generating, left on.", default=0.0, because="no cache in training")
    holds_router_loss: bool = yes("What layers recomputed whole have before their experts stays until the next pass: "
        "the router's loss of the recomputation holds it.", because="the loss of the first pass alone is held")
    kept_expert_outputs: bool = yes(
        "Experts' outputs stay until the backward pass, for each is weighted by the router's probability after it; "
        "else the inner activation was.", default=True, because="weighted after the experts, the textbook's order")
    logit_copies: float = figure(0, 8, "fp32 copies of the logits that live at once, beside the 16-bit ones.",
        default=1.0, because="the loss is taken of one fp32 copy, " + MEGATRON)
    split_logit_copies: float = figure(0, 8, "The same where tensor ranks share the logits.", like="logit_copies")
    pipelined_logit_copies: float = figure(0, 8, "The same on a pipeline's last stage.", like="logit_copies")
    logit_chunks: float = figure(1, 1024, "Parts of a micro-batch whose logits and loss are taken one after another.",
        whole=True, default=1.0, because="all at once")
    freed_in_turn: bool = yes(
        "A step's memory is counted in turn: logits are freed before layers' backward passes, gradients come as "
        "activations go, embedding and head are gathered one at a time.", because="all counted as if at once")
    scatter_bytes: float = figure(
        0, 64, "Bytes per parameter of copies that ZeRO 2 and 3 scatter gradients from; counted with freed_in_turn.",
        default=0.0, because=NONE_KNOWN)
    stage_buffers: bool = yes(
        "A pipeline's stages hold a buffer for every micro-batch's input and for every gradient of their output.",
        because="a buffer goes with its micro-batch, " + MEGATRON)
    one_sharded_copy: bool = yes(
        "What ZeRO 3 shards is the optimizer's fp32 parameter alone: 16 bits exist of gathered layers.",
        because="a 16-bit parameter is sharded beside it, DeepSpeed's way")
    splits_layers: bool = yes("It splits layers over tensor and context ranks itself; else a model's own code must.",
        default=True, because=MEGATRON)
    data_parallel_alone: bool = yes("Its published runs have data-parallel ranks alone, but for a few.",
        because="those of Megatron-LM have tensor ranks and stages")
    spreads_tokens: bool = yes("Tensor ranks have sequence parallelism where nothing is said.",
        because="off unless --sequence-parallel is given, " + MEGATRON)
    reserved_bytes: float = figure(0, 1e3, "Memory of context, communicators and workspaces.", unit="gib")
    fragmentation: float = figure(0, 10, "Memory lost to fragmentation, as a share of activations and buffers.")

    unstated: Unstated = setting(
        Unstated, "What a measured run of it is taken to have run where it doesn't say.", default=Unstated())
    runs: Runs = setting(
        Runs, "Schedules, pipeline stages and context ranks that it has; all, where it doesn't say.", default=Runs())
    fitted: Mapping[str, Mapping[str, str]] = setting(
        dict[str, dict[str, str]], "By GPU architecture, the figures that a fit to runs may move, each with a name: "
        "frameworks that say the same one share the figure. A base's don't count.", default={})
    sources: Mapping[str, str]
    own_file: str | None = field(default=None, compare=False)
    """The path of a file of one's own that it came from."""

    @property
    def one_product(self) -> bool:
        """Whether a rank's experts are one product, which the host launches at once."""
        return self.fused_experts or self.grouped_experts
# fmt: on
