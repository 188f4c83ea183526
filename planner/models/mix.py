"""How many of a model's layers have what: attention, state-space, dense MLP, experts. All broadcast over models."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from planner.base.arrays import record
from planner.models.transformer import Transformer


def window_share(m: Transformer) -> Any:
    """Fraction of the layers with attention that attend to a sliding window alone."""
    return np.asarray(m.num_window_layers) / np.maximum(m.num_attention_layers, 1)


def sparse_layers(m: Transformer) -> Any:
    """Layers with experts."""
    return m.num_layers - np.asarray(m.num_dense_layers) - m.num_mixer_only_layers


def sparse_modules(m: Transformer) -> Any:
    """Modules of multi-token prediction whose layer has experts: all, if any layer of the model has."""
    return np.where(sparse_layers(m) > 0, m.num_mtp_modules, 0)


def is_hybrid(m: Transformer) -> Any:
    """Whether a layer is a mixer or an MLP alone."""
    return np.asarray(m.num_mixer_only_layers) + m.num_mlp_only_layers > 0


def has_own_module(m: Transformer) -> Any:
    """Whether multi-token prediction's layer (`module_layer`) differs from the model's average one."""
    return (np.asarray(m.num_mtp_layers) > 0) & is_hybrid(m)


def all_dense(m: Transformer) -> Transformer:
    """A model whose every layer with an MLP has a dense one."""
    return replace(m, num_dense_layers=m.num_layers - np.asarray(m.num_mixer_only_layers))


def all_sparse(m: Transformer) -> Transformer:
    """A model whose every layer with an MLP has experts."""
    return replace(m, num_dense_layers=0)


def leading_dense(m: Transformer) -> Any:
    """Dense layers before all that have experts, where a layer's place matters: DeepSeek's, Kimi's, GLM's first ones.

    Where they are half of all or more they are taken to alternate (Llama 4 Maverick), and so in a hybrid: none leads.
    """
    dense = np.asarray(m.num_dense_layers)
    return np.where((2 * dense < m.num_layers) & (sparse_layers(m) > 0) & ~is_hybrid(m), dense, 0)


def module_layer(m: Transformer) -> Transformer:
    """A model whose average layer is that of a multi-token prediction module: of a hybrid attention and an MLP."""
    hybrid, sparse = is_hybrid(m), sparse_layers(m) > 0
    return replace(
        m,
        num_layers=np.where(hybrid, 1, m.num_layers),
        num_dense_layers=np.where(hybrid, ~sparse * 1, m.num_dense_layers),
        num_window_layers=np.where(hybrid, 0, m.num_window_layers),
        num_ssm_layers=np.where(hybrid, 0, m.num_ssm_layers),
        num_mixer_only_layers=0,
        num_mlp_only_layers=0,
    )


def latent_share(m: Transformer) -> Any:
    """Fraction of the layers whose experts work on latents."""
    return shares(m).sparse * (np.asarray(m.moe_latent) > 0)


def expert_width(m: Transformer) -> Any:
    """Channels that a routed expert takes and gives: the hidden state's, or a latent's."""
    return np.where(np.asarray(m.moe_latent) > 0, m.moe_latent, m.hidden)


def blocks(m: Transformer) -> Any:
    """Mixers and MLPs of all layers: two a layer but in a hybrid."""
    return 2 * m.num_layers - np.asarray(m.num_mixer_only_layers) - m.num_mlp_only_layers


def sums(m: Transformer) -> Any:
    """How often all layers add to the hidden state: once a block, or once for a parallel layer's two."""
    return blocks(m) - m.num_layers * np.asarray(m.parallel_block)


def norms(m: Transformer) -> Any:
    """Norms of the hidden state in all layers: one a block, or one for a parallel layer's two."""
    return np.where(m.parallel_norms, blocks(m), sums(m))


def ssm_channels(m: Transformer) -> tuple[Any, Any]:
    """Channels of a state-space layer's heads, and of the inputs and outputs B and C of its states."""
    return np.asarray(m.ssm_heads) * m.ssm_head_dim, 2 * np.asarray(m.ssm_groups) * m.ssm_state


def _each(count: Callable[[Transformer], Any], says: str) -> Any:
    """A number of all layers, as a property: of an average layer, computed where it is asked for."""
    return property(lambda self: count(self.of) / self.of.num_layers, doc=says)


@record
class Shares:
    """Fractions of a model's layers with each kind; blocks, sums, norms: numbers in an average layer."""

    of: Transformer
    attention = _each(lambda m: m.num_attention_layers, "With attention.")
    ssm = _each(lambda m: np.asarray(m.num_ssm_layers), "With a state-space.")
    dense = _each(lambda m: np.asarray(m.num_dense_layers), "With a dense MLP.")
    sparse = _each(sparse_layers, "With experts.")
    blocks = _each(blocks, "Blocks of a layer.")
    sums = _each(sums, "Sums of a layer.")
    norms = _each(norms, "Norms of a layer.")


def shares(m: Transformer) -> Shares:
    """Shares of each kind in an average layer."""
    return Shares(of=m)
