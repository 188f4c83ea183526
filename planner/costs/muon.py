"""Seconds of Muon's orthogonalisation of a rank's momentum, matrix by matrix. Array-first, shape (n,).

Muon replaces each matrix's momentum by the nearest matrix with orthonormal rows: five Newton-Schulz steps in 16 bits
(Jordan 2024, kellerjordan.github.io/posts/muon; Liu et al. 2025, arXiv 2502.16982). Tensor ranks orthogonalise their
own part (Megatron-Core, --muon-tp-mode blockwise, its default). With ZeRO a replica has whole matrices
(Megatron-Core, layer_wise_optimizer.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.costs.case import Case
from planner.costs.kernels.device import Device, matmul_s
from planner.costs.layer.matmul_shapes import common_products, expert_products
from planner.costs.parameters import RankParameters, state_parameters

STEPS = 5  # of Newton-Schulz, in Jordan's Muon, Moonlight's and Megatron-Core's


def orthogonal_s(device: Device, columns: Any, depth: Any) -> Array:
    """Seconds for one matrix: each step multiplies X by its transpose, the result by itself, and that by X.

    With m rows and n >= m columns a step has 4 m^2 n + 2 m^3 FLOP (Jordan 2024).
    """
    m, n = np.minimum(columns, depth), np.maximum(columns, depth)
    step = matmul_s(device, m, m, n) + matmul_s(device, m, m, m) + matmul_s(device, m, n, m)
    return np.asarray(STEPS * step)


def muon_s(case: Case, own: RankParameters) -> Array:
    """Seconds for a rank's matrices: an equal share of those that its replicas hold, or the largest one alone.

    own: the rank's parameters before sharding. Its layers' vectors count as matrices: they are less than 0.1 %.
    """
    total, largest = np.zeros(1), np.zeros(1)
    dense = RankParameters(layers=own.layers, experts=np.zeros_like(own.experts), ends=np.zeros_like(own.ends))
    experts = RankParameters(layers=np.zeros_like(own.layers), experts=own.experts, ends=np.zeros_like(own.ends))
    for products, part in ((common_products(case), dense), (expert_products(case), experts)):
        seconds, held = np.zeros(1), np.zeros(1)
        for _, columns, depth, count in products:
            if not np.any(count):
                continue
            one = orthogonal_s(case.device.wide, columns, depth)
            seconds, held = seconds + count * one, held + count * columns * depth
            largest = np.maximum(largest, np.where(count > 0, one, 0.0))
        total = total + state_parameters(part, case.layouts, 1) * seconds / np.maximum(held, 1.0)
    return np.asarray(np.maximum(total, largest))
