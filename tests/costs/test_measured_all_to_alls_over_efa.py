"""All-to-alls over Amazon's EFA as planner predicts them, beside measured ones of NCCL.

P5: nccl-tests on 2 to 8 nodes (github.com/crazyguitar/aws-gpu-communication-benchmark, data/nccl_alltoall.csv), of
which the rate of large ones was taken; P6-B300: awslabs/awsome-distributed-ai, micro-benchmarks/expert-parallelism/
ep-backend-comparison, RESULTS.md, 14 July 2026, of which nothing was taken. Those are all-to-alls alone: in training
they get half of it through 800 Gb/s (`exchange_share`; docs/accuracy-findings.md, "Exchanges through 800 Gb/s").
"""

from dataclasses import replace

import numpy as np
import pytest

from planner.costs.network.collectives import all_to_all_s
from planner.costs.network.groups import place
from planner.costs.placement import node_ranks
from planner.hardware import load_cluster

MIB = 2.0**20
# GPUs, MiB of a rank, GB/s of algorithm bandwidth.
P5 = [
    (16, 64, 66.3), (16, 256, 79.21), (16, 2048, 84.53), (32, 64, 44.53), (32, 256, 56.03), (32, 2048, 55.82),
    (64, 64, 35.24), (64, 256, 45.11), (64, 2048, 50.41),
]  # fmt: skip
# GPUs, GB/s of bus bandwidth at 64 MiB.
P6 = [(16, 104.9), (32, 94.0), (64, 74.0), (128, 73.8), (256, 54.7)]


def alone_s(cluster: str, ranks: int, size_bytes: float) -> float:
    on = load_cluster(cluster)
    on = replace(on, network=replace(on.network, exchange_share=1.0))
    group = place(on, np.array([ranks]), np.array([1]), node_ranks(on, np.array([ranks])))
    return float(all_to_all_s(group, size_bytes)[0])


@pytest.mark.parametrize(("ranks", "mib", "rate"), P5)
def test_on_p5_within_9_percent(ranks: int, mib: int, rate: float):
    assert alone_s("aws-p5", ranks, mib * MIB) == pytest.approx(mib * MIB / rate / 1e9, rel=0.09)


def test_on_p6_b300_none_is_more_than_13_percent_too_fast():
    """By P5's start of a doubling, 116 us, most are too slow: 128 GPUs by 36 %."""
    for ranks, bus in P6:
        measured_s = 64 * MIB * (ranks - 1) / ranks / bus / 1e9
        assert 0.87 < alone_s("aws-p6-b300", ranks, 64 * MIB) / measured_s < 1.37


@pytest.mark.parametrize("cluster", ["aws-p6-b300", "dgx-b300"])
def test_in_training_800_gbit_per_s_bring_what_400_do(cluster: str):
    fast, slow = load_cluster(cluster).network, load_cluster({"dgx-b300": "dgx-b200"}.get(cluster, "aws-p5")).network
    assert fast.bandwidth_bytes_per_s == 2.0 * slow.bandwidth_bytes_per_s
    rate = fast.bandwidth_bytes_per_s * fast.send_fraction * fast.exchange_share
    assert rate == slow.bandwidth_bytes_per_s * slow.send_fraction * slow.exchange_share
    whole = load_cluster(cluster)
    group = place(whole, np.array([64]), np.array([1]), node_ranks(whole, np.array([64])))
    assert float(all_to_all_s(group, 1024 * MIB)[0]) == pytest.approx(1024 * MIB * 56 / 64 / rate, rel=0.03)
