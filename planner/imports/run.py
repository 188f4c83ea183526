"""What an import makes of a run's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from planner.layouts import Layouts
from planner.setup import Setup


@dataclass(frozen=True, kw_only=True, eq=False)
class ExistingRun:
    """A run that exists, as planner sees it.

    question: the model, the cluster, and the framework's profile with what the run has turned off.
    layouts: a table of one. profile: the framework with everything on. switches: what would turn on each thing that is
    off, by the fields of the profile. notes: what was assumed, or can't be seen by the model. unknown: arguments that
    were not understood. ignored: how many were understood to change neither time nor memory.
    """

    title: str
    setup: Setup
    layouts: Layouts
    profile: Setup
    switches: dict[str, tuple[str, ...]]
    notes: tuple[str, ...]
    unknown: tuple[str, ...]
    ignored: int
