"""Seconds of the optimizer step: by the bytes it moves, Muon's products, clipping, offload over the host link."""

from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.costs.adapters import trained
from planner.costs.case import Case
from planner.costs.kernels.device import Device, matmul_s
from planner.costs.layer.matmul_shapes import common_products, expert_products
from planner.costs.memory.bytes_per_parameter import (
    gradient_bytes,
    gradients_on_host,
    moment_bytes,
    parameter_bytes,
    parameters_on_host,
    updated_bytes,
)
from planner.costs.parameters import RankParameters, state_parameters
from planner.hardware import Cluster
from planner.layouts import Layouts, OptimizerKind
from planner.models import Transformer, counts, mix

HOST_REACHED = 0.5
"""Fraction of host memory bandwidth that CPU-Adam reaches. It updates 1e9 parameters in 0.22 s and 1e10 in 2.57 s with
256 GB/s (Ren et al. 2021, ZeRO-Offload, arXiv 2101.06840, table 4; recalled), at the 30 bytes that count here."""
CLIP_BYTES = 16.0  # casting the gradient to fp32, scaling and clipping by the global norm pass over it four times
CLIP_IN_BF16 = 6.0  # where all is in bf16: it is read for the norm, read and written to be scaled


def optimizer_s(case: Case, own: RankParameters) -> Array:
    """Seconds of the update, shape (n,).

    own: parameters of the busiest rank before ZeRO's sharding.
    Zeroing and averaging the gradient buffer passes over all that it holds (`gradient_passes`). Of an offloaded state
    gradients go to the host, which updates its share at its memory's rate. Parameters cross the host link where they
    lie on its other side. All this is one after another and beside nothing else.
    """
    layouts, own = case.layouts, trained(case, own)
    gradients, local = (state_parameters(own, layouts, from_stage) for from_stage in (2, 1))
    moved = state_parameters(updated_bytes(own, layouts), layouts, 1)
    clipped = local * np.where(layouts.all_in_bf16, CLIP_IN_BF16, CLIP_BYTES)
    adam = local * np.where(layouts.all_in_bf16, 0.5, 1.0) * (layouts.optimizer == OptimizerKind.ADAM)
    update = (moved + clipped + adam * case.framework.apart_update_bytes) / case.device.memory_rate
    muon = layouts.optimizer == OptimizerKind.MUON
    if np.any(muon):
        update = update + np.where(muon, muon_s(case, own), 0.0)
    buffer = case.framework.gradient_passes * gradients * gradient_bytes(case) / case.device.memory_rate
    buffer = buffer * (1.0 - gradients_on_host(case))
    host = layouts.host_share
    there = moved / host_memory_rate(case.cluster) + clipped / case.device.memory_rate
    linked = local * (host * linked_bytes(case) + np.abs(host - parameters_on_host(case)) * parameter_bytes(layouts))
    linked_s = linked / case.cluster.host_link.reached_bytes_per_s
    return np.asarray((1.0 - host) * update + host * there + linked_s + buffer + case.framework.host_step_s)


def linked_bytes(case: Case) -> Array:
    """Bytes per parameter of an offloaded state's gradient that cross the host link in a step.

    Gradients that wait in host memory go there with every micro-batch, and their sum comes back to be added to
    (DeepSpeed, stage3.py, partition_grads; FSDP adds on the host, which counts the same).
    """
    often = case.scattering * case.layouts.micro_batches
    times = 1.0 + 2.0 * (gradients_on_host(case) > 0) * (often - 1.0)
    return np.asarray(gradient_bytes(case) * times)


def host_memory_rate(cluster: Cluster) -> float:
    """Bytes per second at which a GPU's process updates what lies in host memory: its share of the node's."""
    return HOST_REACHED * cluster.host_memory_bandwidth_bytes_per_s / cluster.gpus_per_node


def offloaded_bytes(model: Transformer, layouts: Layouts, copies: Any) -> Array:
    """Bytes of a job's optimizer states and parameters in its hosts' memory, where they are offloaded, shape (n,).

    Beside the moments these are a parameter and a gradient in the main weights' format, which the update there reads:
    16 bytes with Adam, as DeepSpeed's estimate_zero2_model_states_mem_needs and its like for ZeRO 3 have it.
    Of every parameter once for each copy of what ZeRO shards, else once a replica; an expert's replicas are fewer.
    copies: of the weights that a rank holds.
    """
    sparse = mix.sparse_layers(model) + mix.sparse_modules(model)
    experts = sparse * np.asarray(model.num_experts) * counts.expert_params(model)
    once = counts.total_params(model)
    whole = (once - experts) * layouts.dp * layouts.cp + experts * layouts.expert_replicas
    held = copies * np.where(layouts.zero == 0, whole, once * layouts.dp_replicate)
    parameters = layouts.offload_parameters * held * parameter_bytes(layouts)
    both = np.where(layouts.all_in_bf16, 4.0, 8.0)
    return np.asarray(layouts.host_share * held * (both + moment_bytes(layouts)) + parameters)


STEPS = 5  # of Newton-Schulz, in Jordan's Muon, Moonlight's and Megatron-Core's


def orthogonal_s(device: Device, columns: Any, depth: Any) -> Array:
    """Seconds for one matrix: each step multiplies X by its transpose, the result by itself, and that by X.

    Muon replaces each matrix's momentum by the nearest matrix with orthonormal rows: five Newton-Schulz steps in 16
    bits (Jordan 2024, kellerjordan.github.io/posts/muon; Liu et al. 2025, arXiv 2502.16982). With m rows and n >= m
    columns a step has 4 m^2 n + 2 m^3 FLOP. Tensor ranks orthogonalise their own part (Megatron-Core, --muon-tp-mode
    blockwise, its default). With ZeRO a replica has whole matrices (Megatron-Core, layer_wise_optimizer.py).
    """
    m, n = np.minimum(columns, depth), np.maximum(columns, depth)
    step = matmul_s(device, m, m, n) + matmul_s(device, m, m, m) + matmul_s(device, m, n, m)
    return np.asarray(STEPS * step)


def muon_s(case: Case, own: RankParameters) -> Array:
    """Seconds for a rank's matrices: an equal share of those that its replicas hold, or the largest one alone.

    own: the rank's parameters before sharding. Its layers' vectors count as matrices: they are less than 0.1 %.
    """
    total, largest = np.zeros(1), np.zeros(1)
    shards, of_experts = case.layouts.state_shards[1]
    parts = (common_products(case), own.layers / shards), (expert_products(case), own.experts / of_experts)
    for products, part in parts:
        seconds, held = np.zeros(1), np.zeros(1)
        for _, columns, depth, count in products:
            if not np.any(count):
                continue
            one = orthogonal_s(case.device.wide, columns, depth)
            seconds, held = seconds + count * one, held + count * columns * depth
            largest = np.maximum(largest, np.where(count > 0, one, 0.0))
        total = total + part * seconds / np.maximum(held, 1.0)
    return np.asarray(np.maximum(total, largest))
