"""One pipeline over groups of machines that differ: its stages are each on one group, with as many replicas.

Tensor ranks, stages and layers differ by group.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import permutations, product
from typing import Any

import numpy as np

from planner.base.arrays import Ints
from planner.base.errors import LayoutError
from planner.choices.pipeline_layout import pipeline_layout_text
from planner.costs.case import Case
from planner.costs.network.traffic import exposed_send_s, micro_batch_send_s
from planner.layouts import Layouts, Recompute
from planner.search.mixed_question import MixedQuestion, MixedWay
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
ALL_SETS = 3
"""Groups up to which every set of them, and every order of their stages, is tried; of more, all, all but one, and each
alone."""


def fastest_pipeline(question: MixedQuestion, some: tuple[int, ...], under_s: float) -> MixedWay:
    """The fastest pipeline over the groups that takes less than `under_s`; by their bounds, until none can be faster.

    Raises LayoutError if there is none.
    """
    best: MixedWay | None = None
    stages_of = lru_cache(maxsize=None)(partial(_stages, question))  # orders of the groups share them
    for bound_s, order, tp, stages, common in sorted(_candidates(question, some), key=lambda c: c[0])[:MOST]:
        under_s = under_s if best is None else min(best.step_s, under_s)
        if bound_s >= under_s:
            break
        with suppress(LayoutError):
            way = pipeline_of(question, order, tp, stages, common, under_s, stages_of)
            best = way if best is None or way.step_s < best.step_s else best
    if best is None:
        raise LayoutError("no pipeline over the groups")
    return best


def _candidates(question: MixedQuestion, some: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """Every pipeline over the groups: a bound on its step in seconds, and the arguments of `pipeline_of`."""
    L = int(question.setups[0].model.num_layers)
    orders = list(permutations(range(len(some)))) if len(some) <= ALL_SETS else [tuple(range(len(some)))]
    layer_s = {g: _layer_s(question, g) for g in some}
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
            each = [layer_s[g][t, mb, again] for g, t in zip(some, tp, strict=True)]
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


def _layer_s(question: MixedQuestion, g: int) -> dict[tuple[int, int, Recompute], float]:
    """Seconds of a layer both ways by tensor ranks, micro-batch and recomputation; infinite where illegal."""
    setup, ways = question.setups[g], list(product(TENSOR_RANKS, MICRO_BATCHES, RECOMPUTE))
    tp, micro_batch, recompute = np.array(ways).T
    table = Layouts.of(
        tp=tp, micro_batch=micro_batch, global_batch=micro_batch, recompute=recompute, sequence_parallel=tp > 1,
        **question.numerics[g],
    )  # fmt: skip
    legal = np.array([not broken for broken in first_broken(setup.model, setup.cluster, table)])
    seconds = np.full(len(ways), np.inf)
    if legal.any():
        seconds[legal] = step_costs(setup, table.take(legal)).layer.total_s
    return dict(zip(ways, seconds.tolist(), strict=True))


def _stages(question: MixedQuestion, g: int, tp: int, p: int, common: Callable[..., Layouts]) -> tuple[Any, ...]:
    """`stage_items` of a pipeline of p stages as if all lay on the group. Raises LayoutError if it is illegal."""
    setup, one = question.setups[g], _laid_out(question, g, tp, p, common)
    if broken := first_broken(setup.model, setup.cluster, one)[0]:
        raise LayoutError(broken)
    return stage_items(setup, one)


def _laid_out(
    question: MixedQuestion, g: int, tp: int, p: int, common: Callable[..., Layouts], text: str = ""
) -> Layouts:
    return common(tp=tp, pp=p, sequence_parallel=tp > 1, pipeline_layout=text, **question.numerics[g])


def pipeline_of(
    question: MixedQuestion, order: tuple[int, ...], tp: tuple[int, ...], stages: tuple[int, ...],
    common: Callable[..., Layouts], under_s: float = np.inf, stages_of: Callable[..., tuple[Any, ...]] | None = None,
) -> MixedWay:  # fmt: skip
    """A pipeline over groups with the layers that the exact partition gives each stage, simulated; common: makes a
    layout of what all groups share; stages_of: what `_stages` gives, if known.

    Raises LayoutError if it is illegal, no split fits, or it takes `under_s` or more.
    """
    setups, p = [question.setups[g] for g in order], sum(stages)
    group = np.repeat(np.arange(len(order)), stages)
    stages_of = stages_of or partial(_stages, question)
    items = [stages_of(g, t, p, common) for g, t in zip(order, tp, strict=True)]
    usable = [setup.cluster.accelerator.usable_bytes for setup in setups]
    sizes = partition(
        [items[k][0] for k in group], p, size_bytes=lambda s: items[group[s]][3](s),
        cap_bytes=lambda s: usable[group[s]] - items[group[s]][2],
    )  # fmt: skip
    ends = np.cumsum(sizes)
    works = np.array([items[k][0][end - n : end].sum() for k, n, end in zip(group, sizes, ends, strict=True)])
    sizes[[0, -1]] -= 1  # embedding and head
    text = pipeline_layout_text(sizes.tolist())
    given = [_laid_out(question, g, t, p, common, text) for g, t in zip(order, tp, strict=True)]
    if (int(given[0].micro_batches[0]) * works + np.cumsum(works) - works).max() >= under_s:
        raise LayoutError("it is slower than another")
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
