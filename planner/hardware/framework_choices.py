"""Choices of a layout that a framework can run, and those that a run of it is taken to have made."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Unstated:
    """Choices that a framework's measured run is taken to have made where it doesn't say.

    attention: the kernel. sequence_parallel: whether tensor ranks share what lies between products. zero: ZeRO stages
    without pipeline stages, of which the first that fits counts.
    """

    attention: Literal["unfused", "fused", "flash1", "flash2", "flash3"] = "flash3"
    sequence_parallel: bool = True
    zero: tuple[Literal[0, 1, 2, 3], ...] = (1,)


@dataclass(frozen=True, kw_only=True)
class Runs:
    """A layout's choices that a framework can run; nothing stated, or an empty list: all of them.

    schedule: the pipeline schedules that it has. pp, cp: numbers of pipeline stages and of context ranks. zero: what
    its plain data parallelism shards.
    """

    schedule: tuple[str, ...] = ()
    pp: tuple[int, ...] = ()
    cp: tuple[int, ...] = ()
    zero: tuple[int, ...] = ()
