"""All-to-alls of experts as planner predicts them, beside measured ones (NVIDIA 2026, arXiv 2603.07685, Table 7).

4,096 tokens of 7,168 channels in 16 bits to 8 of DeepSeek-V3's 256 experts. Plain ones of NCCL, from which the rate of
sends over NVLink was taken; and HybridEP's, which no figure was fitted to: one copy a node, groups of experts.
"""

import numpy as np
import pytest

from planner.costs.layer.expert_routing import reached
from planner.costs.network.collectives import all_to_all_s, dispatch_s
from planner.costs.network.groups import place
from planner.costs.placement import node_ranks
from planner.hardware import load_cluster
from planner.models import load_model

TOKENS_BYTES = 4096 * 7168 * 2.0
RANKS = (8, 16, 32, 64)
# Microseconds: dispatch and combine.
PLAIN = {
    "gb200-nvl72": [(735, 741), (743, 765), (769, 758), (930, 827)],
    "dgx-h100": [(1265, 1277), (5774, 5628), (8059, 7815), (9164, 8727)],
}
HYBRID_EP = {
    "gb200-nvl72": [(391, 353), (578, 527), (612, 646), (675, 744)],
    "dgx-h100": [(661, 624), (1485, 1688), (3064, 3088), (4626, 4398)],
}


def cases(table):
    return [(cluster, n, np.mean(both)) for cluster, rows in table.items() for n, both in zip(RANKS, rows, strict=True)]


def group_of(cluster, n):
    on = load_cluster(cluster)
    return place(on, np.array([n]), np.array([1]), node_ranks(on, np.array([n])))


@pytest.mark.parametrize(("cluster", "n", "measured_us"), cases(PLAIN))
def test_plain_all_to_alls(cluster, n, measured_us):
    predicted_s = all_to_all_s(group_of(cluster, n), 8 * TOKENS_BYTES)
    assert predicted_s[0] * 1e6 == pytest.approx(measured_us, rel=0.1)


@pytest.mark.parametrize(("cluster", "n", "measured_us"), cases(HYBRID_EP))
def test_dispatches_of_one_copy_a_node(cluster, n, measured_us):
    model, group = load_model("deepseek-v3"), group_of(cluster, n)
    predicted_s = dispatch_s(group, TOKENS_BYTES, reached(model, group.ranks), reached(model, group.nodes))
    assert predicted_s[0] * 1e6 == pytest.approx(measured_us, rel=0.2)
