"""planner: which parallel layout, how long, what limits it, and how accurate the answer is."""

__version__ = "0.1.0"
