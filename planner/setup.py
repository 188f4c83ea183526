"""`Setup`: what is trained, on what, by what. All that is asked of planner is asked of a setup."""

from dataclasses import dataclass, field

from planner.hardware import Cluster, Framework
from planner.models import Transformer


@dataclass(frozen=True)
class Setup:
    """A model, the cluster that trains it, and the framework that runs it there.

    model: one transformer, or one per layout (array fields) where layouts of many models are estimated at once.
    export: the framework of `planner export` that a search is held to; None: to what the framework's profile says.
    """

    model: Transformer
    cluster: Cluster
    framework: Framework
    export: str | None = field(default=None, kw_only=True)
