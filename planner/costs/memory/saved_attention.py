"""Bytes of one layer's attention core: what it keeps for the backward pass, and its gradients. Array-first, (n,)."""

from __future__ import annotations

import numpy as np

from planner.base.arrays import Array
from planner.costs.case import Case
from planner.costs.kernels.attention import score_elements
from planner.costs.shapes import has_dropout
from planner.layouts import Attention


def attention_core_bytes(case: Case) -> Array:
    """What the attention core saves besides its inputs: softmax and dropout of b a s^2 scores, or flash's sums."""
    kernel = case.layouts.attention
    scores = score_elements(case)
    e = case.device.element_bytes
    dropout = has_dropout(case.model, case.layouts) * 1.0
    fused = scores * (e + dropout * (e + 1.0))
    # Eager softmax keeps its fp32 output beside the cast copy; the masked scores' mask is a byte each.
    unfused = scores * (e + 4.0 + 1.0 + dropout * (e + 1.0))
    sums = case.local_tokens * case.model.num_heads / case.layouts.tp * 4.0
    flash = kernel >= Attention.FLASH1
    return np.asarray(np.where(flash, sums, np.where(kernel == Attention.FUSED, fused, unfused)))


def score_gradient_bytes(case: Case) -> Array:
    """Gradients of b a s^2 scores while one layer's attention core runs backward; flash keeps its own in registers.

    A fused softmax overwrites the gradient of its output (Megatron-LM, scaled_masked_softmax). An eager one makes those
    of its fp32 output and input beside that of the cast copy.
    """
    scores = score_elements(case) / case.layouts.sequence_slices
    eager = case.layouts.attention == Attention.UNFUSED
    flash = case.layouts.attention >= Attention.FLASH1
    return np.asarray(np.where(flash, 0.0, scores * (case.device.element_bytes + np.where(eager, 8.0, 0.0))))
