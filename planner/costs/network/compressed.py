"""Gradients that sites compress before they exchange them at every step: bytes of a value, and seconds of arithmetic.

Each GPU compresses its share of what its site has summed. Bytes that a value moves through memory count each reading
and writing of 32 bits; those of 8-bit values one.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.costs.case import Case
from planner.costs.kernels.device import matmul_s
from planner.costs.layer.matmul_shapes import common_products, expert_products
from planner.costs.network.sites import SiteExchange
from planner.models import counts, mix

INDEX_BITS = 32.0


def compressed(case: Case, each: SiteExchange, top_k: float, rank: int) -> dict[str, SiteExchange]:
    """Ways to compress the gradients of `each` step, by name; case: of one layout; top_k: the share that is sent.

    8 bits: values of one site's part are sent to the site that sums them, and sent on as 8 bits again (AGoQ, arXiv
    2605.00539; ZeRO++, 2306.10209). Read, written; read and summed, written; read, written: 12 bytes a value, and one
    for every further site, not counted.
    Top-k (Deep Gradient Compression, 1712.01887, algorithm 4): momentum and error, two values of 32 bits, are kept and
    updated (5 passes), the largest found among them (1), both cleared where they are sent (2). Each site gets all
    others' values with their indices: no sum makes fewer of them.
    PowerSGD (1905.13727, algorithm 1): of a matrix of n x m, P of n x r and Q of m x r are summed, one after the other.
    The error, one value, is added (3 passes), P, Q and their product are made (3), the error is updated (3).
    """
    share, second = (float(x.item()) for x in low_rank(case, rank))
    rate = case.device.memory_rate
    return {
        "8-bit gradients": replace(each, bits=8.0, value_s=12.0 / rate),
        "top-k gradients": replace(
            each, bits=top_k * (32.0 + INDEX_BITS), gathered=True, latencies=1.0, kept_bytes=8.0, value_s=32.0 / rate
        ),
        "PowerSGD": replace(
            each, bits=each.bits * share, latencies=4.0, kept_bytes=4.0, value_s=36.0 / rate + second
        ),
    }  # fmt: skip


def low_rank(case: Case, rank: int) -> tuple[Array, Array]:
    """The share of values that PowerSGD sends, and seconds of its products for each value of a gradient.

    Of the matrices of a layer on a tensor rank, which compresses its own part; the two tables of tokens, wider still,
    count as those do. A matrix that two factors would make larger is sent whole. Orthonormal columns of P, up to r / 3m
    more, are not counted.
    """
    model = case.model
    experts = (mix.sparse_layers(model) + mix.sparse_modules(model)) * np.asarray(model.num_experts)
    of_experts = experts * counts.expert_params(model) / counts.total_params(model)
    share, second = np.zeros(1), np.zeros(1)
    for products, part in ((common_products(case), 1.0 - of_experts), (expert_products(case), of_experts)):
        sent, took, held = np.zeros(1), np.zeros(1), np.zeros(1)
        for _, n, m, count in products:
            low = rank * (n + m) < n * m
            three = sum(matmul_s(case.device.wide, *shape) for shape in ((n, rank, m), (m, rank, n), (n, m, rank)))
            sent = sent + count * np.where(low, rank * (n + m), n * m)
            took, held = took + count * np.where(low, three, 0.0), held + count * n * m
        share, second = share + part * sent / np.maximum(held, 1.0), second + part * took / np.maximum(held, 1.0)
    return np.asarray(share), np.asarray(second)


def arithmetic_s(exchange: SiteExchange, parameters: float, gpus: Any) -> Array:
    """Seconds of a step in which a site of so many GPUs compresses its gradients, behind nothing."""
    return np.asarray(exchange.value_s * parameters / gpus)
