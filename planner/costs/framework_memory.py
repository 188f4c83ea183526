"""What a framework keeps more or less than the tensors that all of them keep, in bytes. Array-first, shape (n,)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.costs.kernels import Device
from planner.costs.shapes import inner_width, local_tokens, padded_vocab, pass_tokens
from planner.hardware import Framework
from planner.layouts import Layouts
from planner.models import Transformer

Array = NDArray[np.float64]


def gathered_inputs_bytes(device: Device, framework: Framework, model: Transformer, layouts: Layouts) -> Array:
    """What a layer keeps of other ranks' inputs, where its products keep those that sequence parallelism gathered."""
    others = np.where(layouts.sequence_parallel, 1.0 - 1.0 / layouts.tp, 0.0)
    whole = local_tokens(model, layouts) * model.hidden * device.matrix_bytes
    return np.asarray(framework.gathered_inputs * others * whole)


def fused_gate_bytes(device: Device, framework: Framework, model: Transformer, layouts: Layouts) -> Array:
    """What a layer's gated MLP does not keep, where a fused kernel makes some of its inner tensors again."""
    tensors = np.where(model.gated, 4.0 - framework.gate_tensors, 0.0)
    return np.asarray(tensors * local_tokens(model, layouts) / layouts.tp * inner_width(model) * device.element_bytes)


def gather_copy_bytes(
    device: Device, framework: Framework, model: Transformer, layouts: Layouts, params: Array, last: Any
) -> Array:
    """What ZeRO's gather of updated parameters adds to a rank's peak, where it goes through a copy in one piece.

    The activations are gone by then, but a caching allocator hands out only blocks as large as those it has: what is
    larger is new memory. The largest block of a pass is its fp32 logits, or the MLP's gate and up.
    """
    inner = np.where(model.gated, 2.0, 1.0) * np.maximum(model.ffn, np.asarray(model.moe_ffn) * model.top_k)
    logits = (np.asarray(last) > 0) * padded_vocab(model, layouts) * 4.0
    largest = pass_tokens(model, layouts) / layouts.tp * np.maximum(inner * device.element_bytes, logits)
    size = params * framework.gather_copy_bytes
    used = (layouts.shards > 1) & ((layouts.zero == 1) | (layouts.zero == 2))
    return np.asarray(np.where(used & (size > largest), size, 0.0))
