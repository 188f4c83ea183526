"""Seconds of one transformer layer for one micro-batch on one rank, by operation. Array-first, shape (n,).

b: sequences in a micro-batch; s: tokens of a sequence on this context rank; t: tensor-parallel degree;
h: hidden size.
"""

from typing import Any

import numpy as np

from planner.base.arrays import Array, record
from planner.costs.adapters import adapter_products, adapters_pass_s, frozen
from planner.costs.case import Case
from planner.costs.kernels.attention import attention_s
from planner.costs.kernels.device import Device, aligned_share, group_s, matmul_s, stream_s
from planner.costs.kernels.state_space import ssm_s
from planner.costs.layer.expert_bias import expert_bias_s
from planner.costs.layer.expert_routing import routed_s
from planner.costs.layer.fp8_casts import casts_s
from planner.costs.layer.kept_operations import by_operation, dropped_products_s
from planner.costs.layer.matmul_shapes import common_products, expert_products, latent_products, mlp_products
from planner.costs.shapes import has_dropout, inner_width, is_latent, routed_width
from planner.costs.summed_gradients import product_bytes
from planner.hardware import Framework
from planner.layouts import Recompute
from planner.models import mix


@record
class LayerCost:
    """Seconds of one layer and micro-batch, each array of shape (n,): forward and backward by kind of work.

    recompute_s: what the backward pass repeats of the forward pass first. weight_grad_s: the part of
    backward_matmul_s that makes weights' gradients (W), on which no other layer waits. launch_s: the part of both
    passes' matmul seconds in which the GPU waits for the host's launches of experts' products.
    """

    forward_matmul_s: Array
    forward_attention_s: Array
    forward_scan_s: Array
    forward_pointwise_s: Array
    backward_matmul_s: Array
    backward_attention_s: Array
    backward_scan_s: Array
    backward_pointwise_s: Array
    recompute_s: Array
    weight_grad_s: Array
    launch_s: Array

    @property
    def forward_s(self) -> Array:
        """Seconds of the forward pass."""
        mixing = self.forward_attention_s + self.forward_scan_s
        return self.forward_matmul_s + mixing + self.forward_pointwise_s

    @property
    def backward_s(self) -> Array:
        """Seconds of the backward pass, what it recomputes included."""
        mixing = self.backward_attention_s + self.backward_scan_s
        return self.backward_matmul_s + mixing + self.backward_pointwise_s + self.recompute_s


def latent_s(case: Case) -> Array:
    """Seconds of the forward products up from the latents."""
    tokens, seconds = case.pass_tokens, np.asarray(0.0)
    for columns, depth, count in latent_products(case):
        along = aligned_share(case.device, case.device.matrix_bytes, depth)
        seconds = seconds + (count * matmul_s(case.device, tokens, columns, depth, along) if np.any(count) else 0.0)
    return seconds


def matmuls_s(case: Case) -> tuple[Array, Array, Array, Array]:
    """Seconds of all linear products of a layer's pass: forward, input gradient, weight gradient.

    And of all three together those in which the GPU waits for the launches of experts' products. A frozen matrix has no
    weight gradient; adapters' products are in 16 bits.
    """
    tokens, local, moves = case.pass_tokens, case.local_experts, 1.0 - frozen(case)
    products: list[tuple[Any, Any, Device, Any]] = [(p, 1.0, case.device, moves) for p in common_products(case)]
    products += [(p, local, case.device, moves) for p in expert_products(case)]
    products += [(p, 1.0, case.device.wide, 1.0) for p in adapter_products(case)]
    seconds, waiting = [np.asarray(0.0)] * 3, np.asarray(0.0)
    moved = (None, None, product_bytes(case))
    for (row_factor, columns, depth, each), together, device, gradient in products:
        if not np.any(each):
            continue
        rows = tokens * row_factor
        # Forward both operands lie along the depth; backward the weight and its gradient have both sides in rows.
        along, both = (aligned_share(device, device.matrix_bytes, *s) for s in ((depth,), (depth, columns)))
        shapes = ((rows, columns, depth, along), (rows, depth, columns, both), (columns, depth, rows, both))
        for i, shape in enumerate(shapes):
            count = each / together * (gradient if i == 2 else 1.0)
            group, wait = group_s(device, *shape, together, case.framework.one_product, moved[i])
            seconds[i], waiting = seconds[i] + count * group, waiting + count * wait
    return seconds[0], seconds[1], seconds[2], waiting


# Bytes per element that a pass moves, in units of the activation's own bytes: (forward, backward, kernels).
# Counted from the operations: r reads and w writes of 2-byte values, 4-byte ones count double.
NORM_FUSED = (2.0, 5.0, 1.0)  # r x, w y | r x, r dy, w dx and partial sums
# An eager RMSNorm casts up, squares, means, scales, casts down, weighs, each in a pass of its own; its backward
# walks the same chain with two products and a reduction a step, and sums the two paths to the input.
NORM_EAGER = (18.0, 45.0, 7.0)
# Llama's own, and its rotary positions by halves of heads that lie apart (by bytes 10 and 16), as measured in passes at
# a copy's rate: tests/costs/test_measured_eager_passes.py.
NORM_LLAMA = (22.0, 58.5, 7.0)
ROTARY_LLAMA = (19.0, 23.0, 10.0)
# In fp32 without the casts, the input's gradient of its square counted pass by pass.
NORM_EAGER_FP32 = (7.0, 21.0, 5.0)
RESIDUAL = (3.0, 2.0, 1.0)  # r x, r residual, w sum | gradient passed on and summed
DROPOUT = (0.5, 2.5, 0.0)  # fused with the residual: the mask | r dy, r mask, w dx
ACTIVATION = (2.0, 3.0, 1.0)  # two-matrix MLP, per inner element: r x, w y | r x, r dy, w dx
GATE = (5.0, 8.0, 2.0)  # gated MLP: silu then product, per inner element
GATE_SHIFTED = (7.0, 8.0, 3.0)  # and a constant added to the other half
GATE_FUSED = (3.0, 6.0, 1.0)  # r gate and up, w product | r both, r dy, w gradients of both and the product again
# Both halves clamped r w and joined r w | clamps r dy, r x, w dx and joined r w, of both (Megatron-Core's
# fused_bias_geglu.py clamps before its fused kernel).
CLAMP = (8.0, 10.0, 3.0)
ROTARY = (8.0, 8.0, 6.0)  # per element of queries and keys: rotate halves, two products, sum
ROTARY_FUSED = (2.0, 2.0, 2.0)  # r x, w y, of queries and of keys
LAYOUT_COPY = (2.0, 2.0, 2.0)  # per element of queries, keys, values: split and transpose
# PyTorch's ring of attention, an element of queries: once, and for each further rank. It joins keys and values,
# merges outputs in fp32 and adds up gradients (traced and counted: benchmarks/oracle/sdpa_ring.py). Compiled, a sum and
# its casts are one kernel: r output, r w sum | the same of queries' gradients, those of keys and values joined.
RING_COPIES = ((10.0, 53.0, 9.0), (20.4, 29.3, 9.0))
RING_COPIES_COMPILED = ((4.0, 26.0, 5.0), (5.0, 15.0, 3.0))


def rotary_passes(framework: Framework) -> tuple[float, float, float]:
    """The passes of rotary positions, as `pointwise_s` counts passes."""
    if framework.fused_rotary:
        return ROTARY_FUSED
    return ROTARY_LLAMA if framework.eager_llama else ROTARY


def gate_passes(framework: Framework) -> tuple[float, float, float]:
    """The passes of a gated MLP's activation and product, likewise."""
    if framework.compiled_layers:
        return GATE_FUSED
    return GATE_SHIFTED if framework.gate_tensors > 4 else GATE


def pointwise_s(case: Case) -> tuple[Array, Array, Array]:
    """Forward and backward seconds of a pass's norms, residuals, dropout, activations, rotary, copies, routing.

    And those of the forward ones that fine recomputation repeats.
    With sequence parallelism the passes over the hidden state are shared by the tensor group
    (Korthikanti et al. 2022, section 4.2.2).
    """
    device, model, layouts, framework = case.device, case.model, case.layouts, case.framework
    tokens = case.pass_tokens
    hidden = tokens * model.hidden / case.token_shares
    part = mix.shares(model)
    mla, kv_heads = is_latent(model), np.maximum(model.num_kv_heads, layouts.tp)
    heads, v_dim = part.attention * tokens / layouts.tp, model.value_channels
    qk = heads * (model.num_heads + kv_heads) * model.head_dim
    # Latent attention turns a part of each query's channels, and one key for all heads.
    one_key = part.attention * tokens * model.qk_rope_head_dim
    turned = np.where(mla, heads * model.num_heads * model.qk_rope_head_dim + one_key, qk)
    inner = tokens * inner_width(model, case.busiest_copies) / layouts.tp
    of_experts = tokens * routed_width(model, case.busiest_copies) / layouts.tp
    gated = np.asarray(model.gated) * 1.0
    pairs, mlps = part.blocks / 2.0, part.dense + part.sparse
    # Of the inner elements, those of experts that a token is routed to.
    routed = of_experts / np.maximum(inner, 1.0)
    if framework.fused_experts:
        inner, routed = inner - of_experts, np.zeros_like(routed)
    terms = _norms(case, part.norms * hidden, part.norms / 2.0, 1.0)
    terms += _norms(case, qk * np.asarray(model.qk_norm), 2.0 * part.attention, 0.0)  # of queries, and of keys
    terms += [
        (part.blocks * hidden, pairs, RESIDUAL, 0.0),
        (part.blocks * hidden * has_dropout(model, layouts), pairs, DROPOUT, 0.0),
        (inner * (1 - gated), mlps, ACTIVATION, routed),
        (inner * gated, mlps, gate_passes(framework), routed),
        (inner * np.asarray(model.clamped), mlps, CLAMP, routed),
        (turned * np.asarray(model.rotary), part.attention, rotary_passes(framework), mla),
        (qk + heads * kv_heads * v_dim, part.attention, LAYOUT_COPY, mla),
    ]
    terms += _ring_copies(case, heads * model.num_heads * model.head_dim)
    forward = backward = fine = np.asarray(0.0)
    for elements, layers, (reads, reads_back, kernels), repeated in terms:
        used = (np.asarray(elements) > 0) * layers * kernels
        one = stream_s(device, elements * reads * device.element_bytes, used)
        forward, fine = forward + one, fine + repeated * one
        backward = backward + stream_s(device, elements * reads_back * device.element_bytes, 1.5 * used)
    fp8 = device.matrix_bytes < device.element_bytes
    if np.any(fp8):
        casts = casts_s(case, framework.fused_experts)
        forward, backward = (s + np.where(fp8, c, 0.0) for s, c in zip((forward, backward), casts, strict=True))
    if np.any(part.sparse):
        there, back = routed_s(case)
        forward, backward = forward + there, backward + back
    if np.any(model.expert_bias) and not framework.fused_experts:
        biases, biases_back = expert_bias_s(case)
        forward, backward = forward + biases, backward + biases_back
    added, added_back = adapters_pass_s(case)
    return forward + added, backward + added_back, fine


def _norms(case: Case, elements: Any, layers: Any, repeated: float) -> list[Any]:
    """The passes of norms over so many elements, as `pointwise_s` counts passes."""
    fused = np.where(case.layouts.fused_norm | ~np.asarray(case.model.rms_norm), 1.0, 0.0)
    narrow = np.asarray(case.device.element_bytes < 4.0)
    eager = NORM_LLAMA if case.framework.eager_llama else NORM_EAGER
    shares = ((fused, NORM_FUSED), ((1 - fused) * narrow, eager), ((1 - fused) * ~narrow, NORM_EAGER_FP32))
    return [(elements * share, layers, passes, repeated) for share, passes in shares]


def _ring_copies(case: Case, queries: Array) -> list[Any]:
    """The passes of PyTorch's ring of attention over so many elements of queries, as `pointwise_s` counts passes."""
    if not case.framework.sdpa_context:
        return []
    attends, further = mix.shares(case.model).attention, case.layouts.cp / case.layouts.ulysses - 1.0
    copies = RING_COPIES_COMPILED if case.framework.compiled_layers else RING_COPIES
    times = zip((np.minimum(further, 1.0), further), copies, strict=True)
    return [(queries * n, attends * n, passes, 0.0) for n, passes in times]


def last_s(case: Case) -> Array:
    """Forward seconds of what no backward pass needs the output of: a dense MLP's last product, and its residual."""
    device = case.device
    tokens = case.pass_tokens
    (_, columns, depth, dense) = mlp_products(case)[1]
    along = aligned_share(device, device.matrix_bytes, depth)
    hidden = dense * tokens * case.model.hidden / case.token_shares
    product = dense * matmul_s(device, tokens, columns, depth, along)
    both = product + stream_s(device, hidden * RESIDUAL[0] * device.element_bytes, dense * RESIDUAL[2])
    return np.where(has_dropout(case.model, case.layouts), 0.0, both)  # dropout's mask comes after the product


def layer_cost(case: Case) -> LayerCost:
    """Seconds of one (average) layer for one micro-batch, by kind of work: a pass for each slice of the sequence."""
    layouts = case.layouts
    k, part = layouts.sequence_slices, mix.shares(case.model).attention
    matmul, input_grad, weight_grad, waiting = (k * x for x in matmuls_s(case))
    core = attention_s(case, fp8=case.framework.fp8_attention)
    attention, attention_back = (part * k * x for x in core)
    scan, scan_back = (k * x for x in ssm_s(case))
    pointwise, pointwise_back, fine = (k * x for x in pointwise_s(case))
    whole = matmul + attention + scan + pointwise
    if np.any(case.stops_early):
        whole = whole - case.stops_early * k * last_s(case)
    again = np.where(layouts.recompute == Recompute.FULL, whole, 0.0)
    again = np.where(layouts.recompute == Recompute.SELECTIVE, attention, again)
    operations = by_operation(case)
    if np.any(operations):
        dropped = k * dropped_products_s(case) + scan + pointwise
        dropped = dropped + (attention if case.framework.repeats_attention else 0.0)
        again = np.where(operations, dropped, again)
    is_fine = layouts.recompute == Recompute.FINE
    if np.any(is_fine):
        again = np.where(is_fine, fine + k * latent_s(case), again)
    return LayerCost(
        forward_matmul_s=matmul,
        forward_attention_s=attention,
        forward_scan_s=scan,
        forward_pointwise_s=pointwise,
        backward_matmul_s=input_grad + weight_grad,
        backward_attention_s=attention_back,
        backward_scan_s=scan_back,
        backward_pointwise_s=pointwise_back,
        recompute_s=again,
        weight_grad_s=weight_grad,
        launch_s=waiting,
    )
