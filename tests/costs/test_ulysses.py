"""Context ranks that exchange heads for tokens: seconds by hand, the layouts that allow it, memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner import Cluster, Model, estimate
from planner.base.errors import LayoutError
from planner.costs.case import Case
from planner.costs.network.groups import groups
from planner.costs.network.traffic import context_s, exchange_s
from planner.hardware import load_cluster, load_framework
from planner.layouts import Layouts
from planner.models import load_model
from planner.setup import Setup


def seconds(cp: int, ulysses: int, tp: int = 1, model: str = "llama3-8b") -> tuple[float, float]:
    """Ring and exchange, forward, on links of 1 GB/s without latency."""
    cluster = load_cluster("dgx-h100")
    link = replace(
        cluster.node_link, bandwidth_bytes_per_s=1e9, latency_s=0.0, fraction=1.0, send_fraction=1.0,
        small_fraction=None, small_latency_s=None,
    )  # fmt: skip
    cluster = replace(cluster, node_link=link)
    setup = Setup(load_model(model), cluster, load_framework("megatron-core"))
    layouts = Layouts.of(cp=cp, ulysses=ulysses, tp=tp, global_batch=8, micro_batch=1)
    case, by = Case.of(setup, layouts), groups(cluster, layouts)
    return float(context_s(case, by)[0][0]), float(exchange_s(case, by["ulysses"])[0][0])


def test_llama3_8b_by_hand():
    # 8,192 tokens; 32 query and 8 key heads of 128; 2 bytes. Keys and values of all: 8192 * 8 * 256 * 2 = 33.55 MB.
    kv = 8192 * 8 * 256 * 2
    ring, exchange = seconds(cp=4, ulysses=1)
    assert ring == pytest.approx(kv * 3 / 4 / 1e9)
    assert exchange == 0.0
    # A rank's quarter of queries, keys, values and output: 2048 * (32 + 8 + 8 + 32) * 128 * 2, of which 3/4 leave.
    ring, exchange = seconds(cp=4, ulysses=4)
    assert ring == 0.0
    assert exchange == pytest.approx(2048 * 80 * 128 * 2 * 3 / 4 / 1e9)
    # Pairs exchange halves; each of the two then passes half of the heads to the other.
    ring, exchange = seconds(cp=4, ulysses=2)
    assert ring == pytest.approx(kv / 2 / 2 / 1e9)
    assert exchange == pytest.approx(2048 * 80 * 128 * 2 / 2 / 1e9)


def test_latent_attention_exchanges_whole_heads_whose_values_are_narrower():
    # DeepSeek-V3: 4,096 tokens; 128 heads whose queries and keys have 192 channels, values and output 128; 2 bytes.
    _, exchange = seconds(cp=4, ulysses=4, model="deepseek-v3")
    assert exchange == pytest.approx(1024 * 128 * 2 * (192 + 128) * 2 * 3 / 4 / 1e9)


def test_less_is_sent_than_around_a_ring_when_many_ranks_share_few_tokens():
    # The ring's volume stays about that of all keys and values; the exchange's falls with cp (Jacobs et al. 2023).
    ring, exchange = seconds(cp=8, ulysses=1)[0], seconds(cp=8, ulysses=8)[1]
    assert exchange == pytest.approx(ring * (80 / 8) / (2 * 8))


@pytest.mark.parametrize(
    ("choices", "allowed"),
    [
        ({"cp": 4, "ulysses": 4}, True),
        ({"cp": 4, "ulysses": 3}, False),
        ({"cp": 1, "ulysses": 2}, False),
        ({"cp": 8, "tp": 1, "ulysses": 8}, True),
        ({"cp": 4, "tp": 2, "ulysses": 4}, True),
        ({"cp": 8, "tp": 2, "dp": 1, "ulysses": 8}, False),  # 4 key heads to a tensor rank
        ({"cp": 2, "tp": 8, "dp": 1, "ulysses": 2}, False),  # one to a tensor rank
    ],
)
def test_what_is_legal(choices, allowed):
    question = {"model": Model("llama3-8b"), "cluster": Cluster("dgx-h100"), "batch": 16} | choices
    if allowed:
        assert estimate(**question).step_time_s > 0
    else:
        with pytest.raises(LayoutError, match="ulysses must divide cp and the key-value heads of a tensor rank"):
            estimate(**question)


def test_memory_has_the_output_twice():
    few = {"model": Model("llama3-8b"), "cluster": Cluster("dgx-h100"), "batch": 16, "cp": 4, "micro_batch": 1}
    ring, both = estimate(**few), estimate(**few, ulysses=4)
    more = (both.memory_gib - ring.memory_gib) * 2**30
    output = 32 * 2048 * 4096 * 2  # 32 layers, a rank's tokens, hidden, 2 bytes; with fragmentation
    assert output <= more <= 1.1 * output
    assert np.isfinite(both.step_time_s)
