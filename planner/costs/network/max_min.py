"""Rates of flows that share links by max-min fairness. Array-first."""

import numpy as np

from planner.base.arrays import Array


def max_min(flows: Array, capacity: Array, most: Array) -> Array:
    """Rate of a flow of every bundle, shape (n,), in the units of `capacity` and `most`.

    A bundle is equal flows that go at one pace. flows: how many of a bundle's flows are on a link, shape (links, n), 0
    for none; a part of one where the rest of it goes elsewhere. capacity: of each link. most: that a flow would send if
    nothing held it up; endless only where it is on a link.

    Progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2): all rates grow alike until a link is
    full or a flow has its most. That settles the flows on it, and the others go on growing.
    """
    rate = np.zeros(len(most))
    free = np.ones(len(most), dtype=bool)
    while free.any():
        growing = flows[:, free].sum(axis=1)
        on = growing > 0.0
        left = np.maximum(capacity[on] - flows[on] @ rate, 0.0)
        level = np.full(len(capacity), np.inf)
        level[on] = left / growing[on]
        at = min(level.min(initial=np.inf), most[free].min())
        full = level <= at * (1.0 + 1e-12)
        settled = free & ((most <= at) | np.any(flows[full] > 0.0, axis=0))
        rate[settled] = np.minimum(at, most[settled])
        free &= ~settled
    return rate
