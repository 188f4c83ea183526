"""Some of a few words as a number: a bit for each, in the order of the words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line reads these tables before numpy
    from planner.base.arrays import Bools


def bits_of(chosen: Iterable[str], words: Sequence[str]) -> int:
    """The number of those chosen, each once."""
    return sum(1 << words.index(word) for word in set(chosen))


def words_of(bits: int, words: Sequence[str]) -> list[str]:
    """The words of a number."""
    return [word for bit, word in enumerate(words) if bits >> bit & 1]


def has_word(bits: Any, word: str, words: Sequence[str]) -> Bools:
    """Whether a word is among a number's; arrays give arrays."""
    there: Bools = bits >> words.index(word) & 1 != 0
    return there
