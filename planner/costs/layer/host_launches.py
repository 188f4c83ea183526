"""Seconds that the host needs to launch the passes of the average layer. Array-first, shape (n,)."""

from __future__ import annotations

import numpy as np

from planner.base.arrays import Array
from planner.costs.case import Case
from planner.costs.shapes import is_latent
from planner.models import mix


def host_s(case: Case) -> tuple[Array, Array]:
    """Of the forward and of the backward pass, without what recomputation repeats.

    A layer of two blocks (a hybrid's has one), and what experts, latent attention, the further steps of a context ring
    and fp8's casts add to it. Of these it is measured what both passes take together: half of it counts in either.
    """
    f, layouts, part = case.framework, case.layouts, mix.shares(case.model)
    steps = np.maximum(layouts.cp // layouts.ulysses, 1) - 1.0
    either = part.attention * (is_latent(case.model) * f.host_latent_s + steps * f.host_context_s)
    fp8_s = np.where(case.device.matrix_bytes < 2.0, f.host_fp8_s, 0.0)
    either = either + part.sparse * f.host_experts_s + part.blocks / 2.0 * fp8_s
    k = layouts.sequence_slices * case.cluster.host_pace
    own = (f.host_layer_forward_s, f.host_layer_backward_s)
    forward, backward = (np.asarray(k * (part.blocks / 2.0 * one + either)) for one in own)
    return forward, backward
