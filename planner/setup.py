"""`Setup`: what is trained, on what, by what. All that is asked of planner is asked of a setup."""

from __future__ import annotations

from dataclasses import dataclass

from planner.hardware import Cluster, Framework
from planner.models import Transformer


@dataclass(frozen=True)
class Setup:
    """A model, the cluster that trains it, and the framework that runs it there.

    model: one transformer, or one per layout (array fields) where layouts of many models are estimated at once.
    """

    model: Transformer
    cluster: Cluster
    framework: Framework
