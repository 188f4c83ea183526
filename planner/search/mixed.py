"""The best training on groups of machines that differ: which groups, one pipeline over them, or unequal replicas."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from planner.base.errors import LayoutError
from planner.costs.kernels.device import Device
from planner.costs.network.sites import every_step, exposed_s, share_s
from planner.layouts import Layouts
from planner.models import counts
from planner.models.flops import forward_flops
from planner.search.mixed_pipeline import ALL_SETS, fastest_pipeline
from planner.search.mixed_question import MixedQuestion, MixedWay
from planner.search.request import divisors

NEAR = 1.5
"""Pipelines that take so many times the fastest way known are not looked for."""
PARTS = 32
"""The most parts of a batch that unequal replicas share out."""
NO_PRODUCTS = ("attention_scores", "attention_values", "state_space")
"""Operations that run at rates of their own."""


def mixed_ways(question: MixedQuestion) -> list[MixedWay]:
    """The best way of each kind on sets of groups, the fastest first. Raises LayoutError if there is no way."""
    question = replace(question, alone=_remembered(question.alone))
    n = len(question.gpus)
    found: list[MixedWay] = []
    refused: list[LayoutError] = []
    for size in [size for size in range(n, 0, -1) if n <= ALL_SETS or size in (n, n - 1, 1)]:
        for some in combinations(range(n), size):
            for way in (_replicas, fastest_pipeline) if size > 1 else (_one_group,):
                try:
                    found.append(way(question, some, NEAR * min((w.step_s for w in found), default=np.inf)))
                except LayoutError as error:
                    refused.append(error)
    if not found:
        raise LayoutError(f"{question.setups[0].model.name} trains on none of the groups; on the last: {refused[-1]}")
    return sorted(found, key=lambda w: (w.step_s, len(w.groups), w.name))


def _remembered(alone: Callable[[int, int, float], tuple[float, Layouts]]) -> Any:
    """The same, each searched once: again only where nothing was found within fewer seconds."""
    known: dict[tuple[int, int], tuple[float, Layouts | LayoutError]] = {}

    def once(g: int, batch: int, reach_s: float) -> tuple[float, Layouts]:
        looked_s, layouts = known.get((g, batch), (-1.0, LayoutError("")))
        if isinstance(layouts, LayoutError) and looked_s < reach_s:
            try:
                looked_s, layouts = alone(g, batch, reach_s)
            except LayoutError as error:
                looked_s, layouts = reach_s, error
            if looked_s > reach_s:  # then perhaps not the fastest
                looked_s, layouts = reach_s, LayoutError("no layout is as fast")
            known[g, batch] = looked_s, layouts
        if isinstance(layouts, LayoutError):
            raise layouts
        return looked_s, layouts

    return once


def _one_group(question: MixedQuestion, some: tuple[int, ...], _: float) -> MixedWay:
    step, layouts = question.alone(some[0], question.batch, np.inf)
    return MixedWay(name="one group", groups=some, step_s=step, layouts=(layouts,), batches=(question.batch,))


def shared_out(seconds: Callable[[int, int, float], float], groups: int, parts: int) -> tuple[int, ...]:
    """Parts of a batch for each group, at least one, whose slowest is fastest.

    seconds: of a group with so many parts; infinite where they are more than the third argument, which no better answer
    takes. Shares by speed say what that is. Then a group's most parts say how few the others may have, and a dynamic
    program over the groups joins what is left. More parts may take less: not all numbers of sequences divide well.
    """
    even, most = parts // groups, parts - groups + 1
    speed = np.array([even / seconds(g, even, np.inf) for g in range(groups)])
    has = np.maximum((parts * speed / max(speed.sum(), 1e-300)).astype(int), 1)
    while has.sum() != parts:
        has[int(np.argmax(speed) if has.sum() < parts else np.argmax(has))] += 1 if has.sum() < parts else -1
    reach_s = max(seconds(g, int(n), np.inf) for g, n in enumerate(has))
    can = [next((n for n in range(most, 0, -1) if seconds(g, n, reach_s) <= reach_s), 0) for g in range(groups)]
    best: dict[int, tuple[float, float, tuple[int, ...]]] = {0: (0.0, 0.0, ())}
    for g in range(groups):
        before, best = best, {}
        for n in range(max(parts - sum(can) + can[g], 1), can[g] + 1):
            took = seconds(g, n, reach_s)
            for taken, (slowest, total, shares) in before.items():
                way = max(slowest, took), total + took, (*shares, n)
                best[taken + n] = min(way, best.get(taken + n, way))
    return best[parts][2]


def _replicas(question: MixedQuestion, some: tuple[int, ...], _: float) -> MixedWay:
    """Each group trains copies of its own on its part of the batch; gradients are summed between groups every step."""
    parts = max(d for d in divisors(question.batch) if d <= PARTS)
    if parts < len(some):
        raise LayoutError("a group has no part of the batch")
    each, model = question.batch // parts, question.setups[0].model
    part_s = [least_s(question, g, each) for g in some]

    def seconds(g: int, number: int, reach_s: float) -> float:
        if number * part_s[g] > reach_s:
            return float("inf")
        try:
            return question.alone(some[g], number * each, reach_s)[0]
        except LayoutError:
            return float("inf")

    batches = tuple(n * each for n in shared_out(seconds, len(some), parts))
    own = [question.alone(g, b, np.inf) for g, b in zip(some, batches, strict=True)]
    slowest, layouts = max(own, key=lambda x: x[0])
    precision = question.numerics[0]["precision"]
    exchange = every_step(question.setups[0].framework, precision, int(layouts.micro_batches[0]), model.num_layers)
    links = [_between(question, g) for g in some]
    rate, latency = min(link[0] for link in links), max(link[1] for link in links)
    travel = share_s(exchange, float(counts.total_params(model)), len(some), rate, latency)
    step = slowest + float(exposed_s(exchange, travel, slowest))
    return MixedWay(name="replicas", groups=some, step_s=step, layouts=tuple(x[1] for x in own), batches=batches)


def least_s(question: MixedQuestion, g: int, sequences: int) -> float:
    """Seconds below which no layout of a group trains so many sequences: its matrix products alone, shared evenly, at
    the rate of large ones."""
    setup, gpus = question.setups[g], question.gpus[g]
    forward = forward_flops(setup.model)
    products = sum(float(flop) for name, flop in forward.items() if name not in NO_PRODUCTS)
    device = Device.of(setup.cluster.accelerator, np.array([question.numerics[g]["precision"]]), gpus)
    return 3.0 * products * sequences / (gpus * float(device.matrix_rate[0]))


def _between(question: MixedQuestion, g: int) -> tuple[float, float]:
    """Bytes/s that all nodes of a group send together to other groups, and the latency."""
    cluster = question.setups[g].cluster
    link = question.network or cluster.network
    nics = -(-question.gpus[g] // cluster.gpus_per_node) * cluster.nics_per_node
    return nics * link.reached_bytes_per_s, link.latency_s
