"""The Python API: `Model`, `Cluster`, `recommend`, `estimate` and the other questions, and what they return.

A use case a file, for Python and commands alike; its names are imported from `planner` (docs/python-api.md).
"""
