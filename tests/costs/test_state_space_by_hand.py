"""Seconds, bytes and products of a Mamba-2 layer, worked out by hand for a model of a few numbers.

16 channels (4 heads of 4), 16 numbers of B and 16 of C (2 groups of 8), a chunk of 128 tokens, 48 tokens per
micro-batch; the model's average layer is half a state-space and half an MLP.
"""

from dataclasses import replace

import numpy as np
import pytest

from planner.costs.kernels.state_space import ssm_bytes, ssm_products, ssm_s
from planner.costs.layer.layer_cost import layer_cost
from planner.costs.layer.matmul_shapes import common_products
from planner.costs.network.traffic import layer_traffic
from planner.costs.parameters import RankParts
from planner.models import counts
from planner.models.flops import SSM_CHUNK
from tests.costs.toy import BYTES, FLOP, HYBRID, LAUNCHES, case, layer_bytes, layout

TOKENS, CHANNELS, B, C = 48, 16, 16, 16
STATES = CHANNELS * 8 / SSM_CHUNK  # numbers of state a token: one set a chunk
SCORES = 2 * SSM_CHUNK  # of a token with its chunk, for each group


def seconds(of, chosen=None):
    chosen = chosen or layout()
    return [float(np.ravel(x)[0]) for x in ssm_s(case(of, HYBRID, chosen))]


def test_bytes_that_the_kernels_move():
    """Each kernel's reads and writes of two bytes; states and scores that stay in fp32 of four."""
    convolution = 2 * (2 * CHANNELS + 2 * (B + C))
    states = 2 * (CHANNELS + B) + 4 * STATES
    passing = 4 * STATES + 2 * STATES
    scores = 2 * (B + C) + 4 * SCORES
    outputs = 2 * (CHANNELS + C + CHANNELS) + 2 * STATES + 4 * SCORES
    norm = 2 * 3 * CHANNELS
    forward = convolution + states + passing + scores + outputs + norm
    again = convolution + states + scores
    norm_back = 2 * 5 * CHANNELS
    to_states = 2 * (CHANNELS + C) + 4 * STATES
    passed = 4 * 2 * STATES  # kept in fp32 this time
    passing_back = 4 * 2 * STATES + 2 * 2 * STATES  # gradients and states in, both out in two bytes
    to_channels = 2 * (3 * CHANNELS + B) + 2 * STATES + 4 * SCORES
    to_b = 2 * (CHANNELS + B) + 2 * STATES + 4 * B
    to_c = 2 * (CHANNELS + C) + 2 * STATES + 4 * C
    to_scores = 2 * 2 * CHANNELS + 4 * SCORES
    of_scores = 2 * 2 * (B + C) + 4 * (B + C) + 4 * 2 * SCORES
    decays = 2 * 2 * CHANNELS + 4 * SCORES
    convolution_back = 2 * 3 * (CHANNELS + B + C)
    backward = again + passed + norm_back + to_states + passing_back + to_channels + to_b + to_c + to_scores + of_scores
    backward += decays + convolution_back
    assert seconds(BYTES) == pytest.approx([TOKENS * forward / 2, TOKENS * backward / 2])


def test_products_of_the_scan():
    scores, inside = SSM_CHUNK * B, SSM_CHUNK * CHANNELS
    into, out = CHANNELS * 8, CHANNELS * 8
    forward = 2 * (scores + inside + into + out)
    backward = 2 * forward + 2 * (scores + into) + 2 * inside
    assert seconds(FLOP) == [TOKENS * forward / 2, TOKENS * backward / 2]
    half = layout(tp=2)
    assert seconds(FLOP, half) == [TOKENS * forward / 4, TOKENS * backward / 4]
    assert seconds(LAUNCHES) == [7 / 2, 20 / 2]


def test_products_in_and_out():
    """Gate and channels, B, C and a step for each of 4 heads in; channels out: half a layer's."""
    columns, depth, count = (float(np.ravel(x)[0]) for x in ssm_products(case(model=HYBRID, layouts=layout()))[0])
    assert (columns, depth, count) == (16 + 16 + 16 + 16 + 4, 8, 0.5)
    columns, depth, count = (float(np.ravel(x)[0]) for x in ssm_products(case(model=HYBRID, layouts=layout(tp=2)))[1])
    assert (columns, depth, count) == (8, 8, 0.5)
    weights = sum(float(np.ravel(c * d * n)[0]) for _, c, d, n in common_products(case(model=HYBRID, layouts=layout())))
    assert weights == (8 * 68 + 16 * 8 + 2 * 8 * 32) / 2


def test_what_a_layer_keeps():
    # The product's 68 outputs, the scan's 16 and the norm's 16; beside them a norm's and a product's input of 8.
    assert float(ssm_bytes(case(BYTES, HYBRID, layout()))[0]) == TOKENS * 2 * 100 / 2
    mlp = TOKENS * 2 * 2 * 32 / 2
    inputs = TOKENS * 2 * 2 * 8
    kept = layer_bytes(case(BYTES, HYBRID, layout()))
    assert float(kept[0]) == TOKENS * 100 + mlp + inputs


def test_a_rank_holds_half_of_each():
    held = RankParts(model=HYBRID, layouts=layout()).rank(2.0, 0.0, 0.0)
    assert float(held.total[0]) == counts.ssm_params(HYBRID) + counts.mlp_params(HYBRID) + 2 * 8
    assert counts.ssm_params(HYBRID) == 8 * 68 + 16 * 8 + 48 * 5 + 3 * 4 + 16


def test_one_all_reduce_a_layer():
    """A hybrid's layer is one block: half of what a layer of attention and MLP sends."""
    whole = replace(HYBRID, num_ssm_layers=0, num_mixer_only_layers=0, num_mlp_only_layers=0, num_dense_layers=2)
    x = layout(tp=4)
    half, full = (layer_traffic(case(BYTES, m, x)) for m in (HYBRID, whole))
    assert half.layer_forward_s[0] == full.layer_forward_s[0] / 2 > 0
    assert half.layer_backward_s[0] == full.layer_backward_s[0] / 2 > 0


def test_a_layer_has_no_attention():
    cost = layer_cost(case(FLOP, HYBRID, layout()))
    assert cost.forward_attention_s[0] == cost.backward_attention_s[0] == 0.0
    assert cost.forward_scan_s[0] == seconds(FLOP)[0]
