"""Names of frameworks' settings that imports read or ignore, from `names.toml`."""

from difflib import get_close_matches
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from planner.base.files import read_toml

LIKENESS = 0.9
"""Of a misspelt name at least. Megatron-LM's own names that planner doesn't read are less like those that it reads, but
for those called alike in `names.toml`."""
SHIPPED = Path(__file__).with_name("names.toml")


@cache
def _names() -> dict[str, dict[str, tuple[str, ...]]]:
    return TypeAdapter(dict[str, dict[str, tuple[str, ...]]]).validate_python(read_toml(SHIPPED))


def ignored(framework: str) -> tuple[str, ...]:
    """Settings that change neither a step's time nor its memory by much; of Megatron-LM the beginnings of arguments."""
    return _names()[framework]["ignored"]


def megatron_arguments(*kinds: str) -> set[str]:
    """Megatron-LM's arguments of some kinds: launcher, model, read, newer."""
    return {name for kind in kinds for name in _names()["megatron"][kind]}


def meant_argument(name: str) -> str | None:
    """Megatron-LM's argument that planner reads, where an unknown name is probably that one misspelt."""
    near = get_close_matches(name[:100], megatron_arguments("launcher", "model", "read", "newer"), 1, LIKENESS)
    return near[0] if near and name not in megatron_arguments("alike") else None
