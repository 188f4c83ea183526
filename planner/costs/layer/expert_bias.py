"""Biases of experts' last products, weighed by the router. Array-first, shape (n,).

An expert's output is the router's probability times product and bias. The probability has already gone into the
product's input (Megatron-Core's memory-efficient permutation), so the bias is weighed on its own: expert by expert, in
fp32, for probabilities are. The first product's bias is added in its epilogue, which takes no time of its own.
"""

import numpy as np

from planner.base.arrays import Array
from planner.costs.case import Case
from planner.costs.kernels.device import stream_s
from planner.models import mix

# How often an element of experts' outputs crosses memory, 4-byte values counting twice (r: read, w: written); counted
# in Megatron-Core's experts.py, TEGroupedMLP._apply_bias.
FORWARD = 14.0  # bias by probability w 2; onto the product r 1 r 2 w 2; experts joined r 2 w 2; cast back r 2 w 1
# Cast up r 1 w 2 and down again r 2 w 1 for the product's gradient, joined r 1 w 1; bias's gradient by probability
# r 2 w 2, summed r 2; probability's by bias r 2 w 2, summed r 2.
BACKWARD = 20.0
KERNELS = (2.0, 2.0), (5.0, 2.0)  # of each expert, and of all together: forward; backward


def expert_bias_s(case: Case) -> tuple[Array, Array]:
    """Forward and backward seconds of the average layer's weighed biases for one pass, on the busiest rank."""
    model = case.model
    sparse = mix.shares(model).sparse * np.asarray(model.expert_bias)
    outputs = sparse * case.pass_tokens * case.busiest_copies * mix.expert_width(model)
    outputs = outputs * case.layouts.etp / case.layouts.tp
    forward, backward = (
        stream_s(case.device, outputs * times * case.device.element_bytes, sparse * (each * case.local_experts + once))
        for times, (each, once) in zip((FORWARD, BACKWARD), KERNELS, strict=True)
    )
    return forward, backward
