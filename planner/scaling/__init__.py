"""Scaling laws, critical batch, goodput, cost: everything on top of a step time that is passed in; no layouts here."""
