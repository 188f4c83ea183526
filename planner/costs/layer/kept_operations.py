"""PyTorch's selective checkpointing by operation: which products' outputs stay, and which products run again.

torchtitan 0.3.0, distributed/activation_checkpoint.py (SelectiveAC): in the order in which a layer's products run, the
output of each second one is dropped; the router's always is, and experts' grouped products' are. Attention's output
stays, and what a reduce-scatter or an all-to-all ends with. Array-first, shape (n,).
"""

from typing import Any

import numpy as np

from planner.base.arrays import Array, Bools
from planner.costs.case import Case
from planner.costs.kernels.device import aligned_share, group_s, matmul_s
from planner.costs.layer.matmul_shapes import common_products, expert_products, mlp_products
from planner.costs.shapes import is_latent
from planner.layouts import Recompute
from planner.models import mix


def by_operation(case: Case) -> Bools:
    """Whether selective recomputation chooses by operation, boolean of shape (n,)."""
    return np.asarray((case.layouts.recompute == Recompute.SELECTIVE) & case.framework.selective_operations)


def kept_shares(case: Case) -> list[Any]:
    """The share of the output that stays, of each of `common_products`; gate and up are one product, and half stays.

    Attention has two products, latent attention four, or five with a latent of queries: then the MLP starts with one
    that is dropped.
    """
    products = common_products(case)
    if np.any(case.model.num_ssm_layers) or not case.framework.kept_products:
        return [0.0] * len(products)
    queries = is_latent(case.model) & (np.asarray(case.model.q_lora_rank) > 0)
    attention: list[Any] = [1.0, 1.0, queries, queries, ~queries, ~queries]
    gated = np.asarray(case.model.gated)
    up, down = np.where(gated, 0.5, ~queries), np.where(gated, ~queries, queries)
    mlp = [up, down, up, down]
    scans = [0.0] * (len(products) - len(attention) - len(mlp))
    return [*attention, *mlp, *scans]


def _needed(case: Case) -> list[tuple[tuple[Any, Any, Any, Any], Any]]:
    """The products, each with the share of its output that stays; compiled layers hold no MLP's last one backward.

    Products in nvfp4 are another operation (aten._scaled_mm_v2, in torchao's nvfp4_linear.py), which is not among those
    that stay (PyTorch, _functorch/partitioners.py): none does.
    """
    products = common_products(case)
    mlp = len(products) - len(mlp_products(case))
    last = (mlp + 1, mlp + 3) if case.framework.compiled_layers else ()  # of the dense MLP and of shared experts
    stays = np.where(case.device.matrix_bytes < 1.0, 0.0, 1.0)
    pairs = zip(products, (stays * share for share in kept_shares(case)), strict=True)
    return [pair for i, pair in enumerate(pairs) if i not in last]


def kept_operation_bytes(case: Case) -> Array:
    """Bytes that a layer keeps but for attention's sums: its input, and the outputs of operations that stay."""
    model, layouts, e = case.model, case.layouts, case.device.element_bytes
    tokens, shared = case.local_tokens, case.token_shares
    part = mix.shares(model)
    columns = sum(rows * wide * count * share for (rows, wide, _, count), share in _needed(case))
    attended = part.attention * model.num_heads * model.value_channels / layouts.tp
    attended = 0.0 if case.framework.repeats_attention else attended
    sums = part.sums - case.framework.compiled_layers * (part.dense + part.sparse)
    summed = np.where(shared > 1, sums, 0.0)  # a reduce-scatter each; all-reduces run again
    exchanges = (layouts.ep > 1) & (not case.framework.exchanges_again)
    exchanged = 2.0 * mix.expert_width(model) * part.sparse * np.asarray(model.top_k) * exchanges
    hidden = (1.0 + summed) * model.hidden + exchanged
    return np.asarray(tokens * e * (columns + attended + hidden / shared))


def dropped_products_s(case: Case) -> Array:
    """Seconds of a pass's forward products whose outputs are dropped."""
    seconds, together = np.asarray(0.0), case.framework.one_product
    for (rows, columns, depth, count), share in _needed(case):
        if np.any(count):
            along = aligned_share(case.device, case.device.matrix_bytes, depth)
            one = matmul_s(case.device, case.pass_tokens * rows, columns, depth, along)
            seconds = seconds + count * (1.0 - np.asarray(share)) * one
    for rows, columns, depth, each in expert_products(case):
        if np.any(each):
            along, local = aligned_share(case.device, case.device.matrix_bytes, depth), case.local_experts
            one, _ = group_s(case.device, case.pass_tokens * rows, columns, depth, along, local, together)
            seconds = seconds + each / local * one
    return seconds
