"""Seconds of compute, seconds of network, bytes of memory: per operation, array-first over layouts."""
