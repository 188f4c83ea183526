"""The best training on groups of machines that differ: which groups, one pipeline over them, or unequal replicas.

A pipeline's stages are each on one group, with as many replicas; tensor ranks, stages and layers differ by group.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import combinations, permutations, product
from typing import Any

import numpy as np

from planner.base.arrays import Ints
from planner.base.errors import LayoutError
from planner.choices.pipeline_layout import pipeline_layout_text
from planner.costs.case import Case
from planner.costs.network.sites import every_step, exposed_s, share_s
from planner.costs.network.traffic import exposed_send_s, micro_batch_send_s
from planner.hardware import Link
from planner.layouts import Layouts, Recompute
from planner.models import counts
from planner.search.request import divisors
from planner.search.stage_split import stage_items
from planner.setup import Setup
from planner.step.legality import first_broken
from planner.step.partition import partition
from planner.step.step_costs import step_costs
from planner.step.timeline.mixed import mixed_step

TENSOR_RANKS = (1, 2, 4, 8)
MICRO_BATCHES = (1, 2, 4)
RECOMPUTE = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
MOST = 100
"""Pipelines that are split exactly, of those on a set of groups the ones whose bound is least."""
NEAR = 1.5
"""Pipelines that take so many times the fastest way known are not looked for."""
ALL_SETS = 3
"""Groups up to which every set of them is tried; of more, all, all but one, and each alone."""
PARTS = 32
"""The most parts of a batch that unequal replicas share out."""


@dataclass(frozen=True, kw_only=True)
class MixedQuestion:
    """Setups and GPUs of each group, in the order of their memory.

    alone: the step and layout of a group's own search for a batch, as far as it takes so many seconds or fewer; raises
    LayoutError if there is none.
    network: the link between the groups; None takes the slower of two groups' networks.
    """

    setups: tuple[Setup, ...]
    gpus: tuple[int, ...]
    batch: int
    numerics: tuple[dict[str, Any], ...]
    network: Link | None
    alone: Callable[[int, int, float], tuple[float, Layouts]]


@dataclass(frozen=True, kw_only=True)
class MixedWay:
    """A way to train. groups: numbers of the groups that train. layouts, batches, layers: each group's layout, and its
    part of the batch or its layers by stage."""

    name: str
    groups: tuple[int, ...]
    step_s: float
    layouts: tuple[Layouts, ...]
    batches: tuple[int, ...] = ()
    layers: tuple[tuple[int, ...], ...] = ()


def mixed_ways(question: MixedQuestion) -> list[MixedWay]:
    """The best way of each kind on sets of groups, the fastest first. Raises LayoutError if there is no way."""
    question = replace(question, alone=_remembered(question.alone))
    n = len(question.gpus)
    found: list[MixedWay] = []
    refused: list[LayoutError] = []
    for size in [size for size in range(n, 0, -1) if n <= ALL_SETS or size in (n, n - 1, 1)]:
        for some in combinations(range(n), size):
            for way in (_replicas, _pipeline) if size > 1 else (_one_group,):
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

    def seconds(g: int, number: int, reach_s: float) -> float:
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


def _between(question: MixedQuestion, g: int) -> tuple[float, float]:
    """Bytes/s that all nodes of a group send together to other groups, and the latency."""
    cluster = question.setups[g].cluster
    link = question.network or cluster.network
    nics = -(-question.gpus[g] // cluster.gpus_per_node) * cluster.nics_per_node
    return nics * link.bandwidth_bytes_per_s * link.fraction, link.latency_s


def _pipeline(question: MixedQuestion, some: tuple[int, ...], under_s: float) -> MixedWay:
    """The fastest pipeline over the groups that takes less than `under_s`; by their bounds, until none can be faster.

    Raises LayoutError if there is none.
    """
    best: MixedWay | None = None
    for bound_s, order, tp, stages, common in sorted(_candidates(question, some), key=lambda c: c[0])[:MOST]:
        under_s = under_s if best is None else min(best.step_s, under_s)
        if bound_s >= under_s:
            break
        with suppress(LayoutError):
            way = pipeline_of(question, order, tp, stages, common, under_s)
            best = way if best is None or way.step_s < best.step_s else best
    if best is None:
        raise LayoutError("no pipeline over the groups")
    return best


def _candidates(question: MixedQuestion, some: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """Every pipeline over the groups: a bound on its step in seconds, and the arguments of `pipeline_of`."""
    L = int(question.setups[0].model.num_layers)
    orders = list(permutations(range(len(some)))) if len(some) <= ALL_SETS else [tuple(range(len(some)))]
    layer_s = lru_cache(maxsize=None)(partial(_layer_s, question))
    shared = [d for d in divisors(question.batch) if all(question.gpus[g] % d == 0 for g in some)]
    for dp, mb, again in product(shared, MICRO_BATCHES, RECOMPUTE):
        if question.batch % (dp * mb):
            continue
        common = partial(Layouts.of, dp=dp, micro_batch=mb, global_batch=question.batch, recompute=again, zero=1)
        nodes = [question.setups[g].cluster.gpus_per_node for g in some]
        widths = [
            [t for t in TENSOR_RANKS if question.gpus[g] // dp % t == 0 and t <= n]
            for g, n in zip(some, nodes, strict=True)
        ]
        for tp in product(*widths):
            stages = [question.gpus[g] // (dp * t) for g, t in zip(some, tp, strict=True)]
            if sum(stages) > L + 2:
                continue
            each = [layer_s(g, t, mb, again) for g, t in zip(some, tp, strict=True)]
            for at in orders:
                order, ranks, stage_counts, seconds = (tuple(x[i] for i in at) for x in (some, tp, stages, each))
                bound_s = least_makespan_s(L, question.batch // (dp * mb), stage_counts, seconds)
                yield bound_s, order, ranks, stage_counts, common


def least_makespan_s(layers: int, m: int, stages: Sequence[float], layer_s: Sequence[float]) -> float:
    """The least seconds of m micro-batches in a pipeline over groups of stages, however the layers are split.

    Stage s works m T_s, after and before all stages ahead of it: Z >= m T_s + sum of T_r over r < s. Of the weights w
    with m w_s + sum of w_r over r > s >= 1 / t_s (the dual linear program) those of one stage after the other, from
    the last, bound Z by layers / sum of w.
    """
    total = 0.0
    for n, t in zip(reversed(stages), reversed(layer_s), strict=True):
        if total < 1.0 / t:
            total = 1.0 / t - (1.0 / t - total) * (1.0 - 1.0 / m) ** n
    return layers / total if total else float("inf")


def _layer_s(question: MixedQuestion, g: int, tp: int, micro_batch: int, recompute: Recompute) -> float:
    """Seconds of a layer forward and backward; infinite where the tensor ranks are illegal."""
    setup = question.setups[g]
    one = Layouts.of(
        tp=tp, micro_batch=micro_batch, global_batch=micro_batch, recompute=recompute, sequence_parallel=tp > 1,
        **question.numerics[g],
    )  # fmt: skip
    illegal = first_broken(setup.model, setup.cluster, one)[0]
    return float("inf") if illegal else float(step_costs(setup, one).layer.total_s[0])


def pipeline_of(
    question: MixedQuestion, order: tuple[int, ...], tp: tuple[int, ...], stages: tuple[int, ...],
    common: Callable[..., Layouts], under_s: float = np.inf,
) -> MixedWay:  # fmt: skip
    """A pipeline over groups with the layers that the exact partition gives each stage, simulated; common: makes a
    layout of what all groups share.

    Raises LayoutError if it is illegal, no split fits, or it takes `under_s` or more.
    """
    setups, p = [question.setups[g] for g in order], sum(stages)
    group = np.repeat(np.arange(len(order)), stages)

    def laid_out(text: str) -> list[Layouts]:
        return [
            common(tp=t, pp=p, sequence_parallel=t > 1, pipeline_layout=text, **question.numerics[g])
            for g, t in zip(order, tp, strict=True)
        ]

    layouts = laid_out("")
    for setup, one in zip(setups, layouts, strict=True):
        if broken := first_broken(setup.model, setup.cluster, one)[0]:
            raise LayoutError(broken)
    items = [stage_items(setup, one) for setup, one in zip(setups, layouts, strict=True)]
    usable = [setup.cluster.accelerator.usable_bytes for setup in setups]
    sizes = partition(
        [items[k][0] for k in group], p, size_bytes=lambda s: items[group[s]][3](s),
        cap_bytes=lambda s: usable[group[s]] - items[group[s]][2],
    )  # fmt: skip
    ends = np.cumsum(sizes)
    works = np.array([items[k][0][end - n : end].sum() for k, n, end in zip(group, sizes, ends, strict=True)])
    if (int(layouts[0].micro_batches[0]) * works + np.cumsum(works) - works).max() >= under_s:
        raise LayoutError("it is slower than another")
    sizes[[0, -1]] -= 1  # embedding and head
    given = laid_out(pipeline_layout_text(sizes.tolist()))
    forward, backward = _between_groups(question, setups, given, group)
    step, peak = mixed_step(setups, given, group, forward, backward)
    if np.any(peak > np.array(usable)[group]):
        raise LayoutError("a stage does not fit in memory")
    return MixedWay(
        name="pipeline", groups=order, step_s=step, layouts=tuple(given),
        layers=tuple(tuple(sizes[group == k].tolist()) for k in range(len(order))),
    )  # fmt: skip


def _between_groups(question: MixedQuestion, setups: list[Setup], layouts: list[Layouts], group: Ints) -> Any:
    """Seconds by which the link between groups lengthens each stage's passes, forward and backward."""
    forward, backward = np.zeros(len(group)), np.zeros(len(group))
    over = [replace(s, cluster=replace(s.cluster, network=question.network or s.cluster.network)) for s in setups]
    own, far = (
        [float(exposed_send_s(case, micro_batch_send_s(case))[0]) for case in map(Case.of, some, layouts)]
        for some in (setups, over)
    )
    for s in np.flatnonzero(np.diff(group)) + 1:
        a, b = group[s - 1], group[s]
        slower = max(far[a], far[b])
        forward[s], backward[s - 1] = max(slower - own[b], 0.0), max(slower - own[a], 0.0)
    return forward, backward
