"""Seconds that the host needs to launch the passes of the average layer. Array-first, shape (n,)."""

from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools
from planner.costs.case import Case
from planner.costs.layer.expert_routing import dispatchers
from planner.costs.shapes import is_latent
from planner.layouts import Dispatcher, Layouts, Recompute
from planner.models import mix

GRAPHS_BY_DEFAULT = ("blackwell", "blackwell-ultra")
"""GPUs fast enough that most public recipes replay layers as CUDA graphs (the profile's source of captures_graphs)."""


def graphed(layouts: Layouts) -> Bools:
    """Where layers are replayed as CUDA graphs; not where they are recomputed whole or wait in host memory.

    Megatron-Core refuses both beside them (transformer_config.py).
    """
    return np.asarray(layouts.cuda_graphs & (layouts.recompute != Recompute.FULL) & (layouts.offload_layers == 0))


def host_s(case: Case, gathered: Any = False) -> tuple[Array, Array]:
    """Host seconds of a layer's forward and backward pass, without what recomputation repeats.

    A layer of two blocks (a hybrid's has one), and what experts, latent attention, the further steps of a context ring,
    tensor ranks, sharding and fp8's casts add to it. What both passes take together was measured for these; half of it
    counts in either. gathered: where ranks gather and scatter the layer. Compiled layers have DTensor's operations
    traced, not dispatched. Of a layer that is replayed as a CUDA graph only the experts' part is left, if any.
    """
    f, layouts, part = case.framework, case.layouts, mix.shares(case.model)
    steps = np.maximum(layouts.cp // layouts.ulysses, 1) - 1.0
    either = part.attention * (is_latent(case.model) * f.host_latent_s + steps * f.host_context_s)
    fp8_s = np.where(case.device.matrix_bytes < 2.0, f.host_fp8_s, 0.0)
    experts_s = f.host_experts_s + case.local_experts * f.host_expert_s
    either = either + part.sparse * experts_s + part.blocks / 2.0 * fp8_s
    if f.host_tensor_s or f.host_sharded_s:
        sharded_s = np.where(gathered & ((layouts.shards > 1) | f.shards_alone), f.host_sharded_s, 0.0)
        tensor_s = np.where(layouts.tp > 1, f.host_tensor_s * (not f.compiled_layers), 0.0)
        either = either + part.blocks / 2.0 * (tensor_s + sharded_s)
    k = layouts.sequence_slices * case.cluster.host_pace
    own = (f.host_layer_forward_s, f.host_layer_backward_s)
    forward, backward = (np.asarray(k * (part.blocks / 2.0 * one + either)) for one in own)
    if not np.any(replayed := graphed(layouts)):
        return forward, backward
    beside = k * (part.sparse * _beside_graphs_s(case))
    return np.where(replayed, beside, forward), np.where(replayed, beside, backward)


def _beside_graphs_s(case: Case) -> Array:
    """Host seconds of either pass of a layer with experts whose other parts are a CUDA graph.

    Experts whose tokens differ from one micro-batch to the next are outside it: their products are launched one by one,
    and under a plain all-to-all the host waits for how many tokens each gets (Megatron-Core 0.16.1,
    transformer_config.py; Megatron-Bridge, skills/nemo-mbridge-perf-cuda-graphs). Padded to a capacity they are inside.
    """
    f, plain = case.framework, dispatchers(case) == Dispatcher.ALLTOALL
    outside_s = case.local_experts * f.host_expert_s + np.where(plain, f.host_experts_s, 0.0)
    return np.asarray(np.where(case.layouts.capacity_factor > 0.0, 0.0, outside_s))
