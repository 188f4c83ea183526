"""Shared by all rooms: errors, units, files, lookup of names as people write them, records of arrays, Pareto fronts."""
