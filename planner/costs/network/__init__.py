"""Seconds of collectives and sends, and which of them a layout needs."""
