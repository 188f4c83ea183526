"""Hardware and models of round numbers, on which the cost formulas can be worked out by hand.

A lens shows one resource alone: on `FLOP` a second is a FLOP, on `BYTES` a byte of memory, on `LAUNCHES` a kernel.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from planner.costs.case import Case
from planner.costs.kernels.device import Device
from planner.costs.layer.slices import work_until
from planner.costs.memory.saved_activations import layer_tensors
from planner.costs.parameters import RankParameters
from planner.hardware import load_accelerator, load_cluster, load_framework
from planner.layouts import Attention, GradDtype, Layouts, MainDtype, Precision
from planner.models import Transformer

NAMES = [p.name.lower() for p in Precision]
ACCELERATOR = load_accelerator("a100-sxm-80gb")
IDEAL = replace(
    ACCELERATOR.efficiency,
    matrix_fraction=dict.fromkeys(NAMES, 1.0),
    tile_rows=1.0,
    tile_columns=1.0,
    depth_half=0.0,
    kernel_latency_s=0.0,
    expert_product_s=0.0,
    wide_expert_product_s=0.0,
    memory_fraction=1.0,
    memory_latency_s=0.0,
    permute_fraction=1.0,
    flash_forward={"flash1": 1.0, "flash2": 1.0, "flash3": 1.0},
    flash_backward={"flash1": 1.0, "flash2": 1.0, "flash3": 1.0},
    flash_half_tokens={},
    flash_tail_waves={},
    flash_head_step=1.0,
    aligned_fraction={},
    rate_spread=0.0,
    attention_matrix_fraction=1.0,
    scan_matrix_fraction=1.0,
)


def accelerator(flops: float = np.inf, bandwidth: float = np.inf, **efficiency: Any) -> Any:
    """An accelerator of one compute unit with these rates; without them a resource costs nothing."""
    return replace(
        ACCELERATOR, efficiency=replace(IDEAL, **efficiency), peak_flops=dict.fromkeys(NAMES, flops),
        num_compute_units=1, memory_bandwidth_bytes_per_s=bandwidth,
    )  # fmt: skip


FLOP = accelerator(flops=1.0)
BYTES = accelerator(bandwidth=1.0)
LAUNCHES = accelerator(kernel_latency_s=1.0)


def case(
    of: Any = None, model: Any = None, layouts: Layouts | None = None, *, framework: Any = None, cluster: Any = None
) -> Case:
    """Layouts of a toy on an accelerator of round numbers, or on a device made of one."""
    chosen = layout() if layouts is None else layouts
    on = device(FLOP if of is None else of, chosen) if not isinstance(of, Device) else of
    return Case(
        device=on, model=model or GPT, cluster=cluster or CLUSTER, framework=framework or FRAMEWORK, layouts=chosen
    )


def device(of: Any, layouts: Layouts) -> Device:
    """The accelerator as a table of layouts sees it."""
    return Device.of(of, layouts.precision, layouts.gpus)


# 48 tokens per micro-batch of 3 sequences; 768 weights in a layer's products.
GPT = Transformer(
    name="toy-gpt", family="gpt", num_layers=2, hidden=8, ffn=32, num_heads=2, num_kv_heads=2, head_dim=4, vocab=250,
    seq_len=16, max_positions=16, dropout=True, tied=True, qkv_bias=True, output_bias=True, mlp_bias=True,
    num_dense_layers=2,
)  # fmt: skip
LLAMA = replace(
    GPT, family="llama", max_positions=0, dropout=False, tied=False, qkv_bias=False, output_bias=False, mlp_bias=False,
    gated=True, rms_norm=True, rotary=True,
)  # fmt: skip
MOE = replace(LLAMA, family="moe", num_dense_layers=1, num_experts=4, top_k=2, moe_ffn=16, num_shared_experts=1)
MLA = replace(LLAMA, head_dim=6, v_head_dim=4, q_lora_rank=6, kv_lora_rank=4, qk_rope_head_dim=2)

# Two layers: 4 heads of 4 channels in 2 groups with 8 numbers of state, then an MLP of 32.
HYBRID = replace(
    LLAMA, family="hybrid", gated=False, rotary=False, num_dense_layers=1, num_ssm_layers=1, num_mixer_only_layers=1,
    num_mlp_only_layers=1, ssm_heads=4, ssm_head_dim=4, ssm_groups=2, ssm_state=8, ssm_conv=4,
)  # fmt: skip


def layout(**choices: Any) -> Layouts:
    """One layout of 3 sequences per micro-batch, 2 micro-batches."""
    dp = choices.get("dp", 1)
    return Layouts.of(**{"micro_batch": 3, "global_batch": 6 * dp, "attention": Attention.FLASH2, **choices})


# 4 accelerators per node: rings 5 B/s inside, 3 B/s between nodes; sends 2 B/s and 0.375 B/s; starts 1 s and 10 s, and
# through several nodes a ring's step 0.5 s inside and 4 s between.
_BASE = load_cluster("dgx-a100-80gb")
CLUSTER = replace(
    _BASE,
    node_link=replace(
        _BASE.node_link,
        bandwidth_bytes_per_s=10.0,
        fraction=0.5,
        send_fraction=0.2,
        latency_s=1.0,
        ring_step_s=0.5,
        small_latency_s=None,
        small_fraction=None,
    ),
    network=replace(
        _BASE.network, bandwidth_bytes_per_s=3.0, fraction=0.5, send_fraction=0.25, latency_s=10.0, ring_step_s=4.0
    ),
    host_link=replace(_BASE.host_link, bandwidth_bytes_per_s=2.0, fraction=0.5),
    host_memory_bandwidth_bytes_per_s=8.0,
    gpus_per_node=4,
    nics_per_node=2,
)
# Nothing overlaps, nothing is slow, nothing is reserved; gradients of 4 bytes are added up and sent.
FRAMEWORK = replace(
    load_framework("megatron-lm"), gradient_bytes=2.0, bf16_gradient_bytes=4.0, grad_reduce_bytes=2.0,
    bf16_grad_reduce_bytes=4.0, overlap_grad_reduce=0.0, overlap_grad_reduce_pipelined=0.0, overlap_param_gather=0.0,
    overlap_pipeline=0.0, overlap_tensor=0.0, overlap_tensor_backward=0.0, tensor_slowdown=1.0, network_startup_s=0.0,
    host_layer_forward_s=0.0, host_layer_backward_s=0.0, host_step_s=0.0, sharded_nodes=1e6, sharded_stage=1.0,
    update_bytes=0.0, gathered_inputs=0.0, accumulate_bytes=0.0, bf16_accumulate_bytes=0.0, gate_tensors=4.0,
    logit_copies=2.0, split_logit_copies=2.0, pipelined_logit_copies=2.0,
    entropy_forward_bytes=38.0, entropy_backward_bytes=14.0,
    reserved_bytes=0.0, fragmentation=0.0,
)  # fmt: skip


def own(params: Any, experts: Any = 0.0, ends: Any = 0.0) -> RankParameters:
    """A rank's so many parameters, of which shares are experts' or the ends'."""
    params = np.atleast_1d(params)
    return RankParameters(layers=params * (1.0 - experts - ends), experts=params * experts, ends=params * ends)


def layer_bytes(of: Case) -> Any:
    """Bytes that a layer keeps when nothing is recomputed, but for attention's scores."""
    return layer_tensors(of).total_bytes


def slice_shares(model: Transformer, slices: list[int]) -> np.ndarray:
    """Each slice's share of a sequence's forward FLOP (`work_until`), shape (k,), summing to 1."""
    work = np.diff(work_until(model, np.cumsum(slices)), prepend=0.0)
    return np.asarray(work / work.sum())


def number_formats(pick):
    """Formats of products, weights and gradients that go together; pick: one of its arguments."""
    precision, gradient = pick(*Precision), pick(0, *GradDtype)
    narrow = precision >= Precision.BF16 and gradient != GradDtype.FP32
    return {"precision": precision, "grad_dtype": gradient, "main_dtype": pick(*MainDtype) if narrow else 0}
