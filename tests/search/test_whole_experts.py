"""Experts cut over the tensor ranks or whole on one of them, as the search lists them."""

from dataclasses import replace
from itertools import product

import numpy as np

from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Precision
from planner.models import load_model
from planner.search import Fixed, recommend
from planner.setup import Setup
from tests.search.every_layout import enumerate_layouts

COMMON = {"precision": Precision.BF16, "attention": Attention.FLASH3}
CLUSTER = load_cluster("dgx-h100")
RANKS = (1, 2, 4, 8, 16)
NAMES = ("1f1b", "interleaved")
MANY = replace(
    load_model("qwen3-30b-a3b"), num_layers=4, num_experts=16, top_k=4, hidden=1024, vocab=32000, num_shared_experts=1
)


def listed(model, cluster, **fixed):
    return enumerate_layouts(model, cluster, gpus=16, global_batch=16, fixed=Fixed(schedule=NAMES, **fixed), **COMMON)


def test_every_way_to_place_experts_is_listed():
    """With each tensor degree: experts cut over it, within dp * cp; or whole, with sequence parallelism."""
    table = listed(MANY, CLUSTER)
    found = set(zip(table.dp, table.tp, table.cp, table.ep, table.etp, table.sequence_parallel, strict=True))
    due = {
        (dp, tp, cp, ep, etp, sp)
        for dp, tp, cp, ep, sp in product(RANKS, RANKS, RANKS, RANKS, (0, 1))
        for etp in {tp, 1}
        if dp * tp * cp in (4, 8, 16)  # four layers: four stages at most
        if dp * tp * cp % (ep * etp) == 0 and (sp or etp == tp) and (tp > 1 or not sp)
    }
    assert {tuple(int(x) for x in row) for row in found} == due
    assert len(due) > 100


def test_a_dense_model_has_no_choice():
    table = listed(replace(load_model("llama-7b"), num_layers=4, num_dense_layers=4), CLUSTER)
    assert np.array_equal(table.etp, table.tp)
    assert set(table.ep.tolist()) == {1}


def test_what_is_fixed_stays_fixed():
    model, framework, fixed = load_model("mixtral-8x7b"), load_framework("megatron-core"), Fixed(tp=(2,), etp=(1,))
    found = recommend(Setup(model, CLUSTER, framework), gpus=16, global_batch=64, fixed=fixed, **COMMON)
    assert set(found.estimate.layouts.etp.tolist()) == {1}
