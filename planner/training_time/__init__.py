"""Answers that join scaling laws with the search of layouts: how long, how fast at best, what limits it."""
