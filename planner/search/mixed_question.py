"""What a search on groups of machines that differ is asked, and a way to train that it finds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from planner.hardware import Link
from planner.layouts import Layouts
from planner.setup import Setup


@dataclass(frozen=True, kw_only=True)
class MixedQuestion:
    """Setups and GPUs of each group, in the order of their memory.

    alone: the step and layout of a group's own search for a batch, as far as it takes so many seconds or fewer; raises
    LayoutError if there is none.
    network: the link between the groups; None takes the slower of two groups' networks.
    """

    setups: tuple[Setup, ...]
    gpus: tuple[int, ...]
    batch: int
    numerics: tuple[dict[str, Any], ...]
    network: Link | None
    alone: Callable[[int, int, float], tuple[float, Layouts]]


@dataclass(frozen=True, kw_only=True)
class MixedWay:
    """A way to train. groups: numbers of the groups that train. layouts, batches, layers: each group's layout, and its
    part of the batch or its layers by stage."""

    name: str
    groups: tuple[int, ...]
    step_s: float
    layouts: tuple[Layouts, ...]
    batches: tuple[int, ...] = ()
    layers: tuple[tuple[int, ...], ...] = ()
