"""Seconds of one layer for one micro-batch, and of the embedding and the head."""
