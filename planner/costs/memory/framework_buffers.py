"""Bytes that a framework keeps more or less than the tensors that all of them keep. Array-first, shape (n,)."""

from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.costs.adapters import frozen
from planner.costs.case import Case
from planner.costs.layer.matmul_shapes import common_products, expert_products
from planner.costs.memory.bytes_per_parameter import kept_pass_bytes
from planner.costs.memory.whole_layers import share_of_larger
from planner.costs.shapes import inner_width, routed_width


def gathered_inputs_bytes(case: Case) -> Array:
    """Bytes that a layer keeps of other ranks' inputs, where products keep those that sequence parallelism gathered."""
    others = np.where(case.layouts.sequence_parallel, 1.0 - 1.0 / case.layouts.tp, 0.0)
    whole = case.local_tokens * case.model.hidden * case.device.matrix_bytes
    return np.asarray(case.framework.gathered_inputs * others * whole)


def fused_gate_bytes(case: Case) -> Array:
    """Bytes that a layer's gated MLP does not keep, where a fused kernel makes some of its inner tensors again.

    Below 0 where operations of their own keep more: experts' product is weighed by another one, and stays beside it.
    """
    model, framework = case.model, case.framework
    weighed = 1.0 * (framework.gate_tensors >= 4 and not framework.kept_expert_outputs)
    width = (4.0 - framework.gate_tensors) * inner_width(model, case.busiest_copies)
    width = np.where(model.gated, width - weighed * routed_width(model, case.busiest_copies), 0.0)
    return np.asarray(case.local_tokens / case.layouts.tp * width * case.device.element_bytes)


def gather_copy_bytes(case: Case, params: Array, last: Any) -> Array:
    """Bytes that ZeRO's gather of updated parameters adds to a rank's peak, where it goes through a copy in one piece.

    The activations are gone by then, but a caching allocator hands out only blocks as large as those it has: what is
    larger is new memory. The largest block of a pass is its fp32 logits, or the MLP's gate and up.
    """
    model, layouts = case.model, case.layouts
    inner = np.where(model.gated, 2.0, 1.0) * np.maximum(model.ffn, np.asarray(model.moe_ffn) * case.busiest_copies)
    logits = (np.asarray(last) > 0) * case.padded_vocab * 4.0
    largest = case.pass_tokens / layouts.tp * np.maximum(inner * case.device.element_bytes, logits)
    size = params * case.framework.gather_copy_bytes
    used = (layouts.shards > 1) & ((layouts.zero == 1) | (layouts.zero == 2))
    return np.asarray(np.where(used & (size > largest), size, 0.0))


def own_buffers_bytes(case: Case, tables: Array, first: Any, last: Any) -> Array:
    """All that a framework keeps beside the tensors of a step; tables: parameters of the rank's embedding and head."""
    buffers = spare_gradients_bytes(case) + stage_buffers_bytes(case, first, last) + reduce_buffers_bytes(case)
    if case.framework.kept_pass_gradient_bytes == 0:
        return np.asarray(buffers)
    return np.asarray(buffers + summed_table_bytes(case, tables, share_of_larger(case.model, first, last)))


def reduce_buffers_bytes(case: Case) -> Array:
    """Buffers that gradients are copied to before ZeRO sums them, as large as a bucket whatever the model.

    DeepSpeed has them from the start of the backward pass (stage_1_and_2.py, setup_buckets) or always (stage3.py,
    IPGBucketZ3), one in a pipeline (reduce_gradients), none where its BF16_Optimizer sums in fp32.
    """
    framework, zero = case.framework, case.layouts.zero
    if framework.reduce_buffers == 0:
        return np.zeros(1)
    one = (zero == 3) | (case.layouts.pp > 1)
    buffers = np.where(one, 1.0, framework.reduce_buffers) * ((zero > 0) & (kept_pass_bytes(case) == 0))
    return np.asarray(buffers * framework.reduce_bucket_parameters * case.device.element_bytes)


def summed_table_bytes(case: Case, tables: Array, larger: Array) -> Array:
    """The fp32 copy through which a table's gradient is added to its sum, where the pass's own gradient stays.

    larger: what one table is of both. DeepSpeed casts tensor after tensor (bf16_optimizer.py, _update_hp_grad); a
    table's copy is larger than the blocks that an allocator has of a pass.
    """
    return np.asarray((kept_pass_bytes(case) > 0) * 4.0 * larger * tables)


def stage_buffers_bytes(case: Case, first: Any, last: Any) -> Array:
    """Buffers for every micro-batch's input and every gradient of an output, of all of a rank's virtual stages.

    PyTorch's torch.distributed.pipelining makes them before the first step and keeps them (stage.py, args_recv_info and
    grad_recv_info). The first stage receives no inputs, the last one no gradients.
    """
    layouts = case.layouts
    if not case.framework.stage_buffers:
        return np.zeros(1)
    one = case.local_tokens / case.token_shares * case.model.hidden * case.device.element_bytes
    received = layouts.micro_batches * (2.0 * layouts.virtual_stages - first - last)
    return np.asarray(np.where(layouts.pp > 1, received * one, 0.0))


def spare_gradients_bytes(case: Case) -> Array:
    """An empty gradient of each of a layer's matrices, as large as the matrix in the format of parameters.

    Transformer Engine hands it to autograd where the product adds to the main gradient, and keeps one for each shape
    (module/base.py, get_dummy_wgrad, since 2.3): layers share it, and so do experts. Matrices of one kind of layer are
    taken to be of different shapes.
    """
    if not case.framework.spare_gradients:
        return np.zeros(1)
    per_shape = [columns * depth * (count > 0) for _, columns, depth, count in common_products(case)]
    per_shape += [columns * depth * (count > 0) for _, columns, depth, count in expert_products(case)]
    return np.where(frozen(case), 0.0, sum(per_shape) * case.device.element_bytes)
