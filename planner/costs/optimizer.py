"""Seconds of the optimizer step: by the bytes it moves, Muon's products, clipping, offload over the host link."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.costs.case import Case
from planner.costs.memory.bytes_per_parameter import gradient_bytes, main_bytes, moment_bytes, updated_bytes
from planner.costs.memory.parameters import RankParameters, expert_replicas, state_parameters
from planner.costs.muon import muon_s
from planner.layouts import Layouts, OptimizerKind
from planner.models import Transformer, counts, mix

CLIP_BYTES = 16.0  # casting the gradient to fp32, scaling and clipping by the global norm pass over it four times


def optimizer_s(case: Case, own: RankParameters) -> Array:
    """Seconds of the update, shape (n,).

    own: parameters of the busiest rank before ZeRO's sharding.
    Zeroing and averaging the gradient buffer passes over all that it holds. An offloaded state sends gradients to the
    host and gets parameters back over the host link; the host's own arithmetic is taken to keep up.
    """
    layouts = case.layouts
    gradients, local = (state_parameters(own, layouts, from_stage) for from_stage in (2, 1))
    moved = state_parameters(updated_bytes(own, layouts), layouts, 1) + local * CLIP_BYTES
    update = moved / case.device.memory_rate
    muon = layouts.optimizer == OptimizerKind.MUON
    if np.any(muon):
        update = update + np.where(muon, muon_s(case, own), 0.0)
    buffer = 3.0 * gradients * gradient_bytes(case) / case.device.memory_rate
    host = case.cluster.host_link.bandwidth_bytes_per_s * case.cluster.host_link.fraction
    offloaded = local * (gradient_bytes(case) + 2.0) / host
    return np.asarray(np.where(layouts.offload_optimizer, offloaded, update) + buffer + case.framework.host_step_s)


def offloaded_bytes(model: Transformer, layouts: Layouts, copies: Any) -> Array:
    """Bytes of a job's optimizer states in its hosts' memory, where they are offloaded, shape (n,).

    Of every parameter once for each copy of what ZeRO shards, else once a replica; an expert's replicas are fewer.
    copies: of the weights that a rank holds.
    """
    sparse = mix.sparse_layers(model) + mix.sparse_modules(model)
    experts = sparse * np.asarray(model.num_experts) * counts.expert_params(model)
    once = counts.total_params(model)
    whole = (once - experts) * layouts.dp * layouts.cp + experts * expert_replicas(layouts)
    held = copies * np.where(layouts.zero == 0, whole, once * layouts.dp_replicate)
    return np.asarray(
        np.where(layouts.offload_optimizer, held * (main_bytes(layouts) + moment_bytes(layouts)), 0.0), dtype=np.float64
    )
