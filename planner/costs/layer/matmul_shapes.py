"""The linear products of one transformer layer on one tensor rank, by shape. Array-first, shape (n,).

A product multiplies rows x depth by depth x columns; its rows are the pass's tokens times the row factor. They are
those of Narayanan et al. 2021 (arXiv 2104.04473, section 3 and appendix), and of what came since.
"""

from typing import Any

import numpy as np

from planner.costs.case import Case
from planner.costs.kernels.state_space import ssm_products
from planner.costs.shapes import is_latent
from planner.models import mix


def latent_products(case: Case) -> list[tuple[Any, Any, Any]]:
    """(columns, depth, count) of the products from the latents up to queries, keys and values, on one tensor rank."""
    model = case.model
    count = mix.shares(model).attention * is_latent(model)
    a, rank_q, nope = model.num_heads, np.asarray(model.q_lora_rank), model.head_dim - model.qk_rope_head_dim
    return [
        (a * model.head_dim / case.layouts.tp, np.where(rank_q > 0, rank_q, model.hidden), count),
        (a * (nope + np.asarray(model.v_head_dim)) / case.layouts.tp, np.maximum(model.kv_lora_rank, 1), count),
    ]


def attention_products(case: Case) -> list[tuple[Any, Any, Any]]:
    """(columns, depth, count) of the linear products around the average layer's attention, on one tensor rank."""
    model = case.model
    share, mla = mix.shares(model).attention, is_latent(model)
    t, h = case.layouts.tp, model.hidden
    a, kv, d = model.num_heads, np.maximum(model.num_kv_heads, case.layouts.tp), model.head_dim
    rank_q = np.asarray(model.q_lora_rank)
    return [
        ((a + 2 * kv) * d / t, h, share * ~mla),
        (np.maximum(rank_q, 1), h, (mla & (rank_q > 0)) * share),
        (np.maximum(model.kv_lora_rank + model.qk_rope_head_dim, 1), h, mla * share),
        (h, a * model.value_channels / t, share),
        *latent_products(case),
    ]


def expert_products(case: Case) -> list[tuple[Any, Any, Any, Any]]:
    """(row factor, columns, depth, count) of the products of a rank's routed experts, averaged over layers.

    An expert-parallel rank keeps E / ep experts and sees, at balance, top_k tokens' worth of work per token, in E / ep
    products of top_k * ep / E of the rows each; the busiest rank `expert_imbalance` times that. Where experts are whole
    on a tensor rank, it sees the copies of its share of the tokens.
    """
    model = case.model
    up = np.where(model.gated, 2.0, 1.0)
    local = case.local_experts
    rows = np.maximum(case.busiest_copies, 1) / local * case.layouts.etp / case.layouts.tp
    inner, width = np.maximum(model.moe_ffn, 1) / case.layouts.etp, mix.expert_width(model)
    count = mix.shares(model).sparse * local
    return [(rows, up * inner, width, count), (rows, width, inner, count)]


def mlp_products(case: Case) -> list[tuple[Any, Any, Any, Any]]:
    """(row factor, columns, depth, count) of the MLP's products but routed experts', averaged over layers."""
    model, layouts = case.model, case.layouts
    part = mix.shares(model)
    dense, sparse = part.dense, part.sparse
    up = np.where(model.gated, 2.0, 1.0)
    shared_ffn = np.maximum(model.moe_ffn * model.num_shared_experts, 1) / layouts.tp
    shared = sparse * (np.asarray(model.num_shared_experts) > 0)
    ffn = np.maximum(model.ffn, 1) / layouts.tp
    h = model.hidden
    products: list[tuple[Any, Any, Any, Any]] = [
        (1.0, up * ffn, h, dense),
        (1.0, h, ffn, dense),
        (1.0, up * shared_ffn, h, shared),
        (1.0, h, shared_ffn, shared),
        (1.0, np.maximum(model.num_experts, 1), h, sparse),
    ]
    if np.any(model.moe_latent):
        # Every tensor rank has the products to and from experts' latents whole (Megatron-Core, moe_layer.py).
        rows, latent = 1.0 / case.token_shares, np.maximum(model.moe_latent, 1)
        count = mix.latent_share(model)
        products += [(rows, latent, h, count), (rows, h, latent, count)]
    return products


def common_products(case: Case) -> list[tuple[Any, Any, Any, Any]]:
    """(row factor, columns, depth, count) of a layer's products that every token meets, on one tensor rank."""
    mixers = attention_products(case)
    if np.any(case.model.num_ssm_layers):
        mixers = mixers + ssm_products(case)
    return [(1.0, c, d, k) for c, d, k in mixers] + mlp_products(case)
