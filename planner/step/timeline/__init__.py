"""The exact timeline of one layout: operations with durations, streams, memory over time, the critical path."""
