"""How much of a step is traffic between nodes, of which kind, and over which links it goes."""

from dataclasses import replace

import numpy as np

from planner.base.arrays import Array, record
from planner.costs.network.collectives import hop
from planner.costs.network.fabric import Bundle, Fabric, fabric
from planner.costs.network.groups import OF_REPLICAS, nodes_of, ranks_and_stride
from planner.hardware import Cluster
from planner.layouts import Layouts
from planner.schedules.dependencies import dependencies
from planner.schedules.operations import Order
from planner.setup import Setup
from planner.step.passes import passes
from planner.step.step_costs import StepCosts, step_costs
from planner.step.timeline.flows import LinkShares
from planner.step.timeline.step import StepSimulation, simulate
from planner.step.timeline.timeline import durations

ENDLESS = 1e4
"""Times the network's speed: nothing of what it carries shows, or slower by as much, passes hide all that they can."""


@record
class TrafficSeconds:
    """Seconds of one kind of traffic: of each operation, shape (n,), and of each rank's gather and reduction, (p,)."""

    of_operation: Array
    gather_s: Array
    reduce_s: Array


@record
class LinkTraffic:
    """A step's traffic between nodes by kind, bundles of its flows with their numbers, and the links that they use.

    senders: the rank from which each operation receives, -1 for none; compute_s: its seconds that are no traffic,
    shape (n,). gather_window_s, reduce_window_s: as much of a rank's gather and reduction as hides behind its passes
    where they last long enough, shape (p,); gather_cost_s: what shows of a gather over a network that takes no time.
    """

    kinds: dict[str, TrafficSeconds]
    bundles: dict[Bundle, int]
    fabric: Fabric
    senders: list[int]
    compute_s: Array
    gather_window_s: Array
    gather_cost_s: Array
    reduce_window_s: Array


def senders(order: Order) -> list[int]:
    """The other rank from which each operation receives, -1 for none."""
    rank, waits = order.rank, dependencies(order)
    other = np.where((waits >= 0) & (rank[waits] != rank[:, None]), rank[waits], -1)
    return [int(x) for x in other.max(axis=1)]


def link_traffic(
    setup: Setup, cluster: Cluster, layouts: Layouts, plain: StepSimulation, costs: StepCosts
) -> LinkTraffic:
    """The traffic of one layout; setup: where nothing meets, whose step and costs are given; cluster: the real links.

    Where a kind has the links to itself, but for other jobs, it lasts as the closed form says: at its own speed, and at
    that which links between pods leave it, or at half where that is more. Between these it is linear.
    """
    order, p, spans = plain.timeline.order, plain.pipe.p, ranks_and_stride(layouts)
    received = senders(order)
    kinds = [kind for kind, span in spans.items() if nodes_of(setup.cluster, *span, layouts.gpus)[0] > 1]
    bundles = [(kind, r, r) for kind in kinds for r in range(p)]
    if p > 1 and hop(setup.cluster, layouts).crosses[0]:
        pairs = set(zip(received, order.rank.tolist(), strict=True))
        bundles += [("pipeline", *pair) for pair in sorted(pairs) if pair[0] >= 0]
        kinds = ["pipeline", *kinds]
    numbers = {bundle: i for i, bundle in enumerate(bundles)}
    links = fabric(cluster, layouts, bundles)
    alone = LinkShares(links)
    out = {}
    for kind in kinds:
        shares = [alone.of((i,))[0] for (of, *_), i in numbers.items() if of == kind]
        out[kind] = _traffic(setup, layouts, plain, costs, kind, max(2.0, 1.0 / float(min(shares))))
    # Kinds that hide behind the same compute may be more than a pass lasts: all are cut alike.
    loads, k = plain.loads, plain.pipe.k
    lasts = durations(order, loads.forward_s / k, loads.input_grad_s / k, loads.weight_grad_s / k)
    sent = sum((x.of_operation for x in out.values()), np.zeros(len(order)))
    cut = np.minimum(lasts / np.maximum(sent, 1e-30), 1.0)
    out = {kind: replace(x, of_operation=cut * x.of_operation) for kind, x in out.items()}
    compute = lasts - sum((x.of_operation for x in out.values()), np.zeros(len(order)))
    long, short = (
        simulate(replace(setup, cluster=replace(setup.cluster, traffic_shares=dict.fromkeys(OF_REPLICAS, x))), layouts)
        for x in (1.0 / ENDLESS, ENDLESS)
    )
    ended = long.timeline.end_s[order.start[1:] - 1]
    return LinkTraffic(
        kinds=out, bundles=numbers, fabric=links, senders=received, compute_s=compute,
        gather_window_s=long.gather_hidden_s, gather_cost_s=short.gather_s - short.gather_hidden_s,
        reduce_window_s=ended - long.reduce_start_s,
    )  # fmt: skip


def _traffic(
    setup: Setup, layouts: Layouts, plain: StepSimulation, costs: StepCosts, kind: str, slower: float
) -> TrafficSeconds:
    """What a kind's traffic takes more where it goes so many times slower, for each time."""
    cluster, loads, each = setup.cluster, plain.loads, plain.pipe.k * (slower - 1.0)
    slow = step_costs(replace(setup, cluster=replace(cluster, traffic_shares={kind: 1.0 / slower})), layouts)
    whole = (loads.forward_s, loads.input_grad_s, loads.weight_grad_s)
    more = [np.maximum(x - y, 0.0) / each for x, y in zip(passes(slow, loads.chunks, 1.0), whole, strict=True)]
    gather, reduce = (
        of_rank * np.clip((late / max(soon, 1e-30) - 1.0) / (slower - 1.0), 0.0, 1.0) * (kind in OF_REPLICAS)
        for of_rank, late, soon in (
            (plain.gather_s, float(slow.gather_s[0]), float(costs.gather_s[0])),
            (plain.reduce_s, float(slow.reduce_s[0]), float(costs.reduce_s[0])),
        )
    )
    return TrafficSeconds(of_operation=durations(plain.timeline.order, *more), gather_s=gather, reduce_s=reduce)
