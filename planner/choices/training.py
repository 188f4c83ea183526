"""The trained part of a model, as a number: all of it, or adapters of low rank beside frozen weights (LoRA).

`lora:16` adapts the four matrices of a layer with rank 16, as Megatron-Bridge does unless told (peft/lora.py);
`lora:16:qkv+proj` those two alone. The number is the rank times 16 and a bit for each target; 0 is all of the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.base.errors import InputError, shown
from planner.choices.word_bits import bits_of, has_word, words_of

if TYPE_CHECKING:  # the command line reads this table before numpy
    from planner.base.arrays import Bools, Ints

TARGETS = ("qkv", "proj", "fc1", "fc2")
"""Matrices that may have an adapter: into attention and out of it, into an MLP or expert and out of it."""
EVERY = (1 << len(TARGETS)) - 1
MOST_RANK = 4096
ALLOWED = f"full, lora:RANK with a rank from 1 to {MOST_RANK}, or lora:RANK:TARGETS of {'+'.join(TARGETS)}"


def read_training(text: str) -> int:
    """The number of a text. Raises InputError if it is none."""
    kind, _, rest = text.strip().lower().partition(":")
    rank, _, named = rest.partition(":")
    targets = [part.strip().removeprefix("linear_") for part in named.split("+")] if named else list(TARGETS)
    if kind == "full" and not rest:
        return 0
    numeric = rank.isascii() and rank.isdigit() and len(rank) <= len(str(MOST_RANK)) and 1 <= int(rank) <= MOST_RANK
    if kind != "lora" or not numeric or rest.endswith(":") or set(targets) - set(TARGETS):
        raise InputError(f"train is {shown(text)}; allowed: {ALLOWED}")
    return int(rank) * (EVERY + 1) + bits_of(targets, TARGETS)


def training_text(code: int) -> str:
    """The text of a number, as users write it."""
    if not code:
        return "full"
    named = words_of(code, TARGETS)
    return f"lora:{code // (EVERY + 1)}" + ("" if len(named) == len(TARGETS) else ":" + "+".join(named))


def adapter_rank(train: Any) -> Ints:
    """The adapters' rank, 0 where all is trained."""
    rank: Ints = train // (EVERY + 1)
    return rank


def adapts(train: Any, target: str) -> Bools:
    """Whether a target has an adapter."""
    return has_word(train, target, TARGETS)
