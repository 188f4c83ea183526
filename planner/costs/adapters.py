"""Adapters of low rank beside frozen matrices (LoRA, Hu et al. 2021, arXiv 2106.09685): which, their sizes and work.

A matrix of so many columns and depth gets a product down to the rank and one up, whose output is scaled and added to
its own. They are Megatron-Bridge's (peft/lora.py and utils.py): both cut over the tensor ranks, in 16 bits whatever the
matrix is in; a rank's routed experts of a layer share one. Embedding, head, norms, router, products of latents and of
state-spaces have none. Array-first, shape (n,).
"""

from typing import Any, NamedTuple

import numpy as np

from planner.base.arrays import Array, Bools
from planner.choices.training import adapter_rank, adapts
from planner.costs.case import Case
from planner.costs.kernels.device import stream_s
from planner.costs.layer.matmul_shapes import attention_products, expert_products, mlp_products
from planner.costs.parameters import RankParameters
from planner.layouts import Layouts
from planner.models import counts, mix
from planner.setup import Setup

Product = tuple[Any, Any, Any, Any]


class Adapted(NamedTuple):
    """Matrices of an average layer with an adapter, on one tensor rank: rows, columns, depth and count of a product.

    inward: the tensor ranks cut its columns, else its depth. cut: over how many ranks. routed: of routed experts.
    """

    rows: Any
    columns: Any
    depth: Any
    count: Any
    inward: bool
    cut: Any
    routed: bool = False


def frozen(case: Case) -> Bools:
    """Whether the model's own parameters are not trained."""
    return np.asarray(case.layouts.train > 0)


def adapted(case: Case) -> list[Adapted]:
    """The matrices that have an adapter; none where all is trained."""
    x, attention, mlp = case.layouts, attention_products(case), mlp_products(case)
    qkv, proj = (1.0, *attention[0]), (1.0, *attention[3])
    of = [(qkv, "qkv", False), (proj, "proj", False)]
    of += [(product, target, False) for product, target in zip(mlp[:4], ("fc1", "fc2") * 2, strict=True)]
    if np.any(case.model.num_experts):
        local = case.local_experts
        together = [(rows * local, c, d, count / local) for rows, c, d, count in expert_products(case)]
        of += [(product, target, True) for product, target in zip(together, ("fc1", "fc2"), strict=True)]
    return [
        Adapted(rows, c, d, count * adapts(x.train, to), to in ("qkv", "fc1"), x.etp if routed else x.tp, routed)
        for (rows, c, d, count), to, routed in of
    ]


def adapter_products(case: Case, routed: bool | None = None) -> list[Product]:
    """(row factor, columns, depth, count) of the adapters' products; routed: those of routed experts, or the others'.

    Both products of a matrix are cut: the one down over the rank before a matrix whose columns are cut, over its depth
    before one whose depth is; the one up over its columns.
    """
    if not frozen(case).any():
        return []
    rank = np.maximum(adapter_rank(case.layouts.train), 1)
    out: list[Product] = []
    for m in adapted(case):
        if routed in (None, m.routed):
            out.append((m.rows, rank / m.cut if m.inward else rank, m.depth, m.count))
            out.append((m.rows, m.columns if m.inward else m.columns / m.cut, rank, m.count))
    return out


def _params(products: list[Product]) -> Any:
    return sum(columns * depth * count for _, columns, depth, count in products)


def trained(case: Case, own: RankParameters) -> RankParameters:
    """The trained ones among a rank's parameters: all, or the adapters of its layers."""
    if not frozen(case).any():
        return own
    layer, experts = _params(adapter_products(case, False)), _params(adapter_products(case, True))
    parts = case.ranks
    layers = own.layers / parts.average
    return RankParameters(
        layers=np.where(frozen(case), layers * layer, own.layers),
        experts=np.where(frozen(case), layers * experts, own.experts),
        ends=np.where(frozen(case), 0.0, own.ends),
    )


def trained_parameters(setup: Setup, train: int) -> float:
    """Number of trained parameters of the whole model: all of them, or the adapters alone."""
    case = Case.of(setup, Layouts.of(global_batch=1, train=train))
    own = trained(case, case.ranks.rank(setup.model.num_layers, True, True))
    return float(own.total[0]) if train else float(counts.total_params(setup.model))


def adapters_pass_s(case: Case) -> tuple[Any, Any]:
    """Forward and backward seconds of a pass's scaling and adding: of an output, and of its gradient and the input's.

    The output of a matrix whose depth is cut is a rank's tokens' by then, with sequence parallelism.
    """
    if not frozen(case).any():
        return 0.0, 0.0
    device, e, tokens = case.device, case.device.element_bytes, case.pass_tokens
    forward, backward = np.asarray(0.0), np.asarray(0.0)
    for m in adapted(case):
        out = tokens * m.rows * m.columns / (1.0 if m.inward else case.token_shares)
        into = tokens * m.rows * m.depth
        forward = forward + m.count * stream_s(device, 5.0 * out * e, 2.0)  # r w scaled | r both, w sum
        backward = backward + m.count * stream_s(device, (2.0 * out + 3.0 * into) * e, 2.0)
    return forward, backward


def adapters_gathers(case: Case) -> tuple[Any, Any]:
    """Gathers of whole hidden states over the tensor ranks that a layer's adapters add, forward and backward.

    The product up of a matrix whose depth is cut has its columns cut: they are gathered, and with sequence parallelism
    so is the gradient of the tokens. Without it the product down of others sums its input's gradient, which is two.
    Where a framework overlaps tensor collectives, its normed input is not to be had whole: it is gathered again, and
    its gradient scattered. Routed experts' are left out.
    """
    if not frozen(case).any():
        return 0.0, 0.0
    of = [m for m in adapted(case) if not m.routed]
    inward, outward = (sum(m.count for m in of if m.inward is side) for side in (True, False))
    parallel = case.layouts.sequence_parallel
    again = np.where(parallel, inward * (case.framework.overlap_tensor > 0), 0.0)
    return outward + again, np.where(parallel, outward + again, 2.0 * inward)


def adapter_inputs(case: Case) -> tuple[Array, Array]:
    """Bytes that a micro-batch's adapters keep of the hidden state, whole on each tensor rank, and of their ranks'
    channels (Megatron-Bridge gathers the first unless sequence_parallel_input_regather)."""
    e, rank = case.device.element_bytes, adapter_rank(case.layouts.train)
    of = adapted(case)
    inward = sum(m.count * m.rows for m in of if m.inward and not m.routed)
    hidden = np.minimum(inward, mix.shares(case.model).norms) * case.model.hidden  # blocks of one norm share its output
    low = sum(m.count * m.rows for m in of) * rank
    return np.asarray(case.local_tokens * e * hidden), np.asarray(case.local_tokens * e * low)


def held_for_weights(case: Case) -> Array:
    """Bytes that a split backward holds from input to weight gradient: adapters' inputs and gradients of outputs."""
    rank = adapter_rank(case.layouts.train)
    each = sum(m.count * m.rows * (m.columns + m.depth + 2.0 * rank) for m in adapted(case))
    return np.asarray(case.local_tokens * case.device.element_bytes * each)
