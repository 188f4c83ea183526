"""Seconds of what the first and last pipeline stages do besides layers: embedding, head, multi-token prediction."""

from dataclasses import replace

import numpy as np

from planner.base.arrays import Array, record
from planner.costs.adapters import frozen
from planner.costs.case import Case
from planner.costs.kernels.device import aligned_share, matmul_s, stream_s
from planner.costs.shapes import has_dropout
from planner.layouts import Recompute
from planner.models import Transformer


@record
class EmbeddingHeadCost:
    """Seconds for one micro-batch, arrays of shape (n,): embedding on the first stage, head on the last.

    head: with those of multi-token prediction. module: of all its modules, their layers, norms and projections.
    """

    embedding_forward_s: Array
    embedding_backward_s: Array
    head_forward_s: Array
    head_backward_s: Array
    module_forward_s: Array
    module_backward_s: Array

    @property
    def head_s(self) -> Array:
        """Forward and backward of the heads and all modules."""
        return self.head_forward_s + self.head_backward_s + self.module_forward_s + self.module_backward_s


def embedding_head_cost(case: Case) -> EmbeddingHeadCost:
    """Embedding look-up, the product onto the vocabulary and cross-entropy: vocabulary-parallel, or of all logits."""
    device, framework, model, layouts = case.device, case.framework, case.model, case.layouts
    tokens, k = case.pass_tokens, layouts.sequence_slices
    columns = case.padded_vocab / layouts.tp
    hidden = tokens * model.hidden
    logits = tokens * columns * (layouts.tp if framework.gathered_logits else 1)
    dropout = has_dropout(model, layouts) * 1.0
    embed = stream_s(device, hidden * device.element_bytes * (2.0 + 2.0 * dropout), 3.0)
    # The gradient is scattered into the whole table's gradient; a frozen one has none.
    moves = 1.0 - frozen(case)
    embed_back = moves * stream_s(device, hidden * (device.element_bytes * (2.0 + dropout) + 4.0), 3.0)
    # The head is no layer: its product stays in 16 bits. A row of logits is as long as the vocabulary.
    row = np.ceil(np.asarray(model.vocab) / layouts.tp) if framework.odd_vocab else columns
    along, both = (aligned_share(device, device.element_bytes, *s) for s in ((model.hidden,), (model.hidden, row)))
    product = matmul_s(device.wide, tokens, columns, model.hidden, along)
    if framework.gathered_logits:
        # The ranks' parts, once gathered, are copied side by side.
        product = product + np.where(layouts.tp > 1, stream_s(device, 2.0 * logits * device.element_bytes), 0.0)
    head = product + stream_s(device, logits * framework.entropy_forward_bytes, 6.0)
    head_back = (
        matmul_s(device.wide, tokens, model.hidden, columns, both)
        + moves * matmul_s(device.wide, columns, model.hidden, tokens, both)
        + stream_s(device, logits * framework.entropy_backward_bytes, 3.0)
    )
    if framework.recomputed_head:
        head_back = head_back + np.where(layouts.recompute == Recompute.FULL, product, 0.0)
    further = np.asarray(model.num_mtp_layers)
    module, module_back = np.zeros_like(head), np.zeros_like(head)
    if np.any(further):
        # A module looks up the next tokens' embeddings, joins them, each behind a norm, with the last hidden state,
        # and projects both; its layer is added where a layer's time is known (`with_modules`).
        rows, width = tokens, model.hidden / layouts.tp
        joined = stream_s(device, hidden * device.element_bytes * 10.0, 4.0)
        project = matmul_s(device, rows, width, 2.0 * model.hidden)
        project_back = matmul_s(device, rows, 2.0 * model.hidden, width)
        project_back = project_back + moves * matmul_s(device, width, 2.0 * model.hidden, rows)
        head, head_back = (1 + further) * head, (1 + further) * head_back
        module = further * (embed + joined + project)
        module_back = further * (embed_back + 2.0 * joined + project_back)
    return EmbeddingHeadCost(
        embedding_forward_s=k * embed,
        embedding_backward_s=k * embed_back,
        head_forward_s=k * head,
        head_backward_s=k * head_back,
        module_forward_s=k * module,
        module_backward_s=k * module_back,
    )


def with_modules(model: Transformer, ends: EmbeddingHeadCost, forward_s: Array, backward_s: Array) -> EmbeddingHeadCost:
    """The ends with the layers of multi-token prediction; forward_s, backward_s: of a layer, collectives included."""
    further = np.asarray(model.num_mtp_layers)
    if not np.any(further):
        return ends
    return replace(
        ends,
        module_forward_s=ends.module_forward_s + further * forward_s,
        module_backward_s=ends.module_backward_s + further * backward_s,
    )


def with_gathered_logits(case: Case, ends: EmbeddingHeadCost, logits_s: Array) -> EmbeddingHeadCost:
    """The ends with the seconds of gathering the logits, where a framework does: again where the head recomputes."""
    if not case.framework.gathered_logits:
        return ends
    again = (case.layouts.recompute == Recompute.FULL) & case.framework.recomputed_head
    return replace(
        ends,
        head_forward_s=ends.head_forward_s + logits_s,
        head_backward_s=ends.head_backward_s + np.where(again, logits_s, 0.0),
    )
