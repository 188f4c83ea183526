"""Nodes in the order that makes a step shortest, where the links between them differ (Yim et al. 2024, 2405.18093).

Ranks fill nodes in the framework's order. A ring goes at the slowest link from one of its nodes to the next, an
all-to-all at the slowest of all between its nodes, a pipeline at the slowest between neighbouring stages; groups of a
kind run side by side, and the slowest holds up the others. So an order's step depends on one link of each kind alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from typing import Any

import numpy as np

from planner.base.arrays import Array, Ints
from planner.costs.network.groups import ranks_and_stride
from planner.costs.placement import node_ranks
from planner.layouts import Layouts
from planner.setup import Setup
from planner.step.pipelines import trait
from planner.step.timeline.timed import timed_estimate

EXACT = 8
"""Nodes up to which every order is tried."""
STARTS, MOVES, PATIENCE, LOOKUPS = 24, 128, 12, 2e8
"""Of the search among more: orders it starts from, moves looked at in a round, rounds without a better one that end a
start, and links looked up in all."""
SOFT = 16.0
"""The power by whose mean it tells apart orders with the same slowest link."""
POINTS = 8
"""Speeds of each kind's slowest link at which it knows a step's length."""


def links_of(setup: Setup, layouts: Layouts) -> dict[str, Ints]:
    """Links between a layout's nodes that each kind of traffic uses: from, to, places in their order, shape (k, 2)."""
    world = np.arange(int(layouts.gpus[0])) // int(node_ranks(setup.cluster, layouts.gpus))
    between: dict[str, list[Ints]] = {}
    for name, (ranks, stride) in ranks_and_stride(layouts).items():
        nodes = world.reshape(-1, int(ranks[0]), int(stride[0]))
        every = range(1, nodes.shape[1]) if name in ("expert", "ulysses") else (1,)
        between[name] = [np.stack([nodes, np.roll(nodes, -by, axis=1)]) for by in every]
    stages = world.reshape(int(layouts.pp[0]), -1)
    around = (trait(layouts, "looped_placement") & (layouts.virtual_stages > 1)) | (trait(layouts, "barriers") > 0)
    later = stages[1:] if not around else np.roll(stages, -1, axis=0)
    there = np.stack([stages[: len(later)], later])
    between["pipeline"] = [there, there[::-1]]
    out = {name: np.concatenate([x.reshape(2, -1).T for x in of]) for name, of in between.items() if of}
    out = {name: np.unique(x[x[:, 0] != x[:, 1]], axis=0) for name, x in out.items()}
    return {name: x for name, x in out.items() if len(x)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Placement:
    """A layout on nodes whose links differ.

    shares: what each link reaches over the network's own bandwidth, from a node (row) to another (column).
    """

    setup: Setup
    layouts: Layouts
    shares: Array

    @cached_property
    def links(self) -> dict[str, Ints]:
        """Links by kind of traffic, as `links_of`."""
        return links_of(self.setup, self.layouts)

    @cached_property
    def _known(self) -> dict[tuple[tuple[str, float], ...], float]:
        return {}

    def step_s(self, shares: Mapping[str, float]) -> float:
        """Seconds of the step where kinds of traffic get such shares of the network."""
        key = tuple(sorted(shares.items()))
        if key not in self._known:
            placed = replace(self.setup, cluster=replace(self.setup.cluster, traffic_shares=dict(shares)))
            self._known[key] = float(timed_estimate(placed, self.layouts).step_time_s[0])
        return self._known[key]

    def slowest(self, orders: Any) -> Array:
        """Shares of the slowest link of every kind in `links`, of orders of shape (m, n): shape (m, kinds)."""
        orders = np.asarray(orders)
        return np.stack([self._of(orders, x).min(axis=1) for x in self.links.values()], axis=1)

    def _of(self, orders: Ints, links: Ints) -> Array:
        return np.asarray(self.shares[orders[:, links[:, 0]], orders[:, links[:, 1]]])

    def of_order(self, order: Any) -> float:
        """Seconds of the step with nodes in an order."""
        return self.step_s(dict(zip(self.links, self.slowest([order])[0].tolist(), strict=True)))

    def best(self) -> tuple[int, ...]:
        """The order with the shortest step: of all up to `EXACT` nodes, else of those that a search comes by.

        A faster link never makes a step longer, so that of orders only those count which no other beats in every kind.
        The given order stays where none is better.
        """
        n = len(self.shares)
        own = np.arange(n)[None]
        orders = np.array(list(permutations(range(n)))) if n <= EXACT else np.concatenate([own, *self._climbed()])
        slowest, first = np.unique(self.slowest(orders), axis=0, return_index=True)
        beaten = [((slowest >= x).all(axis=1) & (slowest > x).any(axis=1)).any() for x in slowest]
        kept = np.flatnonzero(~np.array(beaten) | (first == 0))
        least = min(kept, key=lambda i: (self.of_order(orders[first[i]]), first[i]))
        return tuple(int(x) for x in orders[first[least]])

    def _climbed(self) -> list[Ints]:
        """Orders from which no move that was drawn led further down, by a smooth sum of what each kind costs."""
        draw, n = np.random.default_rng(0), len(self.shares)
        apart = self.shares[~np.eye(n, dtype=bool)]
        slow = np.geomspace(1.0 / apart.max(), 1.0 / apart.min(), POINTS)
        costs = {kind: [self.step_s({kind: 1.0 / x}) for x in slow] for kind in self.links}

        def cost(orders: Ints) -> Array:
            out = np.zeros(len(orders))
            for kind, links in self.links.items():
                late = 1.0 / self._of(orders, links)
                out += np.interp(np.mean(late**SOFT, axis=1) ** (1.0 / SOFT), slow, costs[kind])
            return out

        left, found = LOOKUPS, []
        for start in range(STARTS):
            order = np.arange(n) if start == 0 else draw.permutation(n)
            now, idle = cost(order[None])[0], 0
            while idle < PATIENCE and left > 0:
                moved = np.stack([_moved(order, draw) for _ in range(MOVES)])
                of = cost(moved)
                left -= MOVES * sum(len(x) for x in self.links.values())
                least = int(np.argmin(of))
                idle = 0 if of[least] < now else idle + 1
                if not idle:
                    order, now = moved[least], of[least]
                    found.append(order[None])
        return found


def _moved(order: Ints, draw: np.random.Generator) -> Ints:
    """An order after a move: two nodes change places, or a stretch of them turns round or slides on."""
    a, b = sorted(draw.choice(len(order), 2, replace=False))
    out, kind = order.copy(), draw.integers(3)
    if kind == 0:
        out[[a, b]] = out[[b, a]]
    else:
        out[a : b + 1] = out[a : b + 1][::-1] if kind == 1 else np.roll(out[a : b + 1], 1)
    return out
