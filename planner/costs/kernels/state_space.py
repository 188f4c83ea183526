"""Seconds and bytes of a Mamba-2 layer's convolution, scan and gated norm. Array-first, shape (n,).

The scan goes by chunks of tokens (Dao and Gu 2024, arXiv 2405.21060, section 6): scores within a chunk, states at its
end, states passed on from chunk to chunk, outputs of both. Passes over memory are counted from the kernels of the
public implementation (state-spaces/mamba, ssd_combined.py; Megatron-LM calls the same): one launch each, and backward
what the forward pass did not keep is made again. Convolution and norm are streaming kernels. The scan's come nowhere
near the rate of either memory or a matrix product: `scan_matrix_fraction` is what trained models show.
"""

from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.costs.case import Case
from planner.models import mix
from planner.models.flops import SSM_CHUNK

# How often kernels read or write a head's channel and a number of B and C, in the activation's bytes (gradients of B
# and C before their last sum are fp32 and count double); a number of a chunk's states in fp32, and in the activation's
# bytes; a score within a chunk, in fp32.
# Forward: convolution 2 and 2; gated norm 3 and 0. The scan: states 1 and 1/2; scores 0 and 1; outputs 2 and 1/2.
# States are written in fp32, read, passed on in 16 bits, read by the outputs; scores written and read.
FORWARD_STREAM = (5.0, 2.0)
FORWARD = (3.0, 2.0)
FORWARD_STATES = (2.0, 2.0)
FORWARD_SCORES = 2.0
# Backward: again the convolution 2 and 2; gated norm 5 and 0; convolution 3 and 3. The scan: again states and scores 1
# and 1.5; gradients of states 1 and 1/2, of channels 3 and 1/2, of B 1 and 1.5, of C 1 and 1.5, of scores 2 and 0, of
# their products 0 and 4, of decays 2 and 0.
BACKWARD_STREAM = (10.0, 5.0)
BACKWARD = (11.0, 9.5)
BACKWARD_STATES = (6.0, 5.0)
BACKWARD_SCORES = 6.0
LAUNCHES = (7.0, 20.0)


def ssm_products(case: Case) -> list[tuple[Any, Any, Any]]:
    """(columns, depth, count) of the products in and out of the average layer's state-space, on one tensor rank."""
    model = case.model
    inner, states = mix.ssm_channels(model)
    share = mix.shares(model).ssm
    columns = (2 * inner + states + np.asarray(model.ssm_heads)) / case.layouts.tp
    return [
        (np.maximum(columns, 1), model.hidden, share),
        (model.hidden, np.maximum(inner / case.layouts.tp, 1), share),
    ]


def _pass_s(case: Case, backward: bool) -> Array:
    device = case.device
    tokens, e = case.pass_tokens / case.layouts.tp, device.element_bytes
    inner, states = mix.ssm_channels(case.model)
    groups, state = np.asarray(case.model.ssm_groups), np.asarray(case.model.ssm_state)
    stream, scan = (BACKWARD_STREAM, BACKWARD) if backward else (FORWARD_STREAM, FORWARD)
    wide, narrow = BACKWARD_STATES if backward else FORWARD_STATES
    scores = BACKWARD_SCORES if backward else FORWARD_SCORES
    streamed = e * (stream[0] * inner + stream[1] * states)
    moved = e * (scan[0] * inner + scan[1] * states)
    moved = moved + (4.0 * wide + e * narrow) * inner * state / SSM_CHUNK + 4.0 * scores * SSM_CHUNK * groups
    # Scores and outputs of a chunk, states in and out; backward each product's two gradients, states and scores again,
    # and for the decays a chunk's outputs.
    products = SSM_CHUNK * (states / 2 + inner) + 2 * inner * state
    again = SSM_CHUNK * (states / 2 + inner) + inner * state
    flop = 2.0 * np.where(backward, 2.0 * products + again, products)
    rate = device.accelerator.efficiency.scan_matrix_fraction * device.attention_rate
    scanned = np.maximum(tokens * moved / device.memory_rate, tokens * flop / rate)
    return np.asarray(tokens * streamed / device.memory_rate + scanned + LAUNCHES[backward] * device.latency_s)


def ssm_s(case: Case) -> tuple[Array, Array]:
    """Forward and backward seconds of the average layer's state-space between its products, for one pass."""
    share = mix.shares(case.model).ssm
    if not np.any(share):
        return np.asarray(0.0), np.asarray(0.0)
    forward, backward = (share * _pass_s(case, side) for side in (False, True))
    return np.asarray(forward), np.asarray(backward)


def ssm_bytes(case: Case) -> Array:
    """Bytes that an average layer's state space saves per micro-batch: outputs of product in, scan and norm.

    The kernels keep no convolved channels and no states; they make both again.
    """
    inner, states = mix.ssm_channels(case.model)
    of_scan = 3 * inner + states + np.asarray(case.model.ssm_heads)
    kept = of_scan * case.device.element_bytes + inner * case.device.matrix_bytes
    share = mix.shares(case.model).ssm
    return np.asarray(share * case.local_tokens / case.layouts.tp * kept)
