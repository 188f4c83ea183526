"""Megatron-LM's dispatcher allgather, by hand: tokens go round once, ranks sort the copies of their experts."""

from dataclasses import replace

import numpy as np
import pytest

from planner.costs.layer.expert_routing import ADDED, Routing, permute_s
from planner.costs.memory.saved_activations import layer_tensors
from planner.costs.network.collectives import all_gather_s, all_to_all_s
from planner.costs.network.expert_exchange import expert_s
from planner.costs.network.groups import groups
from tests.costs.toy import BYTES, FRAMEWORK, MOE, case, layout

ROUTED = replace(MOE, num_shared_experts=0, num_dense_layers=0)  # every layer has four experts, two a token
GATHERS = replace(FRAMEWORK, gathered_tokens=True)
HALF = 48 * 8 / 2  # numbers of the hidden state that one of two tensor ranks has
CUT = {"tp": 2, "dp": 2, "ep": 2, "etp": 2, "sequence_parallel": True}


def test_a_rank_picks_and_sorts_among_the_tokens_of_all_tensor_ranks():
    """As many copies as two tensor ranks have; backward torch.gather adds gradients twice, where one sum was."""
    forward, backward = (
        float(np.ravel(x)[0]) for x in permute_s(case(BYTES, ROUTED, layout(**CUT), framework=GATHERS), Routing.EAGER)
    )
    assert forward == 2 * HALF * (1 + 2 * 2 * (4 + ADDED) + 2 * 2 * 4)
    assert backward == 2 * HALF * (1 + 2 * 2 * (8 + 2 * ADDED) + 2 * 2 * 4)


def test_one_copy_of_a_token_goes_round_both_groups_and_back():
    """In place of two copies to the experts' ranks and round the tensor group."""
    chosen, size = layout(**CUT), 2 * HALF
    of, plain = (case(BYTES, ROUTED, chosen, framework=f) for f in (GATHERS, FRAMEWORK))
    by = groups(of.cluster, chosen)
    gathered, exchanged = (expert_s(x, by["expert"], by["tensor"])[0] for x in (of, plain))
    once = all_gather_s(by["expert"], size * 2) + all_gather_s(by["tensor"], size * 2 * 2)
    assert gathered == pytest.approx(2.0 * once)
    copies = all_to_all_s(by["expert"], size * 2) + all_gather_s(by["tensor"], size * 2 * 2)
    assert exchanged == pytest.approx(2.0 * copies + all_to_all_s(by["expert"], 0.0))  # how many come is told first


def test_tensor_ranks_that_cut_an_expert_keep_all_copies_that_come_to_it():
    """Twice as many as where experts are whole; their outputs so only where tokens were gathered first."""
    whole, cut = layout(**CUT | {"etp": 1, "ep": 4}), layout(**CUT)
    gathered, plain = (layer_tensors(case(BYTES, ROUTED, cut, framework=f)) for f in (GATHERS, FRAMEWORK))
    shares = layer_tensors(case(BYTES, ROUTED, whole, framework=FRAMEWORK))
    assert plain.expert_inputs == gathered.expert_inputs == 2 * shares.expert_inputs
    assert gathered.expert_outputs == 2 * plain.expert_outputs == 2 * shares.expert_outputs
