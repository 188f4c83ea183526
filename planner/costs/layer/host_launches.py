"""Seconds that the host needs to launch the passes of the average layer. Array-first, shape (n,)."""

from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.costs.case import Case
from planner.costs.shapes import is_latent
from planner.models import mix


def host_s(case: Case, gathered: Any = False) -> tuple[Array, Array]:
    """Host seconds of a layer's forward and backward pass, without what recomputation repeats.

    A layer of two blocks (a hybrid's has one), and what experts, latent attention, the further steps of a context ring,
    tensor ranks, sharding and fp8's casts add to it. What both passes take together was measured for these; half of it
    counts in either. gathered: where ranks gather and scatter the layer. Compiled layers have DTensor's operations
    traced, not dispatched.
    """
    f, layouts, part = case.framework, case.layouts, mix.shares(case.model)
    steps = np.maximum(layouts.cp // layouts.ulysses, 1) - 1.0
    either = part.attention * (is_latent(case.model) * f.host_latent_s + steps * f.host_context_s)
    fp8_s = np.where(case.device.matrix_bytes < 2.0, f.host_fp8_s, 0.0)
    experts_s = f.host_experts_s + case.local_experts * f.host_expert_s
    either = either + part.sparse * experts_s + part.blocks / 2.0 * fp8_s
    if f.host_tensor_s or f.host_sharded_s:
        sharded_s = np.where(gathered & (layouts.shards > 1), f.host_sharded_s, 0.0)
        tensor_s = np.where(layouts.tp > 1, f.host_tensor_s * (not f.compiled_layers), 0.0)
        either = either + part.blocks / 2.0 * (tensor_s + sharded_s)
    k = layouts.sequence_slices * case.cluster.host_pace
    own = (f.host_layer_forward_s, f.host_layer_backward_s)
    forward, backward = (np.asarray(k * (part.blocks / 2.0 * one + either)) for one in own)
    return forward, backward
