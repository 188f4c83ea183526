"""The modules of a layer whose inputs wait in host memory for their backward pass, as a number: a bit for each.

`core_attn+attn_proj` are the names of Megatron-Core, which moves what such modules keep (transformer_config.py,
offload_modules); `none` is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.base.errors import InputError, shown
from planner.choices.word_bits import bits_of, has_word, words_of

if TYPE_CHECKING:  # the command line reads this table before numpy
    from planner.base.arrays import Bools

MODULES = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act")
"""Norms, the product into attention, its core, the product out of it; experts' first product and their activation."""
ALLOWED_MODULES = f"none, or some of {'+'.join(MODULES)}; attn_proj with core_attn alone"


def read_modules(text: str) -> int:
    """The number of a text. Raises InputError if it is none."""
    named = [part.strip() for part in text.strip().lower().split("+")]
    if named == ["none"]:
        return 0
    if set(named) - set(MODULES) or ("attn_proj" in named and "core_attn" not in named):
        raise InputError(f"offload_modules is {shown(text)}; allowed: {ALLOWED_MODULES}")
    return bits_of(named, MODULES)


def module_names(code: int) -> list[str]:
    """The modules of a number."""
    return words_of(code, MODULES)


def modules_text(code: int) -> str:
    """The text of a number, as users write it."""
    return "+".join(module_names(code)) or "none"


def waits(modules: Any, name: str) -> Bools:
    """Whether what a module keeps waits in host memory."""
    return has_word(modules, name, MODULES)
