"""Names of frameworks' settings that imports read or ignore, from `names.toml`."""

from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from planner.base.files import read_toml

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
