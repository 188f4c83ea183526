"""Bytes at a step's fullest moments, where a framework frees tensors as it goes (PyTorch). Array-first, shape (n,)."""

from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.costs.case import Case
from planner.costs.memory.bytes_per_parameter import parameter_bytes
from planner.costs.memory.whole_layers import WholeBytes, share_of_larger
from planner.costs.parameters import RankParameters
from planner.layouts import Layouts


def peaks_in_turn(layouts: Layouts, working: Array, logits: Array, whole: WholeBytes) -> tuple[Array, Array]:
    """Bytes of what a rank works with at its fullest moment after the forward passes, and what logits add to them.

    The moments are the loss, beside the gathered head; a layer's backward pass; and the scatter of the head's
    gradients. By then the head is freed. With ZeRO 3 the next layer comes into one buffer; when it is copied out of it,
    the head's gradients are freed, but not their copies (FSDP2).
    """
    gathers, layer = layouts.zero == 3, 0.5 * whole.layers
    scatter = whole.copies + np.where(gathers, layer + np.maximum(whole.end, layer), 0.0)
    peak = np.maximum(working + whole.layers + whole.gradients, scatter)
    return peak, np.maximum(logits + np.where(gathers, whole.end, 0.0) - peak, 0.0)


def summed_end_bytes(case: Case, moves: RankParameters, ends: tuple[Any, Any], loss: Array) -> Array:
    """The head's gradient of one micro-batch, before it is added to the others', beside that of its logits.

    loss: bytes of the logits and their log-softmax, each as large as their gradient. Pipelines keep the logits too.
    """
    layouts = case.layouts
    matrix = share_of_larger(case.model, *ends) * moves.ends * parameter_bytes(layouts)
    beside = ends[1] * loss * np.where(layouts.pp > 1, 1.0, 0.5)
    return np.where((layouts.micro_batches > 1) & (layouts.zero < 2), matrix + beside, 0.0)


def in_buckets(layouts: Layouts) -> Any:
    """Whether replicas shard nothing: PyTorch's DistributedDataParallel then keeps buckets for all gradients."""
    return (layouts.zero == 0) & (layouts.dp * layouts.cp > 1)


def gradients_in_turn(case: Case, gradients: Array, freed: Array, in_flight: Any) -> Array:
    """Bytes that gradients add to a peak before the first backward pass, which frees activations as it makes them.

    Gradients are there already after another pass, and in a buffer that stays from step to step (`gradient_passes`).
    Those of several micro-batches are copied into buckets.
    """
    layouts, buckets = case.layouts, in_buckets(case.layouts)
    fresh = (in_flight >= layouts.micro_batches) & ~buckets & (case.framework.gradient_passes == 0)
    kept = gradients * np.where(buckets & (layouts.micro_batches > 1), 2.0, 1.0)
    return np.where(fresh, np.maximum(gradients - freed, 0.0), kept)
