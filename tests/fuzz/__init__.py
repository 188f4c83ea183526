"""Hostile and broken inputs through the real command line: one line and exit code 2, or a sound answer."""
