"""Seconds of one kernel: matrix products, passes over memory, attention, scans."""
