"""Experts cut over the tensor ranks beside whole ones on each (parallel folding, Liu et al. 2025, arXiv 2504.14960).

tp 2 and dp 2: with ep 2 an expert is cut over two tensor ranks; ep 4 takes the tensor ranks in, each has whole ones.
"""

from dataclasses import replace

import numpy as np
import pytest

from planner.costs.layer.matmul_shapes import expert_products
from planner.costs.memory.rank import rank_memory
from planner.costs.network.collectives import all_gather_s
from planner.costs.network.expert_exchange import expert_s
from planner.costs.network.groups import groups
from planner.costs.network.traffic import layer_traffic
from planner.costs.parameters import RankParts
from planner.hardware import load_cluster, load_framework
from planner.layouts import Attention, Layouts, Precision
from planner.models import load_model
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.legality import first_broken
from tests.costs.toy import BYTES, CLUSTER, MOE, case, device, layout

ROUTED = replace(MOE, num_shared_experts=0, num_dense_layers=0)  # two layers of experts alone


def of(ep, **more):
    return layout(tp=2, dp=2, ep=ep, sequence_parallel=True, **more)


def test_where_an_expert_is_cut():
    table = Layouts.of(tp=[1, 2, 2, 2, 4], dp=[4, 4, 2, 2, 1], cp=[1, 1, 2, 1, 2], ep=[4, 4, 4, 4, 8], global_batch=4)
    assert table.etp.tolist() == [1, 2, 2, 1, 1]


def test_the_same_work_and_the_same_weights():
    """Half the experts' halves or a quarter of them whole: as many parameters and FLOP on a rank."""
    cut, whole = (RankParts(model=ROUTED, layouts=of(ep)).rank(2.0, 1.0, 1.0) for ep in (2, 4))
    assert cut.experts == whole.experts
    assert cut.dense == whole.dense
    work = [
        sum(float(np.ravel(rows * columns * depth * count)[0]) for rows, columns, depth, count in products)
        for products in (
            expert_products(case(model=ROUTED, layouts=of(2))),
            expert_products(case(model=ROUTED, layouts=of(4))),
        )
    ]
    assert work[0] == work[1] > 0
    # A whole expert's products are twice as wide, of half the rows.
    (rows, columns, _, _), (whole_rows, whole_columns, _, _) = (
        expert_products(case(model=ROUTED, layouts=of(ep)))[0] for ep in (2, 4)
    )
    assert float(np.ravel(whole_columns)[0]) == 2 * float(np.ravel(columns)[0])
    assert float(np.ravel(whole_rows)[0]) == float(np.ravel(rows)[0])  # half the tokens to half as many experts


def test_groups_take_the_tensor_ranks_in():
    by = groups(CLUSTER, of(4))
    assert (by["expert"].ranks.tolist(), by["expert"].local.tolist()) == ([4], [4])
    assert by["expert_data"].ranks.tolist() == [1]
    by = groups(CLUSTER, of(2))
    assert (by["expert"].ranks.tolist(), by["expert_data"].ranks.tolist()) == ([2], [1])
    # tp 2, dp 4: an expert on four of eight ranks has two replicas either way.
    for ep, replicas in ((4, 1), (8, 1), (2, 2)):
        by = groups(CLUSTER, layout(tp=2, dp=4, ep=ep, sequence_parallel=True))
        assert by["expert_data"].ranks.tolist() == [replicas]


def test_copies_are_gathered_only_for_cut_experts():
    """A pass gathers and scatters attention's 384 values; cut experts each of a token's two copies too, in 16 bits."""
    dense, cut, whole = (
        layer_traffic(case(BYTES, m, x))
        for m, x in ((replace(ROUTED, num_dense_layers=2), of(1)), (ROUTED, of(2)), (ROUTED, of(4)))
    )
    attention = dense.layer_forward_s[0] / 2
    assert cut.layer_forward_s[0] == whole.layer_forward_s[0] == pytest.approx(attention)
    assert dense.expert_forward_s[0] == 0
    x = of(2)
    expert, tensor = (groups(CLUSTER, x)[name] for name in ("expert", "tensor"))
    alone = expert_s(case(device(BYTES, x), ROUTED, replace(x, etp=np.array([1]))), expert, tensor)[0][0]
    copies = 2 * 2 * x.micro_batch * ROUTED.seq_len * ROUTED.hidden  # two of each token, two bytes a number
    assert cut.expert_forward_s[0] == pytest.approx(alone + 2 * all_gather_s(tensor, copies)[0])
    half = replace(device(BYTES, x), matrix_bytes=np.array([1.0]))  # fp8 operands
    assert layer_traffic(case(half, ROUTED, x)).expert_forward_s[0] == cut.expert_forward_s[0]
    shared = replace(ROUTED, num_shared_experts=1)
    x = of(4)
    assert layer_traffic(case(BYTES, shared, x)).layer_forward_s[0] == pytest.approx(dense.layer_forward_s[0])


def test_states_are_sharded_over_an_experts_replicas():
    x = layout(tp=2, dp=4, ep=8, zero=1, sequence_parallel=True)
    sizes = {"layers": 2.0, "in_flight": 1.0, "first": 1.0, "last": 1.0}
    memory = rank_memory(case(BYTES, replace(ROUTED, num_experts=8), x), **sizes)
    own = RankParts(model=replace(ROUTED, num_experts=8), layouts=x).rank(2.0, 1.0, 1.0)
    assert float(memory.optimizer_bytes[0]) == float(own.dense[0]) * 12 / 4 + float(own.experts[0]) * 12


def test_rules():
    model, cluster = load_model("mixtral-8x7b"), load_cluster("dgx-h100")
    usual = {"global_batch": 64, "attention": Attention.FLASH3, "precision": Precision.BF16}

    def broken(**choices):
        return first_broken(model, cluster, Layouts.of(**usual | choices))[0]

    assert broken(tp=4, dp=2, ep=8, sequence_parallel=True) == ""
    assert "etp must be tp, or 1 with experts and sequence parallelism" in broken(tp=4, dp=2, ep=8)
    assert broken(tp=4, dp=2, ep=2) == ""
    assert broken(tp=4, dp=2, ep=2, etp=1, sequence_parallel=True) == ""
    assert "etp must be tp, or 1" in broken(tp=4, dp=2, ep=2, etp=2, sequence_parallel=True)
    assert "ep * etp must divide tp * dp * cp" in broken(tp=4, dp=2, ep=8, etp=4, sequence_parallel=True)
    assert "ep * etp must divide tp * dp * cp" in broken(tp=1, dp=2, ep=8)


def test_whole_experts_are_quicker_where_tokens_travel_far():
    """Mixtral over two tensor ranks in a node: no copies gathered, larger products."""
    model, cluster = load_model("mixtral-8x7b"), load_cluster("dgx-h100")
    table = Layouts.of(
        tp=2, dp=[4, 4], ep=[4, 8], micro_batch=1, global_batch=64, sequence_parallel=True, zero=1,
        attention=Attention.FLASH3, precision=Precision.BF16,
    )  # fmt: skip
    cut, whole = estimate(Setup(model, cluster, load_framework("megatron-core")), table).step_time_s
    assert whole < cut


def test_an_embedding_that_every_tensor_rank_has_whole():
    """All of its words' parameters, where two tensor ranks shared them padded; those of layers as before."""
    each = (
        RankParts(model=ROUTED, layouts=of(2), whole_embedding=whole).rank(2.0, 1.0, 0.0) for whole in (False, True)
    )
    shared, whole = each
    assert whole.ends == ROUTED.vocab * ROUTED.hidden > shared.ends
    assert (whole.layers, whole.experts) == (shared.layers, shared.experts)
