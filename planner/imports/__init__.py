"""Existing runs' configurations, read back into a question and a layout."""
