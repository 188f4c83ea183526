"""Microbenchmarks turned into hardware profiles."""
