"""Sweeps: every combination of models, clusters, hardware figures, sizes and batches, each with its best layout."""
