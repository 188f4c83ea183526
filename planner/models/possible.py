"""Shapes of a transformer are possible if every size is in its range, and sizes agree with one another."""

import re
from collections.abc import Iterator
from dataclasses import fields
from itertools import chain
from typing import Any

from planner.base.errors import InputError, shown
from planner.models.transformer import Transformer

FLAGS = tuple(f.name for f in fields(Transformer) if f.default is False)
POSITIVE = ("num_layers", "hidden", "num_heads", "num_kv_heads", "head_dim", "vocab", "seq_len")
NOT_NEGATIVE = ("ffn", *(f.name for f in fields(Transformer) if type(f.default) is int))
SHARES = tuple(f.name for f in fields(Transformer) if type(f.default) is float)
SSM_SIZES = ("ssm_heads", "ssm_head_dim", "ssm_groups", "ssm_state", "ssm_conv")
TEXTS = {
    "rope_type": r"\w+( \w+ -?\d+(\.\d+)?(e[+-]\d+)?)*", "router": r"(softmax|sigmoid)(-first)?( \d+(\.\d+)?)?",
    "expert_layers": "[01]+", "model_type": r"\w+",
}  # fmt: skip
"""What is said in words, each by its form, or nothing."""
FRACTIONAL = "num_shared_experts"
"""The one of NOT_NEGATIVE that needn't be whole."""
LARGEST = 10**9
LONGEST_NAME = 200
MOST_PARAMS = 10**18


def check(model: Transformer) -> Transformer:
    """The same model if its shape is possible.

    Raises InputError if a size is not a whole number in range, or sizes contradict each other; names the field.
    """
    _check_fields(model)
    for broken, text in chain(_of_layers(model), _of_experts(model)):
        if broken:
            raise InputError(f"model {model.name}: {text}")
    if _rough_params(model) > MOST_PARAMS:
        raise InputError(f"model {model.name}: its sizes make over 1e18 parameters; allowed: fewer")
    return model


def _check_fields(m: Transformer) -> None:
    """Raises InputError if a field by itself is out of its range."""
    if not isinstance(m.name, str) or not m.name.isprintable() or not 1 <= len(m.name) <= LONGEST_NAME:
        raise InputError(f"model's name is {shown(m.name)}; allowed: 1 to {LONGEST_NAME} characters that print")
    for name in POSITIVE + NOT_NEGATIVE:
        value = getattr(m, name)
        least = 1 if name in POSITIVE else 0
        kind = "number" if name == FRACTIONAL else "whole number"
        wrong = isinstance(value, bool) or not isinstance(value, int | float if name == FRACTIONAL else int)
        if wrong or not least <= value <= LARGEST:
            raise InputError(f"model {m.name}: {name} is {shown(value)}; allowed: a {kind} from {least} to 1e9")
    for name in SHARES:
        value = getattr(m, name)
        if not isinstance(value, float) or not 0 <= value <= 1:
            raise InputError(f"model {m.name}: {name} is {shown(value)}; allowed: a number from 0 to 1")
    for name in FLAGS:
        if not isinstance(getattr(m, name), bool):
            raise InputError(f"model {m.name}: {name} is {getattr(m, name)!r}; allowed: true or false")
    for name, form in TEXTS.items():
        value = getattr(m, name)
        if not isinstance(value, str) or not re.fullmatch(f"({form})?", value):
            raise InputError(f"model {m.name}: {name} is {shown(value)}; allowed: text of the form {form}")


Contradictions = Iterator[tuple[Any, str]]
"""Whether sizes contradict each other, and what is then said."""


def _of_layers(m: Transformer) -> Contradictions:
    yield m.num_heads % m.num_kv_heads, f"num_heads {m.num_heads} isn't a multiple of num_kv_heads {m.num_kv_heads}"
    for one, other in (
        ("num_dense_layers", "num_mixer_only_layers"),
        ("num_ssm_layers", "num_mlp_only_layers"),
        ("num_mixer_only_layers", "num_mlp_only_layers"),
    ):
        some, more = getattr(m, one), getattr(m, other)
        yield some + more > m.num_layers, f"{one} {some} and {other} {more} are over num_layers {m.num_layers}"
    yield (
        m.parallel_block and m.num_dense_layers < m.num_layers,
        "parallel_block is True; allowed: False, for not every layer has attention and a dense MLP",
    )
    yield (
        m.parallel_norms and not m.parallel_block,
        "parallel_norms is True; allowed: False, for parallel_block is False",
    )
    yield (
        m.num_window_layers > m.num_attention_layers or bool(m.num_window_layers) != bool(m.window),
        f"num_window_layers {m.num_window_layers} and window {m.window}; allowed: both 0, or a window >= 1 "
        f"in 1 to {m.num_attention_layers} layers, those with attention",
    )
    sizes = {name: getattr(m, name) for name in SSM_SIZES}
    yield (
        m.num_ssm_layers and (min(sizes.values()) < 1 or m.ssm_heads % m.ssm_groups),
        "state-space layers need every ssm size >= 1 and ssm_heads a multiple of ssm_groups; got "
        + ", ".join(f"{name} {size}" for name, size in sizes.items()),
    )


def _of_experts(m: Transformer) -> Contradictions:
    """Of the MLPs, dense and of experts, and what belongs to either; of latent attention."""
    listed = (len(m.expert_layers), m.expert_layers.count("0"))
    yield (
        m.expert_layers and listed != (m.num_layers, m.num_dense_layers),
        f"expert_layers is {shown(m.expert_layers)}; allowed: {m.num_layers} digits, {m.num_dense_layers} of them 0",
    )
    no_mlp = m.num_mtp_layers and m.num_mixer_only_layers == m.num_layers
    yield no_mlp, f"num_mtp_layers is {m.num_mtp_layers}; allowed: 0, for no layer has an MLP"
    yield m.num_dense_layers and not m.ffn, "ffn is 0; allowed: 1 or more, for there are dense layers"
    sparse = m.num_dense_layers + m.num_mixer_only_layers < m.num_layers
    yield (
        sparse and not (m.moe_ffn and 0 < m.top_k <= m.num_experts),
        f"sparse layers need moe_ffn >= 1 and 1 <= top_k <= num_experts; "
        f"got moe_ffn {m.moe_ffn}, top_k {m.top_k}, num_experts {m.num_experts}",
    )
    for name, without, owner, has_owner in (
        ("expert_bias", False, "experts", m.num_experts),
        ("clamped", False, "gated MLPs", m.gated),
        ("moe_latent", 0, "experts", m.num_experts),
    ):
        value = getattr(m, name)
        yield value and not has_owner, f"{name} is {value}; allowed: {without}, for there are no {owner}"
    yield (
        m.kv_lora_rank and not (m.v_head_dim and m.qk_rope_head_dim < m.head_dim),
        f"kv_lora_rank {m.kv_lora_rank} needs v_head_dim >= 1 and qk_rope_head_dim < head_dim; "
        f"got v_head_dim {m.v_head_dim}, qk_rope_head_dim {m.qk_rope_head_dim}, head_dim {m.head_dim}",
    )
    size = m.num_experts // max(m.expert_groups, 1)
    fewest = -(-m.top_k // max(size, 1))
    grouped = m.num_experts == size * m.expert_groups and fewest <= m.top_k_groups < m.expert_groups
    yield (
        (m.expert_groups or m.top_k_groups) and not grouped,
        f"expert_groups {m.expert_groups} and top_k_groups {m.top_k_groups}; allowed: both 0, or equal "
        f"groups of num_experts {m.num_experts}, fewer of which hold top_k {m.top_k}",
    )


def _rough_params(m: Transformer) -> int:
    """An upper bound in Python's own integers, so that counts in int64 can't wrap."""
    heads = m.num_heads * (2 * m.head_dim + m.v_head_dim + 2)
    ranks = m.q_lora_rank + m.kv_lora_rank
    attention = (2 * m.hidden + ranks) * (heads + ranks + m.hidden)
    space = (m.hidden + m.ssm_conv + 4) * (4 * m.ssm_heads * m.ssm_head_dim + 4 * m.ssm_groups * m.ssm_state + 1)
    inner = m.ffn + m.moe_ffn * (m.num_experts + m.num_shared_experts) + m.num_experts
    layer = 2 * attention + space + 4 * (m.hidden + m.moe_latent + 1) * (inner + m.moe_latent + 2)
    outside = (2 * m.vocab + m.max_positions + 6) * m.hidden
    return int((m.num_layers + m.num_mtp_layers) * (layer + 2 * m.hidden * m.hidden) + outside)
