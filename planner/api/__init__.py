"""The Python API: `Model`, `Cluster`, `recommend`, `estimate`, `simulate`, `network`, and the objects that they return.

Import these names from `planner`; docs/python-api.md lists those that stay.
"""

from planner.api.inputs import Cluster, Model
from planner.api.layout_estimate import LayoutEstimate, estimate
from planner.api.networks import network
from planner.api.plan import Plan, recommend
from planner.api.simulated import Simulation, simulate

__all__ = ["Cluster", "LayoutEstimate", "Model", "Plan", "Simulation", "estimate", "network", "recommend", "simulate"]
