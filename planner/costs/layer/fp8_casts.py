"""Seconds of moving the operands of one layer's products to fp8 or nvfp4. Array-first, shape (n,).

Counted from Transformer Engine's linear layers (layernorm_linear.py, linear.py and base.py of its pytorch/module). On
Hopper both operands of an fp8 product lie along its depth: the weight's gradient takes transposes of the input and of
the output's gradient. A norm before a product writes fp8 itself. With sequence parallelism a rank casts its part, which
is gathered in fp8, and transposes the whole. Weights are cast once a step, which is not counted. Experts' inputs and
gradients are cast one by one (csrc/extensions/cast.cpp: only delayed scaling has a kernel for several). A frozen matrix
needs no transposes.

NVFP4 quantizes an input or gradient once along its rows and once, after a random Hadamard transform, along its columns,
both from 16 bits, after a pass that finds the largest of either (csrc/quantizer.cpp, NVFP4Quantizer::quantize_impl);
nothing is transposed later, and no norm writes it (csrc/extensions/normalization.cpp: unfused with the transform).
Gradients are rounded stochastically there, which keeps 4.5 of 8 TB/s where rounding to the nearest keeps 6.4 (its pull
request 2412): both count at the memory's rate.
"""

import numpy as np

from planner.base.arrays import Array
from planner.costs.adapters import frozen
from planner.costs.case import Case
from planner.costs.kernels.device import NVFP4_BYTES, stream_s
from planner.costs.layer.matmul_shapes import common_products
from planner.costs.shapes import inner_width, routed_width
from planner.layouts import Precision
from planner.models import mix

# Bytes an element, in fp8 and in nvfp4.
CAST = (3.0, 4.0 + NVFP4_BYTES)  # r 16 bits, w 8 | r 16 for the largest, r 16, w rows
TRANSPOSE = (2.0, 0.0)  # r 8, w 8
BOTH = (4.0, 4.0 + 2.0 * NVFP4_BYTES)  # in one kernel: r 16, w 8 and 8 | w both
NORMED = (-1.0, 4.0 + 2.0 * NVFP4_BYTES)  # a norm's output in 8 bits instead of 16 | as BOTH
KERNELS = ((1.0, 4.0), (3.0, 4.0), (5.0, 4.0))  # a block's: forward; backward; backward with gathered inputs


def casts_s(case: Case, in_epilogue: bool) -> tuple[Array, Array]:
    """Forward and backward seconds of a pass of the average layer, were its products in fp8, or in nvfp4 where asked.

    in_epilogue: experts' kernels cast their inner activations, and the gradients of these, themselves.
    """
    model, four_bits = case.model, case.layouts.precision == Precision.NVFP4
    cast, transpose, both, normed_in = (np.where(four_bits, x[1], x[0]) for x in (CAST, TRANSPOSE, BOTH, NORMED))
    once, back_once, back_gathered = (np.where(four_bits, x[1], x[0]) for x in KERNELS)
    part, t, h = mix.shares(model), case.layouts.tp, model.hidden
    gathered = case.layouts.sequence_parallel & (t > 1)
    # Elements a token on a rank: norms' outputs that products take, and the mixers' and MLPs' inner ones, which lie
    # across the tensor group.
    blocks = part.attention + part.ssm + part.dense
    normed, summed = ((blocks - (part.blocks - n)) * h for n in (part.norms, part.sums))
    of_experts = routed_width(model, case.busiest_copies) / t
    epilogue = of_experts if in_epilogue else 0.0
    attended, scanned = part.attention * model.num_heads * model.value_channels, part.ssm * mix.ssm_channels(model)[0]
    inner = (attended + scanned + inner_width(model, case.busiest_copies)) / t - epilogue
    # Inputs in 16 bits: the experts' copies, the shared experts' input, latents, and those of experts' latents.
    copies = part.sparse * case.busiest_copies * case.layouts.etp / t * mix.expert_width(model)
    shared = part.sparse * (np.asarray(model.num_shared_experts) > 0) * h
    latents = part.attention * (np.asarray(model.q_lora_rank) + model.kv_lora_rank)
    of_latents = mix.latent_share(model) / np.where(gathered, t, 1)
    latents = latents + of_latents * (h + model.moe_latent)
    forward = normed_in * normed / np.where(gathered, t, 1) + both * (copies + shared + latents)
    forward = forward + np.where(gathered & ~four_bits, cast, both) * inner
    # Outputs: of all products that every token meets but the router, in 16 bits; those back to the hidden state, whose
    # gradient blocks that are added at once share.
    back, summed = blocks * h + shared, summed + shared
    up = np.where(model.gated, 2.0, 1.0)
    columns = sum(rows * c * k for rows, c, _, k in common_products(case))
    columns = columns - back - part.sparse * np.maximum(model.num_experts, 1) + up * (of_experts - epilogue)
    still = frozen(case)
    both, turned = np.where(still, cast, both), np.where(still, 0.0, transpose)
    backward = turned * (normed + np.where(gathered, inner, 0.0)) + both * (columns + np.where(still, 0.0, copies))
    backward = backward + np.where(gathered, np.where(four_bits, both, cast) / t + turned, both) * summed
    tokens, into = case.pass_tokens, part.blocks
    # Of both products of each expert beside the first.
    more = 0.0 if in_epilogue else 2.0 * part.sparse * (case.local_experts - 1.0)
    return (
        stream_s(case.device, tokens * forward, into * once + more),
        stream_s(case.device, tokens * backward, into * np.where(gathered, back_gathered, back_once) + more),
    )
