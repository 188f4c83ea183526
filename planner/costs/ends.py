"""Seconds of what the first and last pipeline stages do besides layers: embedding, head, cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.costs.kernels import Device, matmul_s, stream_s
from planner.costs.shapes import has_dropout, padded_vocab, pass_tokens
from planner.hardware import Framework
from planner.layouts import Layouts, Recompute
from planner.models import Transformer

__all__ = ["EndsCost", "ends_cost", "with_gathered_logits"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class EndsCost:
    """Seconds for one micro-batch, arrays of shape (n,): embedding on the first stage, head on the last."""

    embedding_forward_s: Array
    embedding_backward_s: Array
    head_forward_s: Array
    head_backward_s: Array


def ends_cost(device: Device, framework: Framework, model: Transformer, layouts: Layouts) -> EndsCost:
    """Embedding look-up, the product onto the vocabulary and cross-entropy: vocabulary-parallel, or of all logits."""
    tokens, k = pass_tokens(model, layouts), layouts.sequence_slices
    columns = padded_vocab(model, layouts) / layouts.tp
    hidden = tokens * model.hidden
    logits = tokens * columns * (layouts.tp if framework.gathered_logits else 1)
    dropout = has_dropout(model, layouts) * 1.0
    embed = stream_s(device, hidden * device.element_bytes * (2.0 + 2.0 * dropout), 3.0)
    # The gradient is scattered into the whole table's gradient.
    embed_back = stream_s(device, hidden * (device.element_bytes * (2.0 + dropout) + 4.0), 3.0)
    product = matmul_s(device, tokens, columns, model.hidden)
    if framework.gathered_logits:
        # The ranks' parts, once gathered, are copied side by side.
        product = product + np.where(layouts.tp > 1, stream_s(device, 2.0 * logits * device.element_bytes), 0.0)
    head = product + stream_s(device, logits * framework.entropy_forward_bytes, 6.0)
    head_back = (
        matmul_s(device, tokens, model.hidden, columns)
        + matmul_s(device, columns, model.hidden, tokens)
        + stream_s(device, logits * framework.entropy_backward_bytes, 3.0)
    )
    if framework.recomputed_head:
        head_back = head_back + np.where(layouts.recompute == Recompute.FULL, product, 0.0)
    return EndsCost(
        embedding_forward_s=k * embed,
        embedding_backward_s=k * embed_back,
        head_forward_s=k * head,
        head_backward_s=k * head_back,
    )


def with_gathered_logits(framework: Framework, layouts: Layouts, ends: EndsCost, logits_s: Array) -> EndsCost:
    """The ends with the seconds of gathering the logits, where a framework does: again where the head recomputes."""
    if not framework.gathered_logits:
        return ends
    again = (layouts.recompute == Recompute.FULL) & framework.recomputed_head
    return replace(
        ends,
        head_forward_s=ends.head_forward_s + logits_s,
        head_backward_s=ends.head_backward_s + np.where(again, logits_s, 0.0),
    )
