"""Sizes of a layout's share of a model, for several cost models. Array-first, shape (n,)."""

from typing import Any

import numpy as np

from planner.base.arrays import Array
from planner.layouts import Attention, Layouts
from planner.models import Transformer, mix


def has_dropout(model: Transformer, layouts: Layouts) -> Any:
    """Whether the model's recipe has dropout; runs with flash kernels came later, and left it out."""
    return np.asarray(model.dropout) & (layouts.attention < Attention.FLASH1)


def fuses_softmax(model: Transformer, layouts: Layouts) -> Any:
    """Whether the softmax is one kernel in 16 bits: up to 16,383 keys, past which Transformer Engine runs PyTorch's."""
    return np.asarray((layouts.attention == Attention.FUSED) & (np.asarray(model.seq_len) < 16384))


def inner_width(model: Transformer, copies: Any) -> Any:
    """Inner elements a token in the average layer's MLP, dense or in experts: so many copies of it in routed ones."""
    part = mix.shares(model)
    return part.dense * model.ffn + part.sparse * (copies + model.num_shared_experts) * model.moe_ffn


def routed_width(model: Transformer, copies: Any) -> Any:
    """Inner elements among those of `inner_width` in the experts that a token is routed to."""
    return mix.shares(model).sparse * copies * np.asarray(model.moe_ffn)


def is_latent(model: Transformer) -> Any:
    """Whether attention is multi-head latent attention (DeepSeek-V2), boolean."""
    return np.asarray(model.kv_lora_rank) > 0


def padded_vocab(model: Transformer, layouts: Layouts) -> Array:
    """Vocabulary rows as stored: a multiple of 128 t, Megatron-LM's default, shape (n,)."""
    block = 128 * layouts.tp
    return np.asarray(np.ceil(np.asarray(model.vocab) / block) * block)
