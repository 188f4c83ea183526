"""The exact timeline of one layout: operations with durations, memory over time, the critical path."""
